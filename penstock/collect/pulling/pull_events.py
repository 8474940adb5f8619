"""Turns what a source sent into judged events: the user's `map` where there is one, then the stream's own judge."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from penstock.collect.judging.incoming_events import DecodedEvents
from penstock.collect.judging.json_events import SLICE_BYTES
from penstock.collect.judging.judge import Judge
from penstock.collect.judging.rejection import Rejection

AT_ONCE_EVENTS = 5_000
"""Judged together; below the number of rejections at which a body as a whole would be given up."""


class PullEvents:
    """Of one pull. Small amounts are judged on the edge's loop, the rest and everything mapped in a thread."""

    def __init__(self, judge: Judge, map: Callable[[Any], Any] | None, event_bytes: int) -> None:
        self._judge, self._map, self._event_bytes = judge, map, event_bytes

    async def decode(self, raws: Sequence[bytes]) -> DecodedEvents:
        if self._map is None and sum(map(len, raws)) <= SLICE_BYTES:
            return self._judged(raws)
        return await asyncio.to_thread(self.decode_here, raws)

    def _judged(self, raws: Sequence[bytes]) -> DecodedEvents:
        if len(raws) <= AT_ONCE_EVENTS:
            return self._judge.decode_each(raws)
        whole = DecodedEvents([], raws.__getitem__, [], None, [])
        for start in range(0, len(raws), AT_ONCE_EVENTS):
            some = self._judge.decode_each(raws[start : start + AT_ONCE_EVENTS])
            whole.events = [*whole.events, *some.events]
            whole.rejections += [replace(r, index=r.index + start) for r in some.rejections]
            whole.places = [*(whole.places or ()), *(some.place(row) + start for row in range(len(some.events)))]
            whole.unknown = None if some.unknown is None else [*(whole.unknown or ()), *some.unknown]
        return whole

    def decode_here(self, raws: Sequence[bytes]) -> DecodedEvents:
        """In this thread."""
        if self._map is None:
            return self._judged(raws)
        mapped, places, failed = self._mapped(raws, self._map)
        decoded = self._judged(mapped)
        return DecodedEvents(
            decoded.events,
            raws.__getitem__,
            failed + [replace(r, index=places[r.index], raw=raws[places[r.index]]) for r in decoded.rejections],
            decoded.unknown,
            [places[decoded.place(row)] for row in range(len(decoded.events))],
        )

    def _mapped(
        self, raws: Sequence[bytes], map: Callable[[Any], Any]
    ) -> tuple[list[bytes], list[int], list[Rejection]]:
        """What `map` made of the events, where each stood, and those on which it failed; None leaves an event out."""
        mapped: list[bytes] = []
        places: list[int] = []
        failed: list[Rejection] = []
        for place, raw in enumerate(raws):
            try:
                event = self._event(raw, map)
            except Exception as error:
                failed.append(Rejection(place, "map_failed", f"{type(error).__name__}: {error}", raw))
            else:
                if event is not None:
                    mapped.append(event)
                    places.append(place)
        return mapped, places, failed

    def _event(self, raw: bytes, map: Callable[[Any], Any]) -> bytes | None:
        if len(raw) > self._event_bytes:
            return raw  # too large for anybody: the judge refuses it
        event = map(msgspec.json.decode(raw))
        return None if event is None else msgspec.json.encode(event)
