"""What an address or a `subscribe` message may ask with: a misspelt `where` that nobody reads would show everything.

`?were=...` without this gives all rows, and `?afetr=...` gives them too early. So what is not taken is refused with
what is, and so is a parameter that is there twice. Names that begin with `_` are let through everywhere: browsers and
libraries add them against caches.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from penstock.errors import BadRequestError

_FILTER = ("where", "params", "select")
_ORDER = ("order_by", "limit")
_REACHED = ("after", "at_least", "wait")
_RESUME = ("last_event_id", "lastEventId", "ticket")
OF_VIEW = (*_FILTER, *_ORDER, "key", *_REACHED, "since")
OF_STREAM = (*_FILTER, "after", "limit", "wait")
EVENTS_OF_VIEW = (*_FILTER, *_ORDER, *_REACHED, *_RESUME)
EVENTS_OF_STREAM = (*_FILTER, "after", *_RESUME)
_MESSAGE = ("type", "id", "view", "stream", "channel", "name", "since", *_FILTER)
SUBSCRIBE = {"view": (*_MESSAGE, *_ORDER, *_REACHED), "stream": _MESSAGE}
_BOTH = tuple(dict.fromkeys((*OF_VIEW, *OF_STREAM)))
_EVENTS_OF_BOTH = tuple(dict.fromkeys((*EVENTS_OF_VIEW, *EVENTS_OF_STREAM)))

TAKEN: Mapping[str, tuple[str, ...]] = {
    "GET /views/{view}": OF_VIEW,
    "GET /views/{view}/events": EVENTS_OF_VIEW,
    "GET /views/{view}/socket": ("ticket",),
    "GET /streams/{stream}": OF_STREAM,
    "GET /streams/{stream}/events": EVENTS_OF_STREAM,
    "GET /streams/{stream}/socket": ("ticket",),
    "GET /streams/{stream}/schema": ("version",),
    "POST /streams/{stream}": ("ack", "reply", "wait", "key"),
    "GET /channels/{channel}": _BOTH,
    "GET /channels/{channel}/events": _EVENTS_OF_BOTH,
    "GET /channels/{channel}/socket": ("ticket",),
    "GET /acks/{token}": ("wait",),
    "GET /dead": ("stream", "reason", "since", "replayed", "after", "limit", "masked"),
    "DELETE /subscribers/{name}": ("credential",),
}
"""Routes that are not here take none, but for the pixel, whose parameters are its event."""
_ANYTHING = "/streams/{stream}/pixel.gif"


def check_parameters(method: str, path: str, query: Mapping[str, str]) -> None:
    """Raises `BadRequestError` for what the route at `path`, as it was registered, does not take."""
    if query and path != _ANYTHING:
        only(query, TAKEN.get(f"{'GET' if method == 'HEAD' else method} {path}", ()))


def only(given: Mapping[str, object], taken: tuple[str, ...]) -> None:
    """Raises `BadRequestError` unless each of these is there at most once, and nothing else is but null.

    >>> only({"where": "n > 3", "_": "1700000000", "more": None}, OF_VIEW)
    """
    seen: set[str] = set()
    for name, value in given.items():  # of a query with a name twice this gives it twice
        if name.startswith("_") or value is None:
            continue
        shown = ascii(name[:40])
        if name not in taken:
            raise BadRequestError(f"{shown} is not taken here", hint=f"what is: {', '.join(taken) or 'nothing'}")
        if name in seen:
            raise BadRequestError(f"{shown} is there twice", hint="send one value")
        seen.add(name)


def waiting(value: object, default_s: float, most_s: float) -> float:
    """The parameter or field `wait`: seconds, as a number or as its text. Raises `BadRequestError`.

    >>> waiting("0.5", 5.0, 60.0), waiting(None, 5.0, 60.0)
    (0.5, 5.0)
    """
    if value is None:
        return default_s
    seconds = -1.0
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value)
    elif isinstance(value, str) and value.isascii() and "_" not in value and value == value.strip():
        with suppress(ValueError):
            seconds = float(value)
    if not 0 <= seconds <= most_s:
        raise BadRequestError(f"wait={str(value)[:40]} is not a time to wait", hint=f"use seconds from 0 to {most_s:g}")
    return seconds
