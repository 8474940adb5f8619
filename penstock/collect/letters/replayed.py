"""Remembers which dead letters were replayed, so that each is replayed once, in the commit of the replayed events.

A letter is a place in one side of `dead`: the epoch of that side and an offset. 4,096 neighbouring letters share one
key of the control stream, `replayed/<epoch>/<number>`, whose value is a bit for each of them: at most two bits of
memory and disk per dead letter, however they are chosen. An epoch that is gone takes its letters with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.collect.intake import Keys, Note
from penstock.log import control_keys
from penstock.log.log import KeyIs

TOGETHER = 4_096


@dataclass(frozen=True, slots=True)
class Place:
    """Where a letter stands."""

    epoch: str
    offset: int

    @property
    def key(self) -> str:
        return control_keys.replayed(self.epoch, self.offset // TOGETHER)

    @property
    def bit(self) -> int:
        return 1 << (self.offset % TOGETHER)


class Replayed:
    """What the log's memory says of replayed letters; any thread may ask."""

    def __init__(self, memory: Mapping[str, Any]) -> None:
        self._memory = memory

    def __contains__(self, place: Place) -> bool:
        return bool(self._bits(place.key) & place.bit)

    def note(self, places: Iterable[Place]) -> Note:
        """What is written in the commit that replays these letters, if no other comes before it."""
        keys: dict[str, int] = {}
        for place in places:
            keys[place.key] = keys.get(place.key, self._bits(place.key)) | place.bit
        marks = Keys({key: f"{bits:x}" for key, bits in keys.items()})
        return Note(lambda *_: marks, tuple(KeyIs(key, self._memory.get(key)) for key in keys))

    def _bits(self, key: str) -> int:
        return int(self._memory.get(key) or "0", 16)
