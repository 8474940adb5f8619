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
   damaged is made anew. While a process of the folder keeps it as new as the journal (`kafka_keeper.py`) nobody else
   asks Kafka.
4. A writer beats in the journal while it is idle, and looks for another's beats before it claims (`kafka_turn.py`).
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qs, quote, urlsplit

import msgspec
import pyarrow as pa

from penstock.clock import Clock, rfc3339
from penstock.errors import FolderMismatchError, LogUnavailableError, OutcomeUnknownError, PenstockError, StaleTermError
from penstock.log import index_snapshot
from penstock.log.index.file import failures
from penstock.log.index.reader import IndexedReader, PlacedRange
from penstock.log.index.tables import BlockPlace, Index, Stored, Tables
from penstock.log.index.writer import IndexedLog
from penstock.log.kafka_settings import ClientSettings, client_settings
from penstock.log.kafka_topics import REPLICAS, TopicFacts, differences, refuse
from penstock.log.log import CONTROL, Block, LogHealth, Stream, Turn, Writer
from penstock.log.logs.kafka_cluster import Cluster, DoubtError
from penstock.log.logs.kafka_index import IndexApplier, JournalIndex, KafkaPlace, LogJournal, note_state
from penstock.log.logs.kafka_journal import Record, State, TableCall, recording
from penstock.log.logs.kafka_keeper import PULSE_S
from penstock.log.logs.kafka_turn import BEAT_S, Heart, await_turn
from penstock.log.topic import Topic

T = TypeVar("T")

_log = logging.getLogger(__name__)

_FAREWELL_S = 1.0
_AGAIN_S = 0.2
_CLAIM_S = 20.0
"""A topic that was just made may have no leader for a while."""
HOUSE_S = 5.0
SNAPSHOT_RECORDS = 100_000
"""Records of the journal after which its index is stored again."""
_GONE = "gone"
"""The key of `meta` under which an index keeps which bytes may go, and when."""
KEPT_S = 600.0
"""How long bytes stay in Kafka that nobody refers to any more, so that whoever reads them is not robbed."""


def place_of(servers: str, app: str, log: str, index: Path) -> str:
    """The place of a log on Kafka whose index lies at a path.

    >>> place_of("localhost:9092", "shop", "edge", Path("/data/edge-index.db"))
    'kafka://localhost:9092/shop/edge?index=/data/edge-index.db'
    """
    return f"kafka://{servers}/{app}/{log}?index={quote(str(index.absolute()))}"


def parse(place: str) -> KafkaPlace:
    parts = urlsplit(place)
    app, log = parts.path.strip("/").split("/")
    return KafkaPlace(parts.netloc, app, log, Path(parse_qs(parts.query)["index"][0]), parts.scheme == "kafkas")


def _folder_id(folder: Path) -> str:
    """What tells this data folder from every other one, also from a copy of it on another machine."""
    path = folder / "folder.id"
    folder.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError), path.open("x") as file:
        file.write(secrets.token_hex(8))
    return f"{socket.gethostname()}/{path.read_text()}"


# The database


class JournalIndexWriter(JournalIndex):
    """The index as the log's writer has it: every transaction is a record of the journal first."""

    answer_s = 4.5
    """A little longer than a record may take: a healthy cluster answers in milliseconds."""

    def __init__(
        self, journal: LogJournal, clock: Clock, turn: Turn = "now", tell: Callable[[str], None] = _log.warning
    ) -> None:
        super().__init__(journal)
        self._clock = clock
        self._writer = secrets.token_hex(8)
        self._folder = _folder_id(journal.where.index.parent)
        self._by = f"process {os.getpid()} on {socket.gethostname()}, data folder {journal.where.index.parent.parent},"
        self._turn, self._tell = turn, tell
        journal.cluster.make_topic(journal.where.journal, 1)
        self.connection = journal.open_index()
        self.tables = self.recorded = Tables(self.connection, self.name)
        """As the index has them; and as a transaction changes them, which is written down."""
        self._judge = IndexApplier(journal, self.connection)
        self._busy = threading.Lock()
        """Held by whoever writes to the journal: a commit, or a beat between two of them."""
        self._wrote = 0.0
        self._away_us: int | None = None
        self._doubt_s = 0.0
        self._abandoned = False
        self._replaced, self._replaced_by = False, ""
        self._heart: Heart | None = None
        self._blocks: list[tuple[int, tuple[str, int, bytes | None, Any]]] = []
        self._claimed_again = False
        """The journal has a claim of ours that the index does not know yet."""
        self.copies = False
        """Whether this writer copies another log, and so may go on with a copy that was begun."""
        found = Index(self).meta().get(_GONE)
        self._gone: dict[str, int] = {} if found is None else msgspec.json.decode(found)
        """When the first records of a partition may go, by this machine's clock."""
        self._stored_at: int | None = None
        """Up to where in the journal the newest snapshot goes; None: not asked yet."""
        self._house: Heart | None = None

    def refresh(self) -> None:
        """Nobody else changes it as long as this writer's claim counts."""

    def stage(self, payload: int, topic: str, partition: int, data: Any, offsets: bytes | None) -> None:
        """Bytes that are written before the transaction ends."""
        self._blocks.append((payload, (topic, partition, offsets, data)))

    # Whose turn it is

    def claim(self, app: str) -> int:
        deadline = time.monotonic() + _CLAIM_S
        while True:
            await_turn(self._turn, self._folder, self.journal.where.journal, self._newest, self._tell)
            with self._busy, self._immediate():
                tables, calls = recording(self.tables)
                term = tables.claim(app, copies=self.copies)
                state = self._judge.state()
                try:
                    record = self._record(state.claim + 1, 0, calls)
                    offset = self._write(record)
                    after = self._judged(state, offset, record)
                except DoubtError as error:  # one that arrives late is our own, and replaces nobody else
                    if time.monotonic() < deadline:
                        continue
                    raise LogUnavailableError(
                        "Kafka does not take the claim of this writer", detail=str(error), hint="see whether it runs"
                    ) from error
                if after.writer == self._writer:
                    note_state(self.tables, after)
                    self.connection.execute("COMMIT")
                    self._hold()
                    return term

    def _newest(self) -> State:
        self._judge.up_to(self.journal.end())
        return self._judge.state()

    def live(self) -> None:
        """Show from now on that this writer lives: to the processes of its folder, and in the journal."""
        self._heart = Heart(self._pulse, PULSE_S)
        self._house = Heart(self._keep_house, HOUSE_S)

    def _hold(self) -> None:
        """Where an older writer of the folder still lives it is left to that one: both apply to the same index."""
        if not self._replaced and self.journal.written.take():
            self.journal.written.pulse(time.monotonic_ns())

    def _pulse(self) -> None:
        if self._replaced:
            return
        self._hold()
        if time.monotonic() - self._wrote >= BEAT_S:
            self.beat()

    def beat(self, *, left: bool = False) -> None:
        """Say in the journal that this writer lives, unless it is just writing; and hear whether another claimed."""
        with self._unless_busy(left) as free:
            state = self._judge.state() if free else None
            if state is not None and state.writer != self._writer:  # one of this folder has claimed
                self._be_replaced(state)
        if state is None or self._replaced:
            return
        record = msgspec.structs.replace(self._record(state.claim, state.number, []), beat=True, left=left)
        try:
            offset = self._write(record, _FAREWELL_S if left else None)
            with self._unless_busy(left) as free:
                if free and (state := self._judge.state()).offset <= offset:
                    after = self._judged(state, offset, record)
                    if after.writer == self._writer:
                        self._judge.remember(after)
                    else:
                        self._be_replaced(after)
        except (DoubtError, LogUnavailableError):
            pass  # the next one is as good

    @contextmanager
    def _unless_busy(self, wait: bool) -> Iterator[bool]:
        """Whether nobody writes to the journal within this block; a moment is waited for that, if so asked."""
        free = self._busy.acquire(timeout=_FAREWELL_S) if wait else self._busy.acquire(blocking=False)
        try:
            yield free
        finally:
            if free:
                self._busy.release()

    def _be_replaced(self, newest: State) -> None:
        """From here on nobody takes this process's word that the index is new."""
        self._replaced, self._replaced_by = True, newest.by
        self.journal.written.release()

    def check_turn(self) -> None:
        if self._replaced:
            raise self._stale(self._replaced_by)

    # Transactions

    @contextmanager
    def transaction(self, term: int | None = None) -> Iterator[Tables]:
        with failures(self.path), self._busy:
            self._blocks.clear()
            if self._claimed_again:
                self._judge.up_to(self.journal.end())
                self._claimed_again = False
            with self._immediate():
                self.check_turn()
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
        state = self._judge.state()
        record = self._record(state.claim, state.number + 1, calls)
        try:
            offset = self._write(record)
        except DoubtError:
            ours, newest = self._found_out(state, record, self._claim_in_doubt(state))
        else:
            behind = state.behind(offset, record)
            ours, newest = (behind, behind) if offset == state.offset else self._found_out(state, record, offset)
        if newest.writer != self._writer:
            self._be_replaced(newest)
        if ours is not None:
            note_state(self.tables, ours if self._replaced else newest)
        elif self._replaced:
            raise self._stale(newest.by)
        else:
            self._claimed_again = True
            raise LogUnavailableError(
                "Kafka has not taken what was sent", detail="it was away for a while", hint="send again"
            )

    def _stale(self, by: str) -> StaleTermError:
        newer = f"; {by} writes it" if by else ""
        return StaleTermError(
            f"another writer has taken over '{self.name}'",
            detail=f"the journal '{self.journal.where.journal}' has a newer claim{newer}",
            hint="stop this process",
        )

    def _write(self, record: Record, within_s: float | None = None) -> int:
        try:
            offset = self.journal.write(record, within_s)
        except DoubtError:
            self._away_us = self._away_us or self._clock.now_us()
            raise
        self._wrote, self._away_us = time.monotonic(), None
        return offset

    def _judged(self, state: State, offset: int, record: Record) -> State:
        """The state behind a record of ours, which stands at an offset."""
        if offset == state.offset:
            return state.behind(offset, record)
        for at, other in self.journal.records(state.offset, offset + 1):
            state = state.behind(at, other)
        if state.offset <= offset:
            raise LogUnavailableError("the journal cannot be read back", hint="try again")
        return state

    def _claim_in_doubt(self, state: State) -> int:
        """Claim again, so that what stands behind the claim is void; gives where it stands."""
        claim = self._record(state.claim + 1, 0, [])
        began = time.monotonic()
        try:
            while True:
                self._refuse_when_abandoned()
                try:
                    return self._write(claim)
                except DoubtError:
                    time.sleep(_AGAIN_S)
        finally:
            self._doubt_s += time.monotonic() - began

    def _refuse_when_abandoned(self) -> None:
        if self._abandoned:
            raise OutcomeUnknownError(
                "this process ends, and Kafka has not said whether this was written",
                hint="send it again under the same event id, Idempotency-Key or Producer-Seq: then it is taken once",
            )

    def abandon(self) -> None:
        self._abandoned = True

    @property
    def problem(self) -> LogUnavailableError | None:
        """Told by the last beat or record."""
        if (since := self._away_us) is None:
            return None
        return LogUnavailableError(
            f"Kafka has not answered since {rfc3339(since)}",
            detail=self.journal.where.servers,
            hint="see whether it runs, and whether this machine reaches it",
        )

    def health(self) -> LogHealth:
        return replace(super().health(), away_us=self._away_us, doubt_s=self._doubt_s)

    def _found_out(self, state: State, record: Record, last: int) -> tuple[State | None, State]:
        """The state right behind a record of ours, None: it does not count; and the state up to and with an offset. It
        is not given up: whoever asked must not be told that nothing was taken as long as that is not known."""
        while True:
            try:
                found, at = self._found(state, record, last)
                if at.offset > last:
                    return found, at
            except LogUnavailableError:
                self._refuse_when_abandoned()
            time.sleep(_AGAIN_S)

    def _found(self, state: State, record: Record, last: int) -> tuple[State | None, State]:
        ours = None
        mine = (record.claim, record.writer, record.number)
        for at, other in self.journal.records(state.offset, last + 1):
            counts = other is not None and state.counts(other)
            state = state.behind(at, other)
            if counts and other is not None and (other.claim, other.writer, other.number) == mine:
                ours = state
        return ours, state

    def _record(self, claim: int, number: int, calls: list[TableCall]) -> Record:
        by, folder = ("", "") if number else (self._by, self._folder)
        return Record(claim, number, self._writer, calls, by=by, at_us=self._clock.now_us(), folder=folder)

    def writer(self) -> Writer:
        since_us = self._judge.state().since_us
        return Writer(self._writer, self._by, since_us, 0.0)

    # Letting go

    def forget(self, topic: str, partition: int) -> None:
        """Some of the first records of a partition are wanted no more. Inside a transaction, which notes it: whoever
        writes next must know it too."""
        self._gone.setdefault(f"{topic}/{partition}", self._clock.now_us() + round(KEPT_S * 1e6))
        self.tables.note(_GONE, msgspec.json.encode(self._gone).decode())

    def tidy(self) -> None:
        """Let go of what lies in Kafka and was removed from the index a while ago."""
        index, cluster, now_us = Index(self), self.journal.beats, self._clock.now_us()
        due = [place for place, due_us in list(self._gone.items()) if due_us <= now_us]
        for place in due:
            topic, _, partition = place.rpartition("/")
            first = index.first_position(topic, int(partition))
            if first is not None:
                cluster.drop_records(topic, int(partition), first)
            elif topic not in {self.journal.where.topic(row[1], row[2]) for row in index.streams()}:
                cluster.drop_topics([topic])
        if due:
            with self._busy, self._immediate():
                for place in due:
                    self._gone.pop(place, None)
                self.tables.note(_GONE, msgspec.json.encode(self._gone).decode())
                self.connection.execute("COMMIT")

    def _keep_house(self) -> None:
        """Now and then, beside the commits: let bytes go, and store the index."""
        if self._replaced or self.problem is not None:
            return
        try:
            self.tidy()
            self.snapshot()
        except (DoubtError, PenstockError, sqlite3.Error) as error:
            _log.warning("the log's house could not be kept, and is next time: %s", error)

    def snapshot(self) -> bool:
        """Store the index if that was long ago; then the journal before the snapshot before it goes. Whether it was."""
        where, cluster = self.journal.where, self.journal.beats
        behind = self._noted().offset
        if self._stored_at is None:
            newest = index_snapshot.find(cluster, where.snapshots)
            self._stored_at = 0 if newest is None else newest[1].journal
        if behind - self._stored_at < SNAPSHOT_RECORDS:
            return False
        self._stored_at = index_snapshot.renew(cluster, where.snapshots, where.journal, where.index)
        return True

    def close(self) -> None:
        if self._house is not None:
            self._house.close()
        if self._heart is not None:
            self._heart.close()
            self.beat(left=True)
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


def open_log(place: str, app: str, clock: Clock, turn: Turn = "now") -> IndexedLog:
    where = parse(place)
    database = JournalIndexWriter(LogJournal(where), clock, turn)
    try:
        log = IndexedLog(place, database, TopicPayloads(where, database), app, clock)
        topics = _topics(where, log)
        refuse([found for topic in topics for found in differences(topic)], where.servers)
        log.replicated = all(topic.replicated for topic in topics)
        database.live()
        return log
    except BaseException:
        database.close()
        raise


def open_copy(place: str, app: str, clock: Clock) -> tuple[JournalIndexWriter, TopicPayloads]:
    where = parse(place)
    database = JournalIndexWriter(LogJournal(where), clock)
    try:
        database.copies = True
        database.claim(app)
        return database, TopicPayloads(where, database)
    except BaseException:
        database.close()
        raise


def _topics(where: KafkaPlace, log: IndexedReader) -> list[TopicFacts]:
    """Those of a log, as they are."""
    streams = [where.topic(stream.name, stream.epoch) for stream in log.streams() if stream.name != CONTROL]
    journal = log.database.journal if isinstance(log.database, JournalIndex) else None
    assert journal is not None
    return journal.cluster.topics([where.journal, *streams])


def mend(place: str) -> list[str]:
    """Give the topics of a log the settings that they should have; says what was changed."""
    where = parse(place)
    with closing(open_reader(place)) as reader:
        found = [one for topic in _topics(where, reader) for one in differences(topic) if one.setting != REPLICAS]
        with closing(Cluster(where.servers, client_settings(secure=where.secure))) as cluster:
            for one in found:
                cluster.set_topic(one.topic, {one.setting: one.wanted})
    return [f"'{one.topic}' has {one.setting}={one.wanted} now; it had {one.found}" for one in found]


def open_reader(place: str, *, keep: bool = False) -> IndexedReader:
    where = parse(place)
    database = JournalIndex(LogJournal(where), keep=keep)
    return IndexedReader(place, database, TopicPayloads(where, database))


def access(place: str) -> ClientSettings:
    """What a process on another machine needs besides the place."""
    return client_settings(secure=parse(place).secure)


def read_placed(
    stream: Stream, placed: PlacedRange, columns: Sequence[str] | None, given: ClientSettings | None
) -> Iterator[Block]:
    cluster = _readers_cluster(parse(stream.place).servers, given or access(stream.place))

    def fetch(topic: str, partition: int, position: int) -> tuple[Any, bytes | None] | None:
        found = cluster.get(topic, partition, position)
        return None if found is None else (found.value, found.key)

    return placed.read(stream, columns, fetch)


def _readers_cluster(servers: str, settings: ClientSettings) -> Cluster:
    """One for as long as a process of Spark lives, which reads range after range: a new one is slow to begin."""
    known = _clusters().get(servers)
    if known is None or known[0] != settings:
        known = _clusters()[servers] = (settings, Cluster(servers, settings))
    return known[1]


@cache
def _clusters() -> dict[str, tuple[ClientSettings, Cluster]]:
    """By their servers, and with what they were opened."""
    return {}


def open_topic(place: str, name: str, partitions: int, *, compacted: bool, retention_ms: int) -> Topic:
    from penstock.log.published_topic import PublishedTopic

    cluster = Cluster(parse(place).servers, access(place))
    return PublishedTopic(cluster, name, partitions, compacted=compacted, retention_ms=retention_ms)


def check_place(place: str, app: str) -> None:
    where = parse(place)
    with closing(JournalIndex(LogJournal(where))) as database:
        owner = Index(database).meta().get("app")
    if owner not in (None, app):
        raise FolderMismatchError(
            f"the topics of '{where.app}' on {where.servers} belong to the app '{owner}', not to '{app}'",
            hint="give the app another name",
        )
