"""Finds dead letters in both sides of the ledger, so that people can look at them and send them again.

A letter's name is `<side>-<offset>`: side 0 is what the door rejected, side 1 what died in a flow. A page looks at a
bounded number of letters and holds a bounded number of bytes; only letters that are asked for become Python objects.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.collect.intake import Keys, Note
from penstock.collect.letters.dead_letters import RAW_BYTES
from penstock.errors import BadRequestError, UnknownLetterError
from penstock.log import control_keys
from penstock.log.folder_log import FolderLog, FolderStream
from penstock.log.log import Block, KeyIs
from penstock.position import Position
from penstock.private import mask
from penstock.schema import RECEIVED, SENT, TIMESTAMP

SCAN_LETTERS = 100_000
"""Letters that one page looks at when few of them are wanted."""
BLOCK_LETTERS = 50
"""As many letters as reading a block costs, however few it has: most senders' letters come one by one."""
PAGE_BYTES = 8 * 1024**2
_NAME = re.compile(r"([01])-(\d{1,18})")
TOGETHER = 4_096
"""Neighbouring letters that share one key of the control stream, a bit for each: at most two bits of memory and disk
per dead letter, however they are chosen. An epoch that is gone takes its letters with it."""


@dataclass(frozen=True, slots=True)
class LetterPlace:
    """Where a letter stands: the epoch of its side of `dead`, and an offset."""

    epoch: str
    offset: int

    @property
    def key(self) -> str:
        return control_keys.replayed(self.epoch, self.offset // TOGETHER)

    @property
    def bit(self) -> int:
        return 1 << (self.offset % TOGETHER)


class Replayed:
    """Which letters were replayed, so that each is replayed once: written in the commit of the replayed events. Any
    thread may ask."""

    def __init__(self, memory: Mapping[str, Any]) -> None:
        self._memory = memory

    def __contains__(self, place: LetterPlace) -> bool:
        return bool(self._bits(place.key) & place.bit)

    def note(self, places: Iterable[LetterPlace]) -> Note:
        """What is written in the commit that replays these letters, if no other comes before it."""
        keys: dict[str, int] = {}
        for place in places:
            keys[place.key] = keys.get(place.key, self._bits(place.key)) | place.bit
        marks = Keys({key: f"{bits:x}" for key, bits in keys.items()})
        return Note(lambda *_: marks, tuple(KeyIs(key, self._memory.get(key)) for key in keys))

    def _bits(self, key: str) -> int:
        return int(self._memory.get(key) or "0", 16)


@dataclass(frozen=True, slots=True)
class StoredLetter:
    """One dead letter as the log holds it."""

    name: str
    place: LetterPlace
    stream: str
    reason: str
    detail: str | None
    raw: bytes
    sender: str | None
    flow: str | None
    received_us: int
    sent_us: int | None = None
    """When the sender's clock said, in a header, that it sent this."""

    @property
    def cut(self) -> bool:
        """Whether only the beginning of what was sent was kept."""
        return len(self.raw) >= RAW_BYTES


@dataclass(frozen=True, slots=True)
class LetterQuery:
    """Which letters: None is any."""

    stream: str | None = None
    reason: str | None = None
    since_us: int | None = None
    replayed: bool | None = None

    def rows(self, batch: pa.RecordBatch) -> list[int]:
        """The rows of a block of `dead` that pass, but for `replayed`, which the block does not know."""
        mask: Any = None
        for column, value in (("stream", self.stream), ("reason", self.reason)):
            if value is not None:
                mask = _and(mask, pc.equal(batch.column(column), value))
        if self.since_us is not None:
            since = pa.scalar(self.since_us, pa.int64()).cast(TIMESTAMP)
            mask = _and(mask, pc.greater_equal(batch.column(RECEIVED), since))
        if mask is None:
            return list(range(batch.num_rows))
        rows: list[int] = pc.indices_nonzero(pc.fill_null(mask, False)).to_pylist()
        return rows


def _and(mask: Any, more: Any) -> Any:
    return more if mask is None else pc.and_(mask, more)


@dataclass(frozen=True, slots=True)
class LetterPage:
    """Some letters, oldest first, and the position behind all that was looked at; `more`: it was not the end."""

    letters: list[StoredLetter]
    next: Position
    more: bool


class StoredLetters:
    """All dead letters of a data folder. The methods read the disk: call them in threads."""

    def __init__(self, log: FolderLog, replayed: Replayed) -> None:
        self._log, self._replayed = log, replayed

    def page(self, query: LetterQuery, after: Position | None, limit: int) -> LetterPage:
        dead, offsets, blocks = self._log.opened("dead", after)
        letters: list[StoredLetter] = []
        room, looked_at = PAGE_BYTES, 0
        for block in blocks:
            for letter in self._passing(dead, block, query):
                letters.append(letter)
                room -= len(letter.raw)
                if len(letters) == limit or room <= 0:
                    offsets[block.partition] = letter.place.offset + 1
                    return LetterPage(letters, dead.position(offsets), True)
            offsets[block.partition] = block.end
            looked_at += block.batch.num_rows + BLOCK_LETTERS
            if looked_at >= SCAN_LETTERS:
                return LetterPage(letters, dead.position(offsets), True)
        return LetterPage(letters, dead.position(offsets), False)

    def find(self, name: str) -> StoredLetter:
        """Raises `UnknownLetterError`."""
        side, offset = self._parsed(name)
        dead = self._log.find("dead")
        part, partition = dead.partitions()[side]
        if part.stream is not None:
            bounds = part.bounds()
            if bounds.starts[partition] <= offset < bounds.ends[partition]:
                (block,) = part.log.read(part.stream, partition, offset, offset + 1)
                return _letter(side, part.epoch, offset, block.batch.to_pylist()[0])
        raise unknown_letter(name)

    def is_replayed(self, letter: StoredLetter) -> bool:
        return letter.place in self._replayed

    def _parsed(self, name: str) -> tuple[int, int]:
        match = _NAME.fullmatch(name)
        if match is None:
            raise BadRequestError(
                f"'{name[:80]}' is not the name of a dead letter",
                hint="a name is like 0-17; `penstock dead list` has them",
            )
        return int(match[1]), int(match[2])

    def _passing(self, dead: FolderStream, block: Block, query: LetterQuery) -> Iterator[StoredLetter]:
        epoch = dead.partitions()[block.partition][0].epoch
        offsets = block.offsets.to_pylist()
        for letter in _letters(block, epoch, offsets, query.rows(block.batch)):
            if query.replayed is None or query.replayed == self.is_replayed(letter):
                yield letter


def unknown_letter(name: str) -> UnknownLetterError:
    return UnknownLetterError(f"there is no dead letter '{name}'", hint="`penstock dead list` names them")


def _letters(block: Block, epoch: str, offsets: list[int], rows: Iterable[int]) -> Iterator[StoredLetter]:
    for row in rows:
        (values,) = block.batch.slice(row, 1).to_pylist()
        yield _letter(block.partition, epoch, offsets[row], values)


def _letter(side: int, epoch: str, offset: int, values: dict[str, Any]) -> StoredLetter:
    return StoredLetter(
        name=f"{side}-{offset}",
        place=LetterPlace(epoch, offset),
        stream=values["stream"] or "",
        reason=values["reason"] or "",
        detail=values["detail"],
        raw=values["raw"] or b"",
        sender=values["sender"],
        flow=values["flow"],
        received_us=_us(values[RECEIVED]),
        sent_us=None if values.get(SENT) is None else _us(values[SENT]),
    )


def _us(moment: dt.datetime) -> int:
    return round(moment.timestamp() * 1_000_000)


Mask = Callable[[StoredLetter], bytes]


def as_it_is(letter: StoredLetter) -> bytes:
    """What was sent, with nothing hidden."""
    return letter.raw


def masked(kinds: Mapping[str, type[msgspec.Struct]]) -> Mask:
    """What a listing shows: without private fields. `kinds` are the streams' classes; a letter of a stream that the app
    no longer declares is shown as a whole."""
    return lambda letter: mask(letter.raw, kinds[letter.stream]) if letter.stream in kinds else letter.raw
