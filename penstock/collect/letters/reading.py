"""Reads what a dead letter holds as its way in did: envelopes are opened, and what a pull brought is mapped again.

A letter keeps what was sent, not how it was read. A CloudEvent shows what it is, unless the class has its attributes
for fields; what was pulled names its source as the sender. Events that somebody mended are not mapped: they are what
`map` should have made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from penstock.collect.contents.cloudevents import BAD_ENVELOPE, decode_envelopes, is_envelope
from penstock.collect.judging.incoming_events import Decoded
from penstock.collect.judging.json_events import split
from penstock.collect.judging.judge import Judge
from penstock.collect.letters.stored_letters import StoredLetter
from penstock.collect.pulling.events import PullEvents
from penstock.declaration import PullDef
from penstock.errors import BadBodyError


class LetterReader:
    """Knows the maps of an app's pulls. Stateless: any thread may ask."""

    def __init__(self, pulls: Iterable[PullDef] = ()) -> None:
        self._maps: Mapping[tuple[str, str | None], Callable[[Any], Any]] = {
            (pull.stream, pull.url): pull.map for pull in pulls if pull.map is not None
        }

    def decode(self, letter: StoredLetter, judge: Judge, mended: Sequence[bytes] | None) -> Decoded:
        """The events of a letter, or what to take in their place. Raises `BadBodyError` and `TooLargeError`."""
        raws = _raws(letter) if mended is None else list(mended)
        bad_envelope = mended is None and letter.reason == BAD_ENVELOPE
        if bad_envelope or (raws and all(is_envelope(judge, raw) for raw in raws)):
            return decode_envelopes(judge, raws)
        map = self._maps.get((letter.stream, letter.sender)) if mended is None else None
        if map is not None:
            return PullEvents(judge, map, judge.limits.event_bytes).decode_here(raws)
        return judge.decode_each(raws)


def _raws(letter: StoredLetter) -> list[bytes]:
    """The events of a letter: one, unless it is a whole body that could not be read."""
    if letter.reason != "bad_body":
        return [letter.raw]
    try:
        return split(letter.raw, "json")
    except BadBodyError:
        return split(letter.raw, "lines")
