"""What a writer must remember, as a map from keys to JSON that lives in the log's own compacted control stream.

Keys are written in the same commit as the events that they belong to, so that neither can exist without the other.
Producers' sequence numbers are such keys: `producer/<stream>/<id>` holds the epoch, the last sequence number and the
position token behind it.

1. The map in memory changes only after the commit that changes it on disk.
2. A producer that was heard within the last 7 days is forgotten only if 100,000 others were heard after it.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

import msgspec
import pyarrow as pa

from penstock.errors import FencedError, PositionGoneError, SequenceGapError
from penstock.log import control_keys
from penstock.log.control_keys import KeyFamily
from penstock.log.follower import Follower
from penstock.log.log import CONTROL, Block, LogReader, Producer, Stream, StreamSpec
from penstock.position import Position

_log = logging.getLogger(__name__)

SCHEMA = pa.schema([pa.field("key", pa.string()), pa.field("value", pa.binary())])
SPEC = StreamSpec(CONTROL, SCHEMA, compact_by=("key",))

FOLLOW_S = 0.1
"""How often a process that only reads looks for keys that have changed: nobody notices, and 5 ms would cost CPU."""
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


Changes = Mapping[str, Any | None]
"""Keys and their new values; None: forgotten."""


class ControlMap(Mapping[str, Any]):
    """The newest value of every key, kept current by the one who feeds it, for all who read it or want to hear of it.

    In the process that writes the log the log itself feeds it, right behind each commit, so that whoever was told that
    a commit is durable finds its keys here. In one that only reads, `ControlFollower` does. Any thread may read: a loop
    over it sees one moment. Within a family the key that was set last is the last one.
    """

    def __init__(self, values: Changes | None = None) -> None:
        self._lock = threading.Lock()
        self._families: dict[str, dict[str, Any]] = {}
        self._watchers: dict[str, list[Callable[[Changes], None]]] = {}
        self.apply(values or {})

    def __getitem__(self, key: str) -> Any:
        return self._families[key.partition("/")[0]][key]

    def __iter__(self) -> Iterator[str]:
        return iter([key for key, _ in self.items()])

    def __len__(self) -> int:
        return sum(map(len, list(self._families.values())))

    def items(self) -> Any:
        with self._lock:
            return [item for family in self._families.values() for item in family.items()]

    def values(self) -> Any:
        return [value for _, value in self.items()]

    def family(self, of: KeyFamily, most: int | None = None) -> dict[str, Any]:
        """The keys of a family at this moment, the one that was set longest ago first; at most so many."""
        with self._lock:
            return dict(islice(self._families.get(of.name, {}).items(), most))

    def size(self, of: KeyFamily) -> int:
        """How many keys a family has."""
        return len(self._families.get(of.name, ()))

    def watch(self, of: KeyFamily, heard: Callable[[Changes], None]) -> None:
        """From now on `heard` is called with the keys of a family that change, in the thread that feeds this map: it
        must return quickly, and whoever lives on a loop goes there by `call_soon_threadsafe`."""
        with self._lock:
            self._watchers.setdefault(of.name, []).append(heard)

    # For who feeds it

    def apply(self, changed: Changes) -> None:
        """These keys have changed."""
        news: dict[str, dict[str, Any | None]] = {}
        with self._lock:
            for key, value in changed.items():
                name = key.partition("/")[0]
                family = self._families.setdefault(name, {})
                family.pop(key, None)
                if value is not None:
                    family[key] = value
                if name in self._watchers:
                    news.setdefault(name, {})[key] = value
        for name, theirs in news.items():
            for heard in self._watchers[name]:
                try:
                    heard(theirs)
                except Exception:  # the commit is made, whatever becomes of who wants to hear of it
                    _log.exception("a change of '%s' in the control stream was not taken over", name)


class Recall:
    """How far a reader has come in the control stream, and what it has found."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._position: Position | None = None
        self._given: Mapping[str, Any] | None = None

    def refreshed(self, log: LogReader, stream: Stream) -> Mapping[str, Any]:
        """All values now. A map once given out never changes."""
        if self.news(log, stream) or self._given is None:
            self._given = dict(self._values)
        return self._given

    def news(self, log: LogReader, stream: Stream) -> Changes:
        """What has changed since the last call."""
        if self._position is not None and log.bounds(stream).ends == self._position.offsets:
            return {}
        try:
            found = self._read(log, stream)
        except PositionGoneError:  # compaction has passed where we stood
            self._position = None
            found = self._read(log, stream)
            found |= dict.fromkeys(self._values.keys() - found.keys())
        for key, value in found.items():
            self._values.pop(key, None)
            if value is not None:
                self._values[key] = value
        return found

    def _read(self, log: LogReader, stream: Stream) -> dict[str, Any | None]:
        position = self._position or stream.position(log.bounds(stream).starts)
        found: dict[str, Any | None] = {}
        for block in log.read(stream, 0, position.offsets[0]):
            for key, value in changes(block):
                found.pop(key, None)
                found[key] = value
            position = stream.position((block.end,))
        self._position = position
        return found


class ControlFollower:
    """Keeps `map` current in a process that only reads the log: `FOLLOW_S` behind the commits."""

    def __init__(self, log: LogReader, *, interval_s: float = FOLLOW_S) -> None:
        self.map = ControlMap()
        self._log = log
        self._recall = Recall()
        self._look()
        self._follower = Follower(log.revision, self._look, interval_s=interval_s)

    def close(self) -> None:
        self._follower.close()

    def _look(self) -> None:
        stream = self._log.find(CONTROL)
        if stream is not None:
            self.map.apply(self._recall.news(self._log, stream))


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
            if not key.startswith(control_keys.producer.prefix):
                continue
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
    return control_keys.producer(stream.name, producer.id)


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
