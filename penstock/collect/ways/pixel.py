"""Takes one event out of an image's address: `GET /streams/{stream}/pixel.gif?field=value`, for pages without script.

The sender sees an image whatever happens, so the answer is one: 200 once the event, or its dead letter, is on the disk.
`Penstock-Rejected` has the reason for those who look. Only where nothing was kept (no right, no such stream, no room)
is the status another one.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping

import msgspec
from aiohttp import web

from penstock.clock import Clock
from penstock.collect.judging.incoming_events import DecodedEvents
from penstock.collect.judging.judge import Judge
from penstock.collect.judging.rejection import Refused, Rejection, refused, unknown_detail
from penstock.collect.sender import sender_of
from penstock.collect.ways.door import Door
from penstock.errors import PenstockError, ReadOnlyStreamError, UnknownStreamError
from penstock.rights.credential import credential_of
from penstock.rights.guard import refused_with
from penstock.rights.keys import START

GIF = base64.b64decode("R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAICRAEAOw==")
"""One transparent dot in 43 bytes."""
REJECTED = "Penstock-Rejected"
_HEADERS = {
    "Content-Type": "image/gif",
    "Cache-Control": "no-store, no-cache, must-revalidate, private",
    "Pragma": "no-cache",
    "Expires": "0",
}
_encode = msgspec.json.Encoder().encode
_SECRET = "key"
"""The parameter that carries a write-only key; never part of an event when it was shown as one, or looks like one."""

Texts = dict[str, str | list[str]]


def refusal(error: PenstockError) -> web.Response:
    """The image where nothing was kept."""
    status = 404 if isinstance(error, UnknownStreamError | ReadOnlyStreamError) else error.status
    return _image(status, error.code)


class Pixel:
    """The handler; lives on the edge's loop."""

    def __init__(self, door: Door, clock: Clock) -> None:
        self._door, self._clock = door, clock

    @refused_with(refusal)
    async def get(self, request: web.Request) -> web.Response:
        name = request.match_info["stream"]
        try:
            return await self._get(request, name)
        except Exception as error:
            return refusal(self._door.explained(error, request.path, name))

    async def _get(self, request: web.Request, name: str) -> web.Response:
        intake = self._door.intake(name)
        credential_of(request).require("write", name)  # a stream that wants signatures lets anybody come this far
        texts = _texts(request)
        if _is_secret(request, texts.get(_SECRET, "")):
            del texts[_SECRET]
        decoded = read_query(intake.judge, texts)
        sender = sender_of(request, "pixel")
        outcome = await intake.take(decoded, self._clock.now_us(), sender)
        return _image(200, outcome.rejections[0].reason if outcome.rejections else None)


def read_query(judge: Judge, texts: Texts) -> DecodedEvents:
    """One event, or the reason why it is none."""
    undeclared = [n for n in texts if not judge.texts.declared(n) and n != _SECRET and not n.startswith("_")]
    given = {name: text for name, text in texts.items() if judge.texts.declared(name) or name in undeclared}

    def raw(place: int) -> bytes:
        return judge.texts.raw(given)

    try:
        if undeclared and judge.stream.unknown == "reject":
            raise Refused("unknown_field", unknown_detail(undeclared))
        event = judge.texts.event(given)
    except (msgspec.ValidationError, Refused) as error:
        why = judge.said(judge.texts.blamed(refused(error), given))
        return DecodedEvents([], raw, [Rejection(0, why.reason, why.detail, raw(0))])
    keeps = judge.stream.unknown == "keep"
    return DecodedEvents([event], raw, [], [_kept(given, undeclared)] if keeps else None)


def _texts(request: web.Request) -> Texts:
    query = request.query
    texts: Texts = {}
    for name in query:
        values = query.getall(name)
        texts[name] = values[0] if len(values) == 1 else list(values)
    return texts


def _is_secret(request: web.Request, shown: str | list[str]) -> bool:
    """Whether the parameter `key` was taken as a credential, or is one that nobody asked for; else it is data."""
    if not shown:
        return False
    used = not credential_of(request).is_anonymous and "Authorization" not in request.headers
    return used or any(text.startswith(START) for text in ([shown] if isinstance(shown, str) else shown))


def _kept(given: Mapping[str, str | list[str]], undeclared: list[str]) -> str | None:
    return _encode({name: given[name] for name in undeclared}).decode() if undeclared else None


def _image(status: int, rejected: str | None) -> web.Response:
    headers = _HEADERS if rejected is None else _HEADERS | {REJECTED: rejected}
    return web.Response(status=status, body=GIF, headers=headers)
