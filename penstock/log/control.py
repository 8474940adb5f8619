"""What a writer must remember, as a map from keys to JSON that lives in the log's own compacted control stream.

Keys are written in the same commit as the events that they belong to, so that neither can exist without the other.
Producers' sequence numbers are such keys: `producer/<stream>/<id>` holds the epoch, the last sequence number and the
position token behind it.

1. The map in memory changes only after the commit that changes it on disk.
2. A producer that was heard within the last 7 days is forgotten only if 100,000 others were heard after it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import pyarrow as pa

from penstock.errors import FencedError, PositionGoneError, SequenceGapError
from penstock.log.log import CONTROL, Block, LogReader, Producer, Stream, StreamSpec
from penstock.position import Position

SCHEMA = pa.schema([pa.field("key", pa.string()), pa.field("value", pa.binary())])
SPEC = StreamSpec(CONTROL, SCHEMA, compact_by=("key",))

PRODUCER = "producer/"
IDLE_US = 7 * 86_400 * 1_000_000
MOST_PRODUCERS = 100_000
_FORGET_AT_ONCE = 64
"""Producers forgotten in one commit at most, so that no commit becomes long by it."""
_ROWS_BEFORE_COMPACTION = 10_000
_ROWS_PER_KEY = 4


def rows(changes: Mapping[str, Any | None]) -> pa.RecordBatch:
    """Changes of the map as events of the control stream; None forgets a key."""
    values = [None if value is None else msgspec.json.encode(value) for value in changes.values()]
    return pa.record_batch([pa.array(list(changes), pa.string()), pa.array(values, pa.binary())], schema=SCHEMA)


def changes(block: Block) -> Iterator[tuple[str, Any | None]]:
    """The reverse of `rows`."""
    keys, values = block.batch.column("key").to_pylist(), block.batch.column("value").to_pylist()
    for key, value in zip(keys, values, strict=True):
        yield key, None if value is None else msgspec.json.decode(value)


def wants_compaction(events: int, keys: int) -> bool:
    """Whether so much of the control stream is out of date that merging it is worth the writing."""
    return events > _ROWS_BEFORE_COMPACTION and events > _ROWS_PER_KEY * keys


def apply(memory: dict[str, Any], changed: Mapping[str, Any | None]) -> None:
    for key, value in changed.items():
        if value is None:
            memory.pop(key, None)
        else:
            memory[key] = value


class Memory(Mapping[str, Any]):
    """The writer's map as others see it: always the newest values; a loop over it sees one moment.

    The writer's thread changes the map while others read it, which is why nobody is given the dict itself.
    """

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._values))

    def __len__(self) -> int:
        return len(self._values)

    def items(self) -> Any:
        return list(self._values.items())

    def values(self) -> Any:
        return list(self._values.values())


class Recall:
    """A reader's copy of the map, brought up to date from where it stood. A map once given out never changes."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._position: Position | None = None

    def refreshed(self, log: LogReader, stream: Stream) -> Mapping[str, Any]:
        if self._position is not None and log.bounds(stream).ends == self._position.offsets:
            return self._values
        try:
            self._values = self._read(log, stream)
        except PositionGoneError:  # compaction has passed where we stood
            self._values, self._position = {}, None
            self._values = self._read(log, stream)
        return self._values

    def _read(self, log: LogReader, stream: Stream) -> dict[str, Any]:
        position = self._position or stream.position(log.bounds(stream).starts)
        values = dict(self._values)
        for block in log.read(stream, 0, position.offsets[0]):
            apply(values, dict(changes(block)))
            position = stream.position((block.end,))
        self._position = position
        return values


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a producer has come in one stream."""

    epoch: int
    sequence: int
    position: Position
    heard_us: int


Verdict = Literal["new", "repeated"]


class Producers:
    """Who has sent what, oldest first by when they were last heard."""

    def __init__(self) -> None:
        self._marks: OrderedDict[str, Mark] = OrderedDict()

    def apply(self, changed: Mapping[str, Any | None], now_us: int) -> None:
        """Take over what a commit has stored; whoever was heard stands at the young end."""
        for key, value in changed.items():
            self._marks.pop(key, None)
            if value is not None:
                epoch, sequence, token = value
                self._marks[key] = Mark(epoch, sequence, Position.parse(token), now_us)

    def known(self, stream: Stream, producer: Producer) -> Mark | None:
        """What is known of it; a mark of another epoch of the stream says nothing about this one."""
        mark = self._marks.get(producer_key(stream, producer))
        return mark if mark is not None and mark.position.epoch == stream.epoch else None

    def to_forget(self, now_us: int, most: int = MOST_PRODUCERS) -> list[str]:
        """Keys to forget in the next commit: idle for long, or more than can be kept."""
        surplus = len(self._marks) - most
        found: list[str] = []
        for key, mark in self._marks.items():
            if len(found) >= _FORGET_AT_ONCE or not (len(found) < surplus or mark.heard_us < now_us - IDLE_US):
                break
            found.append(key)
        return found


def producer_key(stream: Stream, producer: Producer) -> str:
    return f"{PRODUCER}{stream.name}/{producer.id}"


def judge(producer: Producer, epoch: int | None, sequence: int) -> Verdict:
    """Whether a producer's append is new or repeated; raises `FencedError` or `SequenceGapError`.

    `epoch` and `sequence` are the last ones taken; None: nothing is known of it.
    """
    if epoch is not None and producer.epoch < epoch:
        raise FencedError(
            f"the producer '{producer.id}' was replaced by a newer instance of it",
            detail=f"epoch {producer.epoch} was sent, {epoch} is known",
            hint="stop this instance, or start it with a higher epoch",
        )
    expected = sequence + 1 if producer.epoch == epoch else 0
    if producer.sequence > expected:
        raise SequenceGapError(
            f"the producer '{producer.id}' skipped a sequence number",
            detail=f"{producer.sequence} was sent, {expected} is expected",
            hint=f"send again from sequence {expected}",
            expected=expected,
        )
    return "new" if producer.sequence == expected else "repeated"
