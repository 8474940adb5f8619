"""Reads both logs of an app by the names of their streams, so that nobody else has to know which is where.

The edge's log holds the door's streams, the flows' log those of the flows. The ledger `dead` has a partition in each:
partition 0 is what the door rejected, partition 1 what died in a flow. Its epoch is both epochs joined, `-` for a side
that is not there yet.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from penstock.config import Folder
from penstock.errors import PositionGoneError, UnknownStreamError
from penstock.evolution import adapt
from penstock.log import control_keys
from penstock.log.log import Block, Bounds, LogReader, Stream
from penstock.log.opening import open_reader
from penstock.position import Position
from penstock.schema import DEFAULT, SENT, SYSTEM, TIMESTAMP

DEAD = pa.schema(
    [
        pa.field("stream", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("detail", pa.string()),
        pa.field("raw", pa.binary()),
        pa.field("sender", pa.string()),
        pa.field("flow", pa.string()),
        pa.field(SENT, TIMESTAMP, metadata={DEFAULT: b"null"}),
        *SYSTEM,
    ]
)
"""What was rejected, at the door or by a flow, with the reason; `_sent` is when the sender said that it sent it, in the
header `Penstock-Sent`, which is not part of what it sent."""

LATE = pa.schema(
    [
        pa.field("flow", pa.string()),
        pa.field("stream", pa.string()),
        pa.field("position", pa.string()),
        pa.field("bound", TIMESTAMP),
        pa.field("event", pa.string()),
        pa.field("corrected", pa.bool_(), metadata={DEFAULT: b"null"}),
        *SYSTEM,
    ]
)
"""What came too late for a flow: the event as JSON, where it stands, the bound that it missed, and whether it changed a
window all the same, as `correct=` says."""

_ABSENT = "-"
_NOTHING = Bounds((0,), (0,), 0, 0, 0, 0, None)


@dataclass(frozen=True, slots=True)
class Part:
    """One log's share of a stream; `stream` None: that log does not have it yet."""

    log: LogReader
    stream: Stream | None

    @property
    def epoch(self) -> str:
        return self.stream.epoch if self.stream else _ABSENT

    def bounds(self) -> Bounds:
        return self.log.bounds(self.stream) if self.stream else _NOTHING


@dataclass(frozen=True, slots=True)
class FolderStream:
    """A stream of the app, whichever logs it is in. Its partitions are those of its parts, one after another."""

    name: str
    schema: pa.Schema
    parts: tuple[Part, ...]

    @property
    def epoch(self) -> str:
        return ".".join(part.epoch for part in self.parts)

    def position(self, offsets: Sequence[int]) -> Position:
        return Position("stream", self.name, self.epoch, tuple(offsets))

    def bounds(self) -> Bounds:
        """Of a stream in both logs the numbers of commits are added up: they count, but number nothing."""
        each = [part.bounds() for part in self.parts]
        times = [bounds.max_us for bounds in each if bounds.max_us is not None]
        return Bounds(
            starts=tuple(offset for bounds in each for offset in bounds.starts),
            ends=tuple(offset for bounds in each for offset in bounds.ends),
            first_commit=sum(bounds.first_commit for bounds in each),
            next_commit=sum(bounds.next_commit for bounds in each),
            rows=sum(bounds.rows for bounds in each),
            bytes=sum(bounds.bytes for bounds in each),
            max_us=max(times, default=None),
        )

    def partitions(self) -> list[tuple[Part, int]]:
        """For each partition, whose it is and its number there."""
        return [(part, number) for part in self.parts for number in range(part.stream.partitions if part.stream else 1)]


class FolderLog:
    """The streams of an app by name; any process, any thread."""

    def __init__(self, folder: Folder, *, keep: bool = False) -> None:
        self.edge: LogReader = open_reader(folder.edge_log, keep=keep)
        self.flows: LogReader = open_reader(folder.flows_log, keep=keep)

    def close(self) -> None:
        self.edge.close()
        self.flows.close()

    def revision(self) -> tuple[int, int]:
        """Differs when anything was committed in either log since the last call in this thread."""
        return self.edge.revision(), self.flows.revision()

    def find(self, name: str) -> FolderStream:
        """The stream of that name; of a flow's stream the build that is served. Raises `UnknownStreamError`."""
        door, made = self.edge.find(name), self._served(name)
        stream = door or made
        if stream is None or stream.counts != "events" or name.startswith("_"):
            raise UnknownStreamError(f"there is no stream '{name}'", hint="GET /streams lists them")
        if name == "dead":
            return FolderStream(name, stream.schema, (Part(self.edge, door), Part(self.flows, made)))
        return FolderStream(name, stream.schema, (Part(self.edge if door else self.flows, stream),))

    def _served(self, name: str) -> Stream | None:
        epoch = self.flows.memory().get(control_keys.live(name))
        return (self.flows.find(name, epoch) if epoch else None) or self.flows.find(name)

    def bounds(self, name: str) -> Bounds:
        return self.find(name).bounds()

    def position_end(self, name: str) -> Position:
        """Behind everything that the stream holds now."""
        stream = self.find(name)
        return stream.position(stream.bounds().ends)

    def read_after(self, name: str, position: Position | None, limit: int) -> tuple[list[Block], Position]:
        """At most `limit` events from a position on (None: from the beginning), and the position behind exactly these.

        Blocks come in the order in which they were committed, so that no partition waits for another. A position of
        another epoch, or one that retention has passed, raises `PositionGoneError`.
        """
        stream, offsets, waiting = self.opened(name, position)
        blocks: list[Block] = []
        for block in waiting:
            taken = _first(block, limit)
            limit -= taken.batch.num_rows
            offsets[taken.partition] = taken.end
            blocks.append(taken)
            if not limit:
                break
        return blocks, stream.position(offsets)

    def opened(self, name: str, position: Position | None) -> tuple[FolderStream, list[int], Iterator[Block]]:
        """The same for whoever does not know yet how many events it wants: the stream, the offsets at which it begins,
        and its blocks, read as they are asked for."""
        stream = self.find(name)
        bounds = stream.bounds()
        if position is not None and not _is_within(position, bounds):  # it may have been given on another machine
            for part in stream.parts:
                part.log.see_all()
            bounds = stream.bounds()
        offsets = list(bounds.starts) if position is None else _offsets(stream, position, bounds)
        return stream, offsets, _merged(stream, list(offsets))


def _offsets(stream: FolderStream, position: Position, bounds: Bounds) -> list[int]:
    """Where to go on; a side of `dead` that was not there when the position was given begins at its beginning."""
    theirs, ours = position.epoch.split("."), stream.epoch.split(".")
    known = len(theirs) == len(ours) and all(t in (o, _ABSENT) for t, o in zip(theirs, ours, strict=True))
    if known and _is_within(position, bounds):
        return list(position.offsets)
    raise PositionGoneError(
        f"the stream '{stream.name}' no longer holds this position",
        detail=f"it is of epoch '{position.epoch}' and the stream of '{stream.epoch}'" if not known else None,
        hint="begin again from the start of the stream",
    )


def _is_within(position: Position, bounds: Bounds) -> bool:
    return len(position.offsets) == len(bounds.ends) and all(
        offset <= end for offset, end in zip(position.offsets, bounds.ends, strict=True)
    )


def _merged(stream: FolderStream, offsets: Sequence[int]) -> Iterator[Block]:
    """The blocks of all partitions in the order of their commits, numbered as in the whole stream."""
    readers = [
        _numbered(part.log.read(part.stream, number, offset), partition, stream.schema)
        for partition, ((part, number), offset) in enumerate(zip(stream.partitions(), offsets, strict=True))
        if part.stream is not None
    ]
    return heapq.merge(*readers, key=_arrival if len(stream.parts) > 1 else _order)


def _numbered(blocks: Iterator[Block], partition: int, schema: pa.Schema) -> Iterator[Block]:
    """Of a stream in both logs one may be written under an older schema than the other."""
    for block in blocks:
        same = block.batch.schema.equals(schema)
        yield replace(block, partition=partition, batch=block.batch if same else adapt(block.batch, schema))


def _order(block: Block) -> tuple[int, int]:
    return block.commit, block.partition


def _arrival(block: Block) -> tuple[int, int]:
    """Numbers of commits mean nothing across logs; times do, near enough, and the order is the same every time."""
    return block.written_us, block.partition


def _first(block: Block, rows: int) -> Block:
    if block.batch.num_rows <= rows:
        return block
    offsets = block.offsets.slice(0, rows)
    return replace(block, end=offsets[-1].as_py() + 1, batch=block.batch.slice(0, rows), offsets=offsets)
