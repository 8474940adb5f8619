"""Dead letters as the command line sees them: which are meant, what was sent in them, and how they are shown."""

from __future__ import annotations

import base64
import datetime as dt
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from penstock.cli.remote import Remote, path_of
from penstock.config import duration_us
from penstock.errors import BadRequestError, DeclarationError

SHOWN_CHARACTERS = 80
"""Of what was sent, in a table."""
_PAGE = 500
_UNPACKED_BYTES = 1024**2


@dataclass(frozen=True)
class Letter:
    """One dead letter: what a function that mends letters is called with."""

    letter: str
    """Its name."""
    stream: str
    reason: str
    detail: str | None
    received: str
    sender: str | None
    flow: str | None
    raw: bytes
    sent_at: str | None = None
    """When the sender's clock said, in the header `Penstock-Sent`, that it sent this."""
    replayed: bool = False
    cut: bool = False
    """Only the first MiB of what was sent was kept."""

    @staticmethod
    def of(body: dict[str, Any]) -> Letter:
        return Letter(**body | {"raw": base64.b64decode(body["raw"])})

    @cached_property
    def text(self) -> str:
        """What was sent, as far as it can be read."""
        return _unpacked(self.raw).decode("utf-8", "backslashreplace")

    @cached_property
    def event(self) -> Any:
        """What was sent, as Python sees its JSON: a dict, a list, ...; None when it is not JSON."""
        try:
            return json.loads(self.text)
        except (ValueError, RecursionError):
            return None


@dataclass(frozen=True)
class Chosen:
    """Which letters are meant: those that are named, or those that pass every filter."""

    names: Sequence[str] = ()
    stream: str | None = None
    reason: str | None = None
    since: str | None = None
    replayed: bool | None = None

    def letters(self, remote: Remote, *, masked: bool) -> Iterator[Letter]:
        """Oldest first, a page at a time; `masked` hides private fields."""
        if self.names:
            for name in self.names:
                yield Letter.of(remote.get(path_of("dead", name)))
            return
        after: str | None = None
        while True:
            page = remote.get("/dead", self._params() | {"after": after, "masked": None if masked else "false"})
            yield from map(Letter.of, page["letters"])
            if not page["more"]:
                return
            after = page["next"]

    def refuse_nothing(self, everything: bool) -> None:
        """What changes something is never meant for all letters unless that is said."""
        if not (self.names or self.stream or self.reason or self.since or everything):
            raise BadRequestError(
                "it is not said which letters are meant",
                hint="name them (0-17), choose them with --stream, --reason or --since, or say --all",
            )

    def _params(self) -> dict[str, str | int | float | None]:
        replayed = None if self.replayed is None else str(self.replayed).lower()
        chosen = {"stream": self.stream, "reason": self.reason, "since": since_text(self.since)}
        return {**chosen, "replayed": replayed, "limit": _PAGE}


def since_text(text: str | None, now: dt.datetime | None = None) -> str | None:
    """A time as it stands, and a duration as that long ago.

    >>> since_text("2 hours", dt.datetime(2026, 5, 1, 12, tzinfo=dt.UTC))
    '2026-05-01T10:00:00+00:00'
    """
    if text is None or (text[:4].isdigit() and "-" in text):
        return text
    try:
        ago = dt.timedelta(microseconds=duration_us(text))
    except DeclarationError:
        raise BadRequestError(
            f"--since '{text}' is neither a time nor a duration", hint="write 2026-05-01T10:00:00Z, or '2 hours'"
        ) from None
    return ((now or dt.datetime.now(dt.UTC)) - ago).isoformat()


def _unpacked(raw: bytes) -> bytes:
    """A body that was sent as gzip, as far as it can be unpacked."""
    if not raw.startswith(b"\x1f\x8b"):
        return raw
    try:
        return zlib.decompressobj(31).decompress(raw, _UNPACKED_BYTES)
    except zlib.error:
        return raw


# Shown


def table(letters: Sequence[Letter]) -> Table:
    """One line for each."""
    made = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 3, 0, 0))
    for column in ("letter", "received", "stream", "reason", "detail", "sent", ""):
        made.add_column(column, no_wrap=column != "detail")
    for letter in letters:
        state = Text("replayed", style="green") if letter.replayed else Text("")
        why = Text(letter.reason, style="yellow")
        cells = (Text(letter.letter, style="bold"), Text(letter.received), Text(letter.stream), why)
        made.add_row(*cells, Text(letter.detail or ""), Text(_short(letter.text)), state)
    return made


def whole(letter: Letter) -> RenderableType:
    """Everything of one letter; what was sent stands last, as it is or, if it is JSON, indented."""
    facts = Table(box=None, show_header=False, pad_edge=False, padding=(0, 3, 0, 0))
    size = f"{len(letter.raw):,} bytes{', the beginning of more' if letter.cut else ''}"
    for name, value in {
        "letter": letter.letter,
        "stream": letter.stream,
        "reason": letter.reason,
        "detail": letter.detail,
        "received": letter.received,
        "sender": letter.sender,
        "flow": letter.flow,
        "replayed": "yes" if letter.replayed else "no",
        "sent": size,
    }.items():
        if value:
            facts.add_row(Text(name, style="dim"), Text(value))
    return Group(facts, Text(), Text(_readable(letter)))


def body(letter: Letter) -> dict[str, Any]:
    """A letter as one line of JSON: `event` where it is one, else `text`."""
    said = {name: getattr(letter, name) for name in ("letter", "stream", "reason", "detail", "received", "sender")}
    said |= {"flow": letter.flow, "replayed": letter.replayed, "cut": letter.cut}
    return said | ({"text": letter.text} if letter.event is None else {"event": letter.event})


def _readable(letter: Letter) -> str:
    return letter.text if letter.event is None else json.dumps(letter.event, indent=2, ensure_ascii=False)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= SHOWN_CHARACTERS else line[: SHOWN_CHARACTERS - 1] + "…"
