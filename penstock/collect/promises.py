"""What numbered producers promise of a stream: nothing older than this from me.

1. `complete` of a stream with `complete="producers"` is the least promise of living producers. One that lives and has
   promised nothing holds it.
2. A producer lives from its first batch until it says `end`, or has been silent for `idle_after`.
3. A promise stands in the commit of the batch that it came with. One that is on its way counts as not made yet, so
   that what is told is never too much.
"""

from __future__ import annotations

from typing import Any, Literal

from penstock.clock import Clock
from penstock.log import control_keys
from penstock.log.control import ControlMap

Promise = int | Literal["end"] | None
"""Microseconds since 1970; `end`: it sends nothing more; None: nothing was said."""

_FORGET_US = 24 * 3_600 * 1_000_000
"""A producer that was silent for so long is forgotten, where no `idle_after` does it sooner."""


class Promises:
    """Of one stream. Belongs to the edge's loop."""

    def __init__(self, stream: str, memory: ControlMap, idle_after_us: int | None, clock: Clock) -> None:
        self._stream, self._memory, self._clock = stream, memory, clock
        self._lives_us = idle_after_us or _FORGET_US

    def taken(self, producer: str, promise: Promise) -> tuple[dict[str, Any | None], int | None]:
        """What the control stream learns with a batch of a producer, and how far the stream is complete with it."""
        known, now_us = self._known(), self._clock.now_us()
        key = control_keys.promise(self._stream, producer)
        sets: dict[str, Any | None] = {old: None for old, (_, heard) in known.items() if heard < now_us - _FORGET_US}
        if promise == "end":
            sets[key] = None
        else:
            before = known.get(key, [None, 0])[0]
            promised = [each for each in (before, promise) if each is not None]
            sets[key] = [max(promised, default=None), now_us]
        after = {**known, **sets}
        return sets, self._least([value for value in after.values() if value is not None], now_us)

    def holder(self) -> str | None:
        """The living producer that has promised least, or nothing."""
        now_us = self._clock.now_us()
        alive = {key: value for key, value in self._known().items() if value[1] >= now_us - self._lives_us}
        prefix = len(control_keys.promise(self._stream, ""))
        least = min(alive, key=lambda key: -(2**63) if alive[key][0] is None else alive[key][0], default=None)
        return None if least is None else least[prefix:]

    def _least(self, values: list[Any], now_us: int) -> int | None:
        alive = [promised for promised, heard in values if heard >= now_us - self._lives_us]
        return min(alive) if alive and None not in alive else None

    def _known(self) -> dict[str, Any]:
        prefix = control_keys.promise(self._stream, "")
        return {k: v for k, v in self._memory.family(control_keys.promise).items() if k.startswith(prefix)}
