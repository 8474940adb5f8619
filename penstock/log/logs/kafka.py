"""The log on Kafka, `kafka://host:9092/shop/edge?index=/data/edge-index.db`: Kafka is the disk, not the format.

Each log is a *journal*, a topic with one partition, `shop.edge.journal`, whose records are the changes of the index
(`kafka_journal.py`). The bytes of blocks are records of a topic for each stream and epoch, `shop.rsvps.4f0c...`; what
no record of the journal names does not exist. The keys of the control stream stand in the journal itself.

1. A commit writes its blocks, waits until they are there, and then writes one record of the journal: one record is
   atomic in Kafka, and so is a commit over several streams.
2. A writer acknowledges when its record stands in the journal right behind everything that it has judged, or when it
   has judged what stands before it. So whoever reads the journal finds the commit.
3. The index is an SQLite file that all processes of a data folder share. It is derived: whoever finds it behind the
   journal applies what is missing, each record with the offset behind it in one transaction, and one that is lost or
   damaged is made anew. While a writer lives on this machine nobody else needs to ask Kafka: the writer applies its
   record before it acknowledges it.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qs, quote, urlsplit

import msgspec
import pyarrow as pa

from penstock.clock import Clock
from penstock.errors import CorruptBlockError, FolderMismatchError, LogUnavailableError, StaleTermError
from penstock.log.index import file
from penstock.log.index.file import BUSY_S, IndexFile, failures
from penstock.log.index.reader import IndexedReader, PlacedRange
from penstock.log.index.tables import BlockPlace, Index, Look, Stored, Tables, Values
from penstock.log.index.writer import IndexedLog
from penstock.log.log import CONTROL, Block, Stream
from penstock.log.logs.kafka_cluster import Cluster, DoubtError
from penstock.log.logs.kafka_journal import Record, State, TableCall, decode, encode, recording, replay

T = TypeVar("T")

_log = logging.getLogger(__name__)

_STATE = "journal"
"""The key of `meta` under which an index keeps how far in the journal it is."""
_APPLIED_AT_ONCE = 1_000
_HOLD_TRIES = 100
_HOLD_S = 0.001
KEPT_S = 600.0
"""How long bytes stay in Kafka that nobody refers to any more, so that whoever reads them is not robbed."""


class KafkaPlace(msgspec.Struct, frozen=True):
    """A place of a log on Kafka, taken apart."""

    servers: str
    app: str
    log: str
    index: Path

    @property
    def journal(self) -> str:
        return f"{self.app}.{self.log}.journal"

    def topic(self, stream: str, epoch: str) -> str:
        return f"{self.app}.{stream}.{epoch}"


def place_of(servers: str, app: str, log: str, index: Path) -> str:
    """The place of a log on Kafka whose index lies at a path.

    >>> place_of("localhost:9092", "shop", "edge", Path("/data/edge-index.db"))
    'kafka://localhost:9092/shop/edge?index=/data/edge-index.db'
    """
    return f"kafka://{servers}/{app}/{log}?index={quote(str(index.absolute()))}"


def parse(place: str) -> KafkaPlace:
    parts = urlsplit(place)
    app, log = parts.path.strip("/").split("/")
    return KafkaPlace(parts.netloc, app, log, Path(parse_qs(parts.query)["index"][0]))


# The journal


class LogJournal:
    """The journal of one log, and the index that follows it."""

    def __init__(self, where: KafkaPlace) -> None:
        self.where = where
        self.cluster = Cluster(where.servers)
        self._writers = where.index.with_name(where.index.name + ".writers")
        self._held: int | None = None

    def close(self) -> None:
        self.cluster.close()
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def end(self) -> int:
        return self.cluster.end(self.where.journal)

    def records(self, start: int, end: int) -> Iterator[tuple[int, Record | None]]:
        for message in self.cluster.read(self.where.journal, 0, start, end):
            yield message.offset, decode(message.value)

    def write(self, record: Record) -> int:
        return self.cluster.write([(self.where.journal, 0, None, encode(record))])[0]

    # Whether a writer lives on this machine

    def hold(self) -> None:
        """Tell readers that the index is as new as any acknowledgement. Where an older writer of the folder still does,
        it is left to that one: both apply to the same index."""
        held = os.open(self._writers, os.O_RDWR | os.O_CREAT, 0o600)
        for _ in range(_HOLD_TRIES):
            with suppress(BlockingIOError):  # a reader is just looking, or an older writer is there
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._held = held
                return
            time.sleep(_HOLD_S)
        os.close(held)

    def is_written_here(self) -> bool:
        """Readers share their look, so that none takes another for a writer."""
        try:
            handle = os.open(self._writers, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(handle)
        return False

    # The index

    def open_index(self) -> sqlite3.Connection:
        """A connection that writes the index; one that is missing, damaged or ahead of the journal is made anew."""
        path = self.where.index
        path.parent.mkdir(parents=True, exist_ok=True)
        for _ in range(2):
            try:
                connection = _opened(path)
                known, end = state_of(connection).offset, self.end()
                if known <= end:
                    return connection
                connection.close()
                _log.error(
                    "the journal '%s' ends at %d and the index knows it up to %d: what stood between is lost, or it is"
                    " another cluster's; the index is set aside beside '%s'", self.where.journal, end, known, path
                )  # fmt: skip
            except sqlite3.OperationalError:
                raise
            except sqlite3.DatabaseError as error:
                _log.warning("the index '%s' is damaged and made anew: %s", path, error)
            _set_aside(path)
        raise LogUnavailableError("the index of the log cannot be made", detail=str(path), hint="try again")

    def catch_up(self, connection: sqlite3.Connection, end: int) -> None:
        """Apply what the journal has up to an offset."""
        tables = Tables(connection, str(self.where.index))
        while True:
            connection.execute("BEGIN IMMEDIATE")
            try:
                state = state_of(connection)
                if state.offset >= end:
                    connection.execute("ROLLBACK")
                    return
                last = min(end, state.offset + _APPLIED_AT_ONCE)
                begun = state.offset
                for offset, record in self.records(begun, last):
                    if record is not None and state.counts(record):
                        replay(record, tables)
                    state = state.behind(offset, record)
                if state.offset < last:
                    raise _lost(self.where, begun, last)
                tables.note(_STATE, msgspec.json.encode(state).decode())
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise


def _opened(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        connection.execute(f"PRAGMA page_size = {file.PAGE_BYTES}")
        connection.execute("PRAGMA journal_mode = WAL").fetchall()
        connection.execute("PRAGMA synchronous = NORMAL")  # what is lost is in the journal
        connection.execute(f"PRAGMA cache_size = -{file.CACHE_KIB}")
        connection.execute("BEGIN IMMEDIATE")
        Tables(connection, str(path)).make()
        connection.execute("COMMIT")
    except BaseException:
        connection.close()
        raise
    return connection


def _set_aside(path: Path) -> None:
    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
        with suppress(FileNotFoundError):
            path.with_name(name).rename(path.with_name(f"{name}.aside"))


def state_of(connection: sqlite3.Connection) -> State:
    rows = connection.execute("SELECT value FROM meta WHERE key = ?", (_STATE,)).fetchall()
    return msgspec.json.decode(rows[0][0], type=State) if rows else State()


def _lost(where: KafkaPlace, start: int, end: int) -> CorruptBlockError:
    return CorruptBlockError(
        f"the journal '{where.journal}' has lost records between {start} and {end}",
        detail=where.servers,
        hint="restore the topic, or begin with an empty Kafka",
    )


# The database


class JournalIndex(IndexFile):
    """The index as a process reads it."""

    def __init__(self, journal: LogJournal) -> None:
        super().__init__(journal.where.index)
        self.journal = journal
        self._catching_up = threading.Lock()
        self._applier: sqlite3.Connection | None = None
        self._applied = -1
        self._pid = os.getpid()

    def rows(self, sql: str, values: Values = ()) -> list[Any]:
        self.refresh()
        return super().rows(sql, values)

    def some(self, sql: str, values: Values, take: Callable[[Iterable[Any]], list[T]]) -> list[T]:
        self.refresh()
        return super().some(sql, values, take)

    def at_one_moment(self, work: Callable[[Look], Iterator[T]]) -> Iterator[T]:
        self.refresh()
        return super().at_one_moment(work)

    def refresh(self) -> None:
        """See that the index has all that was acknowledged before this call."""
        if self.journal.is_written_here():
            return
        end = self.journal.end()
        with self._catching_up:
            if self._pid != os.getpid():
                self._applier, self._applied, self._pid = None, -1, os.getpid()
            if end <= self._applied or (end == 0 and not self.path.exists()):
                return
            if self._applier is None:
                self._applier = self.journal.open_index()
            with failures(self.path):
                self.journal.catch_up(self._applier, end)
            self._applied = end

    def close(self) -> None:
        super().close()
        if self._applier is not None and self._pid == os.getpid():
            self._applier.close()
            self._applier = None
        self.journal.close()


class JournalIndexWriter(JournalIndex):
    """The index as the log's writer has it: every transaction is a record of the journal first."""

    def __init__(self, journal: LogJournal, clock: Clock) -> None:
        super().__init__(journal)
        self._clock = clock
        self._writer = secrets.token_hex(8)
        self._by = f"process {os.getpid()} on {socket.gethostname()}"
        journal.cluster.make_topic(journal.where.journal, 1)
        self.connection = journal.open_index()
        self.tables = self.recorded = Tables(self.connection, self.name)
        """As the index has them; and as a transaction changes them, which is written down."""
        self._blocks: list[tuple[int, tuple[str, int, bytes | None, Any]]] = []
        self._claimed_again = False
        """The journal has a claim of ours that the index does not know yet."""
        self._gone: dict[tuple[str, int], float] = {}
        """When the first records of a partition may go."""

    def refresh(self) -> None:
        """Nobody else changes it as long as this writer's claim counts."""

    def stage(self, payload: int, topic: str, partition: int, data: Any, offsets: bytes | None) -> None:
        """Bytes that are written before the transaction ends."""
        self._blocks.append((payload, (topic, partition, offsets, data)))

    def claim(self, app: str) -> int:
        journal = self.journal
        while True:
            journal.catch_up(self.connection, journal.end())
            with self._immediate():
                tables, calls = recording(self.tables)
                term = tables.claim(app)
                state = state_of(self.connection)
                try:
                    record = self._record(state.claim + 1, 0, calls)
                    offset = journal.write(record)
                    after = self._judged(state, offset, record)
                except DoubtError as error:
                    raise LogUnavailableError(
                        "Kafka does not take the claim of this writer", detail=str(error), hint="see whether it runs"
                    ) from error
                if after.writer == self._writer:
                    self._note(after)
                    self.connection.execute("COMMIT")
                    journal.hold()
                    return term

    @contextmanager
    def transaction(self, term: int | None = None) -> Iterator[Tables]:
        self._blocks.clear()
        if self._claimed_again:
            self.journal.catch_up(self.connection, self.journal.end())
            self._claimed_again = False
        with failures(self.path), self._immediate():
            if term is not None:
                self.tables.check_term(term)
            tables, calls = recording(self.tables)
            self.recorded = tables
            yield tables
            self._make_topics(calls)
            self._write_blocks(tables)
            if calls:
                self._write_record(calls)
            self.connection.execute("COMMIT")

    @contextmanager
    def _immediate(self) -> Iterator[None]:
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")

    def _make_topics(self, calls: Sequence[TableCall]) -> None:
        """A stream that comes to be has its topic before anybody hears of it."""
        for call in calls:
            if call.method == "add_stream" and call.arguments["spec"].name != CONTROL:
                spec, epoch = call.arguments["spec"], call.arguments["epoch"]
                self.journal.cluster.make_topic(self.journal.where.topic(spec.name, epoch), spec.partitions)

    def _write_blocks(self, tables: Tables) -> None:
        if not self._blocks:
            return
        try:
            offsets = self.journal.cluster.write([record for _, record in self._blocks])
        except DoubtError as error:  # nothing names them yet
            raise LogUnavailableError(
                "Kafka does not take what was sent", detail=str(error), hint="send again when it is back"
            ) from error
        places = zip(self._blocks, offsets, strict=True)
        tables.add_places([BlockPlace(number, to[0], to[1], offset) for (number, to), offset in places])

    def _write_record(self, calls: list[TableCall]) -> None:
        state = state_of(self.connection)
        record = self._record(state.claim, state.number + 1, calls)
        try:
            after = self._judged(state, self.journal.write(record), record)
            counted = after.number == record.number and after.claim == record.claim
        except DoubtError:
            after, counted = self._found_out(state, record)
        if after.writer != self._writer:
            raise StaleTermError(
                f"another writer has taken over '{self.name}'",
                detail=f"the journal '{self.journal.where.journal}' has a newer claim",
                hint="stop this process",
            )
        if not counted:
            self._claimed_again = True
            raise LogUnavailableError(
                "Kafka has not taken what was sent", detail="it was away for a while", hint="send again"
            )
        self._note(after)

    def _judged(self, state: State, offset: int, record: Record) -> State:
        """The state behind a record of ours, which stands at an offset."""
        if offset == state.offset:
            return state.behind(offset, record)
        for at, other in self.journal.records(state.offset, offset + 1):
            state = state.behind(at, other)
        if state.offset <= offset:
            raise LogUnavailableError("the journal cannot be read back", hint="try again")
        return state

    def _found_out(self, state: State, record: Record) -> tuple[State, bool]:
        """Whether a record stands in the journal that may have arrived: what stands behind a new claim is void."""
        claim = self._record(state.claim + 1, 0, [])
        while True:
            try:
                offset = self.journal.write(claim)
                break
            except DoubtError:
                time.sleep(0.2)
        counted = False
        for at, other in self.journal.records(state.offset, offset + 1):
            counted = counted or (other is not None and other.number == record.number and state.counts(other))
            state = state.behind(at, other)
        return state, counted

    def _record(self, claim: int, number: int, calls: list[TableCall]) -> Record:
        return Record(claim, number, self._writer, calls, by=self._by, at_us=self._clock.now_us())

    def _note(self, state: State) -> None:
        self.tables.note(_STATE, msgspec.json.encode(state).decode())

    def forget(self, topic: str, partition: int) -> None:
        """Some of the first records of a partition are wanted no more."""
        self._gone.setdefault((topic, partition), time.monotonic() + KEPT_S)

    def tidy(self) -> None:
        """Let go of what lies in Kafka and was removed from the index a while ago."""
        index, cluster, now = Index(self), self.journal.cluster, time.monotonic()
        for topic, partition in [place for place, due in self._gone.items() if due <= now]:
            del self._gone[topic, partition]
            first = index.first_position(topic, partition)
            if first is not None:
                cluster.drop_records(topic, partition, first)
            elif topic not in {self.journal.where.topic(row[1], row[2]) for row in index.streams()}:
                cluster.drop_topics([topic])

    def close(self) -> None:
        self.connection.close()
        super().close()


# The payloads


class TopicPayloads:
    """Bytes in the topic of their stream; those of the control stream in the journal and so in the index."""

    def __init__(self, where: KafkaPlace, database: JournalIndex) -> None:
        self._where = where
        self._database = database
        self._index = Index(database)
        self._last: int | None = None

    @property
    def _writer(self) -> JournalIndexWriter:
        assert isinstance(self._database, JournalIndexWriter), "a reader writes nothing"
        return self._database

    def put(self, stream: Stream, partition: int, data: pa.Buffer, offsets: bytes | None) -> int:
        number = (self._writer.tables.last_payload() if self._last is None else self._last) + 1
        if stream.name == CONTROL:
            self._writer.recorded.add_payload(number, data, offsets)
        else:
            topic = self._where.topic(stream.name, stream.epoch)
            self._writer.stage(number, topic, partition, data.to_pybytes(), offsets)
        self._last = number
        return number

    def get(self, block: Stored) -> tuple[Any, bytes | None] | None:
        place = self._index.place(block.payload)
        return None if place is None else self.fetch(*place[1:])

    def fetch(self, topic: str, partition: int, position: int) -> tuple[Any, bytes | None] | None:
        found = self._database.journal.cluster.get(topic, partition, position)
        return None if found is None else (found.value, found.key)

    def remove(self, numbers: Sequence[int]) -> None:
        for topic, partition in {place[1:3] for n in numbers if (place := self._index.place(n)) is not None}:
            self._writer.forget(topic, partition)
        self._writer.recorded.remove_payloads(numbers)
        self._writer.recorded.remove_places(numbers)


def open_log(place: str, app: str, clock: Clock) -> IndexedLog:
    where = parse(place)
    database = JournalIndexWriter(LogJournal(where), clock)
    try:
        return IndexedLog(place, database, TopicPayloads(where, database), app, clock)
    except BaseException:
        database.close()
        raise


def open_reader(place: str) -> IndexedReader:
    where = parse(place)
    database = JournalIndex(LogJournal(where))
    return IndexedReader(place, database, TopicPayloads(where, database))


def read_placed(stream: Stream, placed: PlacedRange, columns: Sequence[str] | None) -> Iterator[Block]:
    cluster = _readers_cluster(parse(stream.place).servers)

    def fetch(topic: str, partition: int, position: int) -> tuple[Any, bytes | None] | None:
        found = cluster.get(topic, partition, position)
        return None if found is None else (found.value, found.key)

    return placed.read(stream, columns, fetch)


@cache
def _readers_cluster(servers: str) -> Cluster:
    """One for as long as a process of Spark lives, which reads range after range: a new one is slow to begin."""
    return Cluster(servers)


def check_place(place: str, app: str) -> None:
    where = parse(place)
    with closing(JournalIndex(LogJournal(where))) as database:
        owner = Index(database).meta().get("app")
    if owner not in (None, app):
        raise FolderMismatchError(
            f"the topics of '{where.app}' on {where.servers} belong to the app '{owner}', not to '{app}'",
            hint="give the app another name",
        )
