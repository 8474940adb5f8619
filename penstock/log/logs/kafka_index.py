"""The index of a log on Kafka: a file that follows the journal, and may be lost at any time.

1. Every record of the journal that counts is applied once, in order, with the offset behind it in one transaction.
2. What another process has applied is passed over; a file that is missing, damaged or ahead of its journal is set aside
   and made anew.
3. A question sees all that was acknowledged before it: Kafka is asked for the journal's end first, unless somebody
   keeps the index as new as that (`kafka_keeper.py`).
"""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from penstock.errors import CorruptBlockError, LogUnavailableError
from penstock.log.index import file
from penstock.log.index.file import BUSY_S, IndexFile, failures
from penstock.log.index.tables import Look, Tables, Values
from penstock.log.index_snapshot import restore
from penstock.log.kafka_settings import client_settings
from penstock.log.log import LogHealth, Writer
from penstock.log.logs.kafka_cluster import Cluster
from penstock.log.logs.kafka_journal import Record, State, decode, encode, replay
from penstock.log.logs.kafka_keeper import PULSE_S, Hold, IndexKeeper

T = TypeVar("T")

_log = logging.getLogger(__name__)

_HOLDS = (".writers", ".keeper")
_STATE = "journal"
"""The key of `meta` under which an index keeps how far in the journal it is."""
_APPLIED_AT_ONCE = 1_000
_QUIET = 1_000
"""Records that change nothing, which are noted in the index together: each note would wake whoever follows it."""


class KafkaPlace(msgspec.Struct, frozen=True):
    """A place of a log on Kafka, taken apart."""

    servers: str
    app: str
    log: str
    index: Path
    secure: bool = False

    @property
    def journal(self) -> str:
        return f"{self.app}.{self.log}.journal"

    @property
    def snapshots(self) -> str:
        """The topic in which the index is kept too, now and then."""
        return f"{self.app}.{self.log}.index"

    def topic(self, stream: str, epoch: str) -> str:
        return f"{self.app}.{stream}.{epoch}"


class LogJournal:
    """The journal of one log, and the index that follows it."""

    def __init__(self, where: KafkaPlace) -> None:
        self.where = where
        settings = client_settings(secure=where.secure)
        self.cluster, self.beats = (Cluster(where.servers, settings) for _ in range(2))
        """Beats have clients of their own: one that waits for its answer holds up no commit."""
        self.written, self.kept = (Hold(where.index.with_name(where.index.name + end)) for end in _HOLDS)
        """Whether the log's writer, or a keeper, is at work on this folder."""
        self._applier: IndexApplier | None = None

    def close(self) -> None:
        self.cluster.close()
        self.beats.close()
        self.written.release()
        if self._applier is not None:
            self._applier.connection.close()

    def end(self) -> int:
        return self.cluster.end(self.where.journal)

    def records(self, start: int, end: int) -> Iterator[tuple[int, Record | None]]:
        for message in self.cluster.read(self.where.journal, 0, start, end):
            yield message.offset, decode(message.value)

    def write(self, record: Record, within_s: float | None = None) -> int:
        cluster = self.beats if record.beat else self.cluster
        return cluster.write([(self.where.journal, 0, None, encode(record))], within_s)[0]

    def is_kept_here(self) -> bool:
        """Whether the index is as new as any acknowledgement, as far as a process of this folder can know."""
        return self.written.look() is not None or self.kept.look() is not None

    def follow(self, wait_s: float) -> State:
        """Called by a keeper: apply what comes within a time; the first call applies all that is there."""
        if self._applier is None:
            self._applier = IndexApplier(self, self.open_index())
            self._applier.up_to(self.end())
        applier = self._applier
        at = applier.state().offset
        if messages := self.cluster.follow(self.where.journal, 0, at, wait_s):
            applier.take([(message.offset, decode(message.value)) for message in messages], at)
        return applier.state()

    def lag(self) -> int:
        behind = 0 if self._applier is None else self._applier.state().offset
        return max(0, self.cluster.known_end(self.where.journal) - behind)

    # The index

    def open_index(self) -> sqlite3.Connection:
        """A connection that writes the index; one that is missing, damaged, of another cluster or ahead of the journal
        is made anew."""
        path = self.where.index
        path.parent.mkdir(parents=True, exist_ok=True)
        begin, end = self.cluster.bounds(self.where.journal)
        for _ in range(3):
            try:
                with _alone(path):
                    if not path.exists() and end:
                        restore(self.cluster, self.where.snapshots, path)
                    connection = _opened(path)
                known, end = state_of(connection).offset, self.end()
                if known < begin:
                    connection.close()
                    _log.warning("the index '%s' is older than its journal and made anew", path)
                    _set_aside(path)
                    continue
                there = self.cluster.id()
                before = _cluster_of(connection, there)
                if known <= end and before == there:
                    return connection
                if before != there:
                    _log.warning(
                        "the index '%s' is of the Kafka cluster %s, and this is %s: it is made anew",
                        path,
                        before,
                        there,
                    )
                else:
                    _log.error(
                        "KAFKA HAS LOST WHAT IT ACKNOWLEDGED: the journal '%s' ends at %d, and the index knows it up to"
                        " %d; it knew %s. The index is set aside as '%s.aside', and a new one is made of what is left",
                        self.where.journal, end, known, _known_of(connection), path,
                    )  # fmt: skip
                connection.close()
            except sqlite3.OperationalError:
                raise
            except sqlite3.DatabaseError as error:
                _log.warning("the index '%s' is damaged and made anew: %s", path, error)
            _set_aside(path)
        raise LogUnavailableError("the index of the log cannot be made", detail=str(path), hint="try again")


class IndexApplier:
    """Brings an index up to its journal. Records that change nothing are remembered here and noted in the index now and
    then: a note wakes whoever follows it."""

    def __init__(self, journal: LogJournal, connection: sqlite3.Connection) -> None:
        self.journal = journal
        self.connection = connection
        self.tables = Tables(connection, str(journal.where.index))
        self._base, self._beyond = State(), State()
        """What the index had noted, and the state behind it and behind records that change nothing."""

    def state(self) -> State:
        """How far the journal was judged. The index is asked first: another process may have applied more, or it was
        made anew."""
        noted = state_of(self.connection)
        return self._beyond if self._base.offset <= noted.offset < self._beyond.offset else noted

    def remember(self, state: State) -> None:
        """The journal up to here holds nothing that the index does not have."""
        self._base, self._beyond = state_of(self.connection), state

    def up_to(self, end: int) -> None:
        """Apply what the journal has up to an offset."""
        while (at := self.state().offset) < end:
            last = min(end, at + _APPLIED_AT_ONCE)
            self.take(list(self.journal.records(at, last)), at)
            if self.state().offset < last:
                raise _lost(self.journal.where, at, last)

    def take(self, records: Sequence[tuple[int, Record | None]], at: int) -> None:
        """Apply records from an offset on; those that another process was quicker to apply are passed over."""
        if self._are_quiet(records, at):
            return
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            state = self.state()
            if state.offset < at:  # the index was made anew
                self.connection.execute("ROLLBACK")
                return
            for offset, record in records:
                if offset < state.offset:
                    continue
                if record is not None and state.counts(record):
                    replay(record, self.tables)
                state = state.behind(offset, record)
            note_state(self.tables, state)
            self.connection.execute("COMMIT")
        except BaseException:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
            raise

    def _are_quiet(self, records: Sequence[tuple[int, Record | None]], at: int) -> bool:
        """Whether they change nothing, and so few have come that they need not be noted."""
        state = self.state()
        if state.offset != at or at + len(records) - state_of(self.connection).offset > _QUIET:
            return False
        for offset, record in records:
            if state.counts(record):
                return False
            state = state.behind(offset, record)
        self.remember(state)
        return True


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


def _cluster_of(connection: sqlite3.Connection, there: str) -> str:
    """The cluster whose journal an index follows; one that follows none yet follows that one from now on."""
    rows = connection.execute("SELECT value FROM meta WHERE key = 'cluster'").fetchall()
    if rows:
        return str(rows[0][0])
    connection.execute("INSERT OR REPLACE INTO meta VALUES ('cluster', ?)", (there,))
    return there


def _known_of(connection: sqlite3.Connection) -> str:
    """How many commits of each stream an index knows, in words."""
    sql = "SELECT name, max(number) + 1 FROM commits JOIN streams ON id = stream WHERE dropped = 0 GROUP BY id"
    return ", ".join(f"{number} commits of '{name}'" for name, number in connection.execute(sql)) or "no commits"


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """No two processes of a folder make an index at one time."""
    with path.with_name(f"{path.name}.making").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _set_aside(path: Path) -> None:
    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
        with suppress(FileNotFoundError):
            path.with_name(name).rename(path.with_name(f"{name}.aside"))


def state_of(connection: sqlite3.Connection) -> State:
    rows = connection.execute("SELECT value FROM meta WHERE key = ?", (_STATE,)).fetchall()
    return msgspec.json.decode(rows[0][0], type=State) if rows else State()


def note_state(tables: Tables, state: State) -> None:
    tables.note(_STATE, msgspec.json.encode(state).decode())


def _lost(where: KafkaPlace, start: int, end: int) -> CorruptBlockError:
    return CorruptBlockError(
        f"the journal '{where.journal}' has lost records between {start} and {end}",
        detail=where.servers,
        hint="restore the topic, or begin with an empty Kafka",
    )


class JournalIndex(IndexFile):
    """The index as a process reads it."""

    def __init__(self, journal: LogJournal, *, keep: bool = False) -> None:
        super().__init__(journal.where.index)
        self.journal = journal
        self._catching_up = threading.Lock()
        self._applier: IndexApplier | None = None
        self._applied = -1
        self._pid = os.getpid()
        self._told: Writer | None = None
        self._told_at = -PULSE_S
        opened = journal.where
        self._keeper = (
            IndexKeeper(lambda: LogJournal(opened), journal.written, Hold(journal.kept.path)) if keep else None
        )

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
        """See that the index has all that was acknowledged before this call, unless somebody keeps it."""
        if not self.journal.is_kept_here():
            self.see_all()

    def see_all(self) -> None:
        end = self.journal.end()
        with self._catching_up:
            if self._pid != os.getpid():
                self._applier, self._applied, self._pid = None, -1, os.getpid()
            if end <= self._applied or (end == 0 and not self.path.exists()):
                return
            if self._applier is None:
                self._applier = IndexApplier(self.journal, self.journal.open_index())
            with failures(self.path):
                self._applier.up_to(end)
            self._applied = end

    def writer(self) -> Writer | None:
        now = time.monotonic()
        if now - self._told_at > PULSE_S:
            self._told, self._told_at = self._writer_now(), now
        return self._told

    def health(self) -> LogHealth:
        state, pulse = self._noted(), self.journal.written.look() or self.journal.kept.look()
        return LogHealth(
            "kafka",
            tuple(self.journal.where.servers.split(",")),
            term=self._term(),
            writer=self.writer(),
            lag=None if pulse is None else pulse.lag,
            void=state.void,
            claims=state.claim,
        )

    def _term(self) -> int:
        rows = super().rows("SELECT value FROM meta WHERE key = 'term'")
        return int(rows[0][0]) if rows else 0

    def _noted(self) -> State:
        rows = super().rows("SELECT value FROM meta WHERE key = ?", (_STATE,))
        return msgspec.json.decode(rows[0][0], type=State) if rows else State()

    def _writer_now(self) -> Writer | None:
        state = self._noted()
        if not state.writer:
            return None
        pulse = self.journal.written.look() or self.journal.kept.look()
        heard_ns = pulse.heard_ns if pulse is not None else 0
        silent_s = (time.monotonic_ns() - heard_ns) / 1e9 if heard_ns else None
        return Writer(state.writer, state.by, state.since_us, silent_s)

    def close(self) -> None:
        if self._keeper is not None:
            self._keeper.close()
        super().close()
        if self._applier is not None and self._pid == os.getpid():
            self._applier.connection.close()
            self._applier = None
        self.journal.close()
