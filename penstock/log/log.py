"""The contract of a log, in prose: who calls what, from which process, and what holds when it returns.

A log holds streams. A stream has an epoch (a random id, new when its content begins anew), partitions, and in each
partition events with dense offsets from 0. Events arrive in *commits*: one atomic, durable step that may append to
several streams. Commits of one stream are numbered upwards; a reader that works in whole commits sees what the
writer meant to be seen together.

Invariants, each of which `penstock.testing.contracts.log_contract` tries to break:

1. When `append` returns, its events are durable (fsynced); when it raises, none of them ever appears.
2. One call of `append` is one commit: all of its streams or none, in the order of the list.
3. Offsets are dense per partition. Nothing is ever changed in place; only `trim` and `compact` remove, at the start.
4. All blocks of a stream in one commit carry the stream's largest `_time` *before* that commit (`bound_us`); what is
   late follows from what is stored, so the same log always names the same late events.
   The same holds for `complete`: nothing older is taken any more. It is stored with each commit as it was before
   (`earliest_us`) and with it (`complete_us`), never goes back, and what is older than the former is late.
5. In a stream that is `unique` an `_id` is taken once within the horizon; a producer's sequence number is taken once.
   Both survive a restart.
6. Every block carries a checksum that is verified on every read: wrong bytes raise `CorruptBlockError`.
7. A reader below the start of a stream gets `PositionGoneError`, never a silent skip.
8. One writer at a time: opening for writing raises the log's *term*, and a writer of an older term gets
   `StaleTermError` from its next append.
9. What an append requires is judged inside its commit, and what it sets and counts is written there: no other
   commit, and no other append of the same commit, comes between.
10. A power cut leaves every commit whose `append` returned, with its keys, ids and producers' numbers, and of the one
    that was under way all or nothing.

A writer lives in one process and is called from one thread at a time (see `group_commit.py` for many callers). Readers
live in any process, in any number, and may be called from any thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

import pyarrow as pa

from penstock.errors import PenstockError
from penstock.horizon import Horizon
from penstock.position import Position

if TYPE_CHECKING:
    from penstock.log.control import ControlMap

Counts = Literal["events", "commits"]

CONTROL = "_control"
"""The compacted stream in which a writer keeps what it must remember; see `control.py`."""
NOTHING = pa.record_batch([], schema=pa.schema([]))
"""The batch of an append that has no events and no stream."""


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """How a stream is made. `counts` says what its offsets number: events, or (a view's changelog) whole commits."""

    name: str
    schema: pa.Schema
    partitions: int = 1
    unique: bool = False
    counts: Counts = "events"
    compact_by: tuple[str, ...] = ()
    """Columns by which `compact` keeps the newest event; empty: never compacted."""
    epoch: str | None = None
    """None: a new random one, unless the stream is there already."""
    horizon: Horizon = Horizon()
    """How many ids of a `unique` stream are known, and how long. It is not part of the stream: what this writer was
    told last counts, and another one may be told something else."""
    late_after_us: int | None = None
    """How far behind the newest `_time` the stream is complete; None: only as far as an `Append` says. Not part of the
    stream, as the horizon is not: what was stored stays as it is."""


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream that exists. `schema` is the newest one; events of older versions are adapted to it when read."""

    name: str
    epoch: str
    partitions: int
    unique: bool
    counts: Counts
    compact_by: tuple[str, ...]
    schema: pa.Schema
    place: str
    """Of the log that holds it: `open_reader` of `opening.py` reads it in any process."""

    def position(self, offsets: Sequence[int]) -> Position:
        """A position of kind `stream`, or of kind `view` for a changelog."""
        kind: Literal["stream", "view"] = "stream" if self.counts == "events" else "view"
        return Position(kind, self.name, self.epoch, tuple(offsets))


@dataclass(frozen=True, slots=True)
class Version:
    """One of the schemas that a stream has had: 1, 2, ...; the last one is what is written now."""

    number: int
    schema: pa.Schema
    made_us: int | None
    """When it was declared; None in a file from before that was noted."""
    held: bool
    """Whether the stream may still hold events that were stored under it."""


@dataclass(frozen=True, slots=True)
class Producer:
    """Who sends, which incarnation of it, and the number of this append (0, 1, 2, ... per stream and epoch)."""

    id: str
    epoch: int
    sequence: int


@dataclass(frozen=True, slots=True)
class KeyIs:
    """A condition: this key of the control stream has this value; None: there is no such key."""

    key: str
    value: Any | None


@dataclass(frozen=True, slots=True)
class RowIs:
    """A condition on the row of a `compact_by` key in a compacted stream: its newest event that is no tombstone."""

    stream: Stream
    key: tuple[Any, ...]
    """Values of the columns of `compact_by`, in their order."""
    exists: bool = True
    version: int | None = None
    """The row's offset; None: any."""
    values: Mapping[str, Any] | None = None
    """Columns that have these values. Judging it may read the stream: a version is cheaper."""


@dataclass(frozen=True, slots=True)
class EndsAt:
    """A condition: the next commit of this stream has this number, and this append is the first to it in that commit.
    So nobody has appended since whoever requires it has looked."""

    stream: Stream
    commit: int


Condition = KeyIs | RowIs | EndsAt
Rows = range | tuple[int, ...]
"""Numbers of rows of an append's batch."""


@dataclass(frozen=True, slots=True)
class Share:
    """How many of an append's rows, or of these, were `accepted`, or were `duplicates`."""

    what: Literal["accepted", "duplicates"]
    rows: Rows | None = None


@dataclass(frozen=True, slots=True)
class Count:
    """Adds to one of the numbers that a key of the control stream holds by their names."""

    key: str
    number: str
    by: int | Share
    repeated: bool = False
    """Counted if the append is `repeated`; else if it is taken."""


@dataclass(frozen=True, slots=True)
class OutcomeKey:
    """A key of the control stream that gets what became of an append: `value`, and beside it `ack` (the token of
    `Appended.position`), `accepted` and `duplicates` (of these rows), and `repeated` where it is true."""

    key: str
    value: Mapping[str, Any]
    rows: Rows | None = None


@dataclass(frozen=True, slots=True)
class Append:
    """Events for one stream, and what else the commit does with them. All of it is data: a log may write it down.

    The log splits the events over partitions by a hash of `_key`. What is required, set and counted is worked out
    append after append, in their order, so that each one sees what those before it in the same commit have changed.
    """

    stream: Stream | None = None
    """None: no events, only keys of the control stream; the position of the result is then that stream's."""
    batch: pa.RecordBatch = field(default_factory=lambda: NOTHING)
    meta: Mapping[str, Any] | None = None
    """JSON that is stored with the commit and comes back in `Commit.meta`; at most one per stream and commit."""
    producer: Producer | None = None
    follows: bool = False
    """Taken only if the append before it in the same call is: if that one failed or is `repeated`, this is
    `repeated` too, and leaves nothing."""
    requires: tuple[Condition, ...] = ()
    """Taken only if all of these hold. Otherwise the result is a `ConditionError`, and it leaves nothing. A producer's
    number is judged first: a repetition is `repeated`, although it has itself changed what it requires."""
    sets: Mapping[str, Any | None] = field(default_factory=dict)
    """Keys of the control stream and their values (None: forget), if it is taken."""
    outcomes: tuple[OutcomeKey, ...] = ()
    """Set if it is taken, and if it is `repeated` by its producer's number."""
    counts: tuple[Count, ...] = ()
    complete_us: int | None = None
    """The stream is complete up to here with this commit, if it is not already further."""


@dataclass(frozen=True, slots=True)
class Appended:
    """What became of one `Append`."""

    position: Position
    """Just behind the commit: everything of this append is before it."""
    commit: int
    accepted: int
    duplicates: tuple[int, ...] = ()
    """Rows of the batch whose `_id` was known already."""
    repeated: bool = False
    """The whole append was taken before under the same producer sequence."""


@dataclass(frozen=True, slots=True)
class KnownIds:
    """How many ids of a stream are known, and when the oldest of them came."""

    ids: int
    since_us: int | None


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit of one stream, without its events: cheap to list."""

    number: int
    ends: tuple[int, ...]
    """The offsets behind this commit, per partition."""
    rows: int
    total_rows: int
    """Rows of the stream up to and with this commit; what `ReadMaxRows` is counted in."""
    bound_us: int | None
    """Largest `_time` of the stream before this commit."""
    max_us: int | None
    """Largest `_time` of the stream with this commit."""
    min_us: int | None
    """Smallest `_time` within this commit: below `bound_us - late_after`, something in it is late."""
    written_us: int
    meta: dict[str, Any] | None
    bytes: int = 0
    """Size of its blocks as stored; what retention and compaction are counted in."""
    earliest_us: int | None = None
    """How far the stream was complete before this commit: what is older is late in it."""
    complete_us: int | None = None
    """How far it is complete with this commit. None: nothing was said, or it was written before this was stored; a
    reader that knows a `late_after` then goes by `bound_us` and `max_us`."""


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive events of one partition out of one commit."""

    partition: int
    start: int
    end: int
    commit: int
    bound_us: int | None
    written_us: int
    batch: pa.RecordBatch
    """Under the stream's newest schema."""
    offsets: pa.Array
    """Each row's own offset; not always dense, since compaction removes rows."""
    earliest_us: int | None = None
    """Of its commit."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where a stream begins and ends: offsets per partition, and numbers of commits."""

    starts: tuple[int, ...]
    ends: tuple[int, ...]
    first_commit: int
    next_commit: int
    rows: int
    """Rows ever appended: survives trimming."""
    bytes: int
    max_us: int | None
    complete_us: int | None = None
    """Of its newest commit."""


@dataclass(frozen=True, slots=True)
class Writer:
    """Who writes a log, where a log tells that across machines."""

    name: str
    """Another one for each opening."""
    by: str
    """For people: which process on which machine."""
    since_us: int
    silent_s: float | None
    """For how long nothing was heard of it; None: nothing yet, since there was somebody here to hear it."""

    @property
    def lives(self) -> bool:
        return self.silent_s is not None and self.silent_s < SILENT_S


@dataclass(frozen=True, slots=True)
class LogHealth:
    """How a log is, as far as this process knows without asking anybody."""

    kind: str
    """The backend's name."""
    addresses: tuple[str, ...] = ()
    away_us: int | None = None
    """Since when it takes nothing; None: as far as is known it does."""
    term: int = 0
    writer: Writer | None = None
    lag: int | None = None
    """Records of the journal that the index does not have yet; None: not known here."""
    void: int = 0
    """Records of the journal that do not count: of writers that were replaced, repeated, or of strangers."""
    claims: int = 0
    """How often a writer, or the same one in doubt, has claimed the log."""
    doubt_s: float = 0.0
    """How long this writer has not known what became of a record, all times together."""


Turn = Literal["now", "free", "standby"]
"""Whether one becomes the writer at once, only where nobody else writes, or waits until nobody does; where one folder
has one log its locks say that."""

SILENT_S = 10.0
"""A writer of which nothing was heard for so long is taken for dead: it is heard once a second."""


class LogReader(Protocol):
    """Reading; any process, any thread, any number of times."""

    @property
    def place(self) -> str:
        """Where the log lies; `opening.py` opens it there."""

    def streams(self) -> list[Stream]:
        """All streams that exist now, also those that another process has just made."""

    def find(self, name: str, epoch: str | None = None) -> Stream | None:
        """The stream of that name and epoch; without an epoch the one made last."""

    def versions(self, stream: Stream) -> list[Version]:
        """All versions of its schema, oldest first."""

    def bounds(self, stream: Stream) -> Bounds:
        """Where it begins and ends now. Cheap: the flows ask every few milliseconds."""

    def commits(self, stream: Stream, start: int, end: int | None = None, limit: int | None = None) -> list[Commit]:
        """Commits numbered from `start` (inclusive) to `end` (exclusive), oldest first, at most `limit`."""

    def last_commit(self, stream: Stream, below: int | None = None) -> Commit | None:
        """The newest commit (numbered below `below`), or None in an empty stream."""

    def commit_within(self, stream: Stream, start: int, rows: int) -> int:
        """The number behind the last commit such that [start, number) holds at most `rows` rows, or those of its first
        commit that has any, if they are more: whoever waits for rows never stands still before a large commit. A pure
        function of its arguments and the log: Spark asks in different processes."""

    def read(
        self,
        stream: Stream,
        partition: int,
        start: int,
        end: int | None = None,
        columns: Sequence[str] | None = None,
    ) -> Iterator[Block]:
        """Blocks of a partition that hold offsets in [start, end), in order, cut to that range; without `end`, up to
        what is committed when it is called. `columns`: only these are decoded, in this order. `start` below the
        beginning, or inside what compaction has merged, raises `PositionGoneError`."""

    def memory(self) -> Mapping[str, Any]:
        """What this log's control stream holds now: the newest value of each key; `control_keys.py` says which. To be
        told when one changes, see `ControlFollower`."""

    def revision(self) -> int:
        """A number that differs when anything was committed since the last call in this thread. Cheap enough to ask
        every 5 ms, and asked no harder than that."""

    def writer(self) -> Writer | None:
        """Who writes this log, or wrote it last; None: nobody has, or its kind tells only by locks of its folder."""

    def health(self) -> LogHealth:
        """For people and for metrics. Waits for nothing but the index."""

    def see_all(self) -> None:
        """See that what is asked from now on finds all that was committed before this call, also on other machines.
        A reader that follows may be behind by some milliseconds."""

    def close(self) -> None: ...


class Log(LogReader, Protocol):
    """Writing; one process, one thread at a time."""

    @property
    def term(self) -> int:
        """The number of this writer; raised by each opening for writing."""

    @property
    def replicated(self) -> bool:
        """Whether what it acknowledges is on two machines at least."""

    @property
    def problem(self) -> PenstockError | None:
        """Why nothing can be written now, as far as that is known without trying; None: it may be."""

    def abandon(self) -> None:
        """Called by whoever ends, from another thread: a commit whose outcome is not known raises
        `OutcomeUnknownError` instead of finding it out."""

    @property
    def answer_s(self) -> float:
        """How long whoever asks for a commit waits for it at most, before it is told that nobody knows."""

    def check_turn(self) -> None:
        """Raises `StaleTermError` when it is known that another writer has taken over. Any thread may ask, and waits
        for nothing."""

    def memory(self) -> ControlMap:
        """The same map at each call, which each commit changes before `append` returns."""

    def create(self, spec: StreamSpec) -> Stream:
        """Make a stream, or find it and add a version of its schema. Raises `SchemaChangeError` when the stored
        events cannot be read under the new schema. Idempotent."""

    def drop(self, stream: Stream) -> None:
        """Remove a stream of an epoch that is no longer wanted, in slices."""

    def append(
        self, appends: Sequence[Append], remember: Mapping[str, Any | None] | None = None
    ) -> list[Appended | Exception]:
        """One commit with all of them, durable when it returns; one result each, in order.

        A `ConditionError`, and a producer's `FencedError` or `SequenceGapError`, is returned in its place and holds
        up nothing else. What fails the whole commit is raised: `DiskFullError` (later appends may succeed),
        `StaleTermError` (stop). An append whose batch has no rows still makes a commit of its stream (a frontier
        moved, a position was stored). Appends whose every event is a duplicate and which carry no `meta` make none.
        `remember` is the same as a first append that only sets these keys.
        """

    def trim(self, stream: Stream, before: int) -> int:
        """Remove whole commits numbered below `before`, oldest first, in slices under 5 ms; returns how many rows
        went. The newest commit always stays."""

    def compact(self, stream: Stream, before: int) -> int:
        """Merge the commits numbered below `before` into one that holds the newest event per `compact_by` key,
        without tombstones (changelog: `_op` is delete; control: value is null); returns how many rows went.

        It has the number, the ends and the meta of the newest commit that went into it, and its blocks, one or more,
        begin where the stream begins: reading from there gives all there is, and reading from within is refused,
        because the deletes that a reader there would need are gone. Its rows keep their offsets."""

    def trimming(self, stream: Stream, before: int) -> Iterator[int]:
        """`trim`, one slice at each step, for an owner that commits in between; gives the rows that went."""

    def compacting(self, stream: Stream, before: int) -> Iterator[int]:
        """`compact`, one slice at each step. What there is to read is read by this call, which any thread may make;
        the steps are the writer's."""

    def dropping(self, stream: Stream) -> Iterator[int]:
        """`drop`, one slice at each step. With the first the stream is gone for readers."""

    def tidying(self) -> Iterator[int]:
        """What the owner does when there is nothing else to do, one slice at each step: finish what a crash has
        interrupted, compact the control stream, cut back files."""

    def known_ids(self, stream: Stream) -> KnownIds | None:
        """The ids of a `unique` stream that are known now; None for another, and before they are loaded. Any thread may
        ask, and waits for nothing."""

    def horizon(self, stream: Stream) -> int:
        """How many of the newest ids of a `unique` stream are remembered; 0 for another. Loads them if need be, as the
        first append would: a second or so per million, so an edge asks before it opens its door."""
