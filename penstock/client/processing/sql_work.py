"""The statements of a work store, the same in SQLite and PostgreSQL; a backend adds connections and ownership."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from penstock.client.processing.work import (
    CallState,
    FailedTask,
    KeyChange,
    KeyMemory,
    LoggedCall,
    News,
    ProcessorQuestion,
    Progress,
    Received,
    Resumed,
    Task,
    canonical,
    difference,
    idempotency_key,
    lanes,
)
from penstock.errors import StoreMismatchError

FORMAT = 1
T = TypeVar("T")
_ENCODER = msgspec.json.Encoder()
_CHANGES = msgspec.json.Decoder(tuple[KeyChange, ...])

TABLES = """
CREATE TABLE IF NOT EXISTS penstock_processors (
    name TEXT PRIMARY KEY, format BIGINT NOT NULL, question TEXT, received TEXT, handled TEXT,
    batches BIGINT NOT NULL, tasks BIGINT NOT NULL, term BIGINT NOT NULL, holder TEXT, until_us BIGINT NOT NULL);
CREATE TABLE IF NOT EXISTS penstock_rows (
    processor TEXT NOT NULL, lane TEXT NOT NULL, content TEXT, version BIGINT NOT NULL, PRIMARY KEY (processor, lane));
CREATE TABLE IF NOT EXISTS penstock_batches (
    processor TEXT NOT NULL, batch BIGINT NOT NULL, position TEXT NOT NULL, received_us BIGINT NOT NULL,
    PRIMARY KEY (processor, batch));
CREATE TABLE IF NOT EXISTS penstock_tasks (
    processor TEXT NOT NULL, number BIGINT NOT NULL, batch BIGINT NOT NULL, lane TEXT NOT NULL, key TEXT NOT NULL,
    changes TEXT NOT NULL, tries BIGINT NOT NULL, due_us BIGINT NOT NULL, failed BIGINT NOT NULL, error TEXT,
    PRIMARY KEY (processor, number));
CREATE INDEX IF NOT EXISTS penstock_tasks_by_lane ON penstock_tasks (processor, lane, number);
CREATE INDEX IF NOT EXISTS penstock_tasks_by_batch ON penstock_tasks (processor, batch);
CREATE TABLE IF NOT EXISTS penstock_calls (
    processor TEXT NOT NULL, task BIGINT NOT NULL, number BIGINT NOT NULL, target TEXT NOT NULL, method TEXT NOT NULL,
    payload TEXT NOT NULL, state TEXT NOT NULL, answer TEXT, PRIMARY KEY (processor, task, number));
"""
_DUE = """
SELECT number, key, changes, tries FROM penstock_tasks t
WHERE processor = ? AND failed = 0 AND due_us <= ? AND NOT EXISTS (
    SELECT 1 FROM penstock_tasks e WHERE e.processor = t.processor AND e.lane = t.lane AND e.number < t.number)
ORDER BY number LIMIT ?
"""
_WAITING = """
SELECT count(*) FROM penstock_tasks t WHERE processor = ? AND failed = 0 AND NOT EXISTS (
    SELECT 1 FROM penstock_tasks e
    WHERE e.processor = t.processor AND e.lane = t.lane AND e.number < t.number AND e.failed = 1)
"""
_REMEMBER = """
INSERT INTO penstock_rows VALUES (?, ?, ?, ?)
ON CONFLICT (processor, lane) DO UPDATE SET content = excluded.content, version = excluded.version
"""
_INTEND = """
INSERT INTO penstock_calls VALUES (?, ?, ?, ?, ?, ?, 'open', NULL)
ON CONFLICT (processor, task, number) DO UPDATE SET state = 'open', answer = NULL
"""


class Sql(ABC):
    """One transaction under way; parameters are written `?`."""

    @abstractmethod
    def rows(self, statement: str, *values: Any) -> list[Any]:
        """What a query gives."""

    @abstractmethod
    def run(self, statement: str, *values: Any) -> int:
        """How many rows a statement touched."""

    @abstractmethod
    def many(self, statement: str, values: Iterable[Sequence[Any]]) -> None: ...


class SqlWork(ABC):
    """A `WorkStore` but for what makes databases differ."""

    ONE_OF: str
    """A subquery of the texts in a JSON array."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.term = 0
        self._question: ProcessorQuestion | None = None

    @abstractmethod
    def _transact(self, work: Callable[[Sql], T]) -> T:
        """Run it in one transaction, and again if that is lost on the way."""

    @abstractmethod
    def _hold(self, sql: Sql) -> None:
        """First in each transaction of an owner: raises `StoreFencedError` unless our term is the newest."""

    def _owned(self, work: Callable[[Sql], T]) -> T:
        def held(sql: Sql) -> T:
            self._hold(sql)
            return work(sql)

        return self._transact(held)

    # Ownership

    def _introduce(self, sql: Sql) -> None:
        """Make sure that there is a row to be the owner of, whoever else does so at the same moment."""
        values = (self.name, FORMAT, None, None, None, 0, 0, 0, None, 0)
        insert = "INSERT INTO penstock_processors VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (name) DO NOTHING"
        sql.run(insert, *values)

    def _become_owner(self, sql: Sql, question: ProcessorQuestion, holder: str, until_us: int) -> Resumed:
        """Within a transaction that nobody else can be in, after `_introduce`."""
        query = "SELECT format, question, received, term FROM penstock_processors WHERE name = ?"
        ((form, stored, position, term),) = sql.rows(query, self.name)
        self._check(form, stored, question)
        set_owner = "UPDATE penstock_processors SET term = ?, holder = ?, until_us = ?, question = ? WHERE name = ?"
        sql.run(set_owner, term + 1, holder, until_us, question.text(), self.name)
        sql.run("UPDATE penstock_tasks SET due_us = 0 WHERE processor = ?", self.name)
        self.term, self._question = term + 1, question
        return Resumed(self.term, position)

    def _check(self, form: int, stored: str | None, question: ProcessorQuestion) -> None:
        if form != FORMAT:
            raise StoreMismatchError(f"the store of '{self.name}' has another format", hint="update penstock")
        if stored not in (None, question.text()):
            raise StoreMismatchError(
                f"'{self.name}' has processed the answers to another question",
                detail=f"stored: {stored}; now: {question.text()}",
                hint="give the changed question a name of its own; it will know nothing of what was handled before",
            )

    def renew(self) -> None:
        self._owned(lambda sql: None)

    # Batches

    def take(self, received: Received) -> int:
        return self._owned(lambda sql: self._take(sql, received))

    def _take(self, sql: Sql, received: Received) -> int:
        assert self._question is not None
        changes, question = received.changes, self._question
        memories = self._memories(sql, None if changes.snapshot else lanes(changes, question.key))
        news = difference(changes, memories, question.key, question.on)
        ((batch, number),) = sql.rows("SELECT batches, tasks FROM penstock_processors WHERE name = ?", self.name)
        tasks = [] if received.silent else self._tasks(news, batch + 1, number)
        sql.many(_REMEMBER, [(self.name, new.lane, new.memory.row, new.memory.version) for new in news])
        sql.many("INSERT INTO penstock_tasks VALUES (?, ?, ?, ?, ?, ?, 0, 0, 0, NULL)", tasks)
        counted = "UPDATE penstock_processors SET received = ?, batches = ?, tasks = ? WHERE name = ?"
        sql.run(counted, changes.position, batch + 1, number + len(tasks), self.name)
        stored = (self.name, batch + 1, changes.position, received.received_us)
        sql.run("INSERT INTO penstock_batches VALUES (?, ?, ?, ?)", *stored)
        if not tasks:
            self._advance(sql)
        return len(tasks)

    def _memories(self, sql: Sql, lanes: list[str] | None) -> dict[str, KeyMemory]:
        query, values = "SELECT lane, content, version FROM penstock_rows WHERE processor = ?", [self.name]
        if lanes is not None:
            query, values = f"{query} AND lane IN ({self.ONE_OF})", [self.name, canonical(lanes)]
        return {lane: KeyMemory(content, version) for lane, content, version in sql.rows(query, *values)}

    def _tasks(self, news: list[News], batch: int, last: int) -> list[tuple[Any, ...]]:
        assert self._question is not None
        whole = [("", news)] if news else []
        parts = [(new.lane, [new]) for new in news] if self._question.each == "row" else whole
        return [
            (self.name, number, batch, lane, self._key(part), _ENCODER.encode([new.change for new in part]).decode())
            for number, (lane, part) in enumerate(parts, last + 1)
        ]

    def _key(self, news: list[News]) -> str:
        assert self._question is not None
        return idempotency_key(self.name, self._question.view, [(new.lane, new.memory.version) for new in news])

    # Tasks

    def next(self, now_us: int, busy: Collection[int] = ()) -> Task | None:
        """Among the first `len(busy) + 1` tasks that are due, at least one is not busy."""
        due = self._transact(lambda sql: sql.rows(_DUE, self.name, now_us, len(busy) + 1))
        for number, key, changes, tries in due:
            if number not in busy:
                return Task(number, key, _CHANGES.decode(changes), tries)
        return None

    def waiting(self) -> int:
        return int(self._transact(lambda sql: sql.rows(_WAITING, self.name))[0][0])

    def finish(self, task: Task) -> None:
        self._owned(lambda sql: self._end(sql, task.number))

    def _end(self, sql: Sql, number: int) -> None:
        sql.run("DELETE FROM penstock_tasks WHERE processor = ? AND number = ?", self.name, number)
        sql.run("DELETE FROM penstock_calls WHERE processor = ? AND task = ?", self.name, number)
        self._advance(sql)

    def _advance(self, sql: Sql) -> None:
        """Move the position up to which all is done past the batches that have no open task."""
        ((oldest,),) = sql.rows("SELECT min(batch) FROM penstock_tasks WHERE processor = ?", self.name)
        done, values = "WHERE processor = ?", [self.name]
        if oldest is not None:
            done, values = "WHERE processor = ? AND batch < ?", [self.name, oldest]
        newest = sql.rows(f"SELECT position FROM penstock_batches {done} ORDER BY batch DESC LIMIT 1", *values)
        if newest:
            sql.run("UPDATE penstock_processors SET handled = ? WHERE name = ?", newest[0][0], self.name)
            sql.run(f"DELETE FROM penstock_batches {done}", *values)

    def put_back(self, task: Task, tries: int, error: str, due_us: int) -> None:
        self._owned(lambda sql: self._failed_try(sql, task, tries, error, due_us, 0))

    def give_up(self, task: Task, tries: int, error: str) -> None:
        self._owned(lambda sql: self._failed_try(sql, task, tries, error, 0, 1))

    def _failed_try(self, sql: Sql, task: Task, tries: int, error: str, due_us: int, failed: int) -> None:
        change = (
            "UPDATE penstock_tasks SET tries = ?, error = ?, due_us = ?, failed = ? WHERE processor = ? AND number = ?"
        )
        sql.run(change, tries, error, due_us, failed, self.name, task.number)

    # Calls

    def calls(self, task: Task) -> list[LoggedCall]:
        query = "SELECT number, target, method, payload, state, answer FROM penstock_calls"
        where, values = "WHERE processor = ? AND task = ? ORDER BY number", (self.name, task.number)
        return [LoggedCall(*row) for row in self._transact(lambda sql: sql.rows(f"{query} {where}", *values))]

    def intend(self, task: Task, call: LoggedCall) -> None:
        values = (self.name, task.number, call.number, call.target, call.method, call.payload)
        self._owned(lambda sql: sql.run(_INTEND, *values))

    def settle(self, task: Task, number: int, state: CallState, answer: str | None) -> None:
        change = "UPDATE penstock_calls SET state = ?, answer = ? WHERE processor = ? AND task = ? AND number = ?"
        self._owned(lambda sql: sql.run(change, state, answer, self.name, task.number, number))

    # What people ask

    def progress(self) -> Progress:
        return self._transact(self._progress)

    def _progress(self, sql: Sql) -> Progress:
        rows = sql.rows("SELECT received, handled FROM penstock_processors WHERE name = ?", self.name)
        received, handled = rows[0] if rows else (None, None)
        counts = "SELECT count(*), coalesce(sum(failed), 0) FROM penstock_tasks WHERE processor = ?"
        ((tasks, failed),) = sql.rows(counts, self.name)
        ((oldest,),) = sql.rows("SELECT min(received_us) FROM penstock_batches WHERE processor = ?", self.name)
        return Progress(tasks - int(failed), int(failed), received, handled, oldest)

    def failed(self) -> list[FailedTask]:
        query = "SELECT number, key, changes, tries, error FROM penstock_tasks WHERE processor = ? AND failed = 1"
        rows = self._transact(lambda sql: sql.rows(f"{query} ORDER BY number", self.name))
        return [FailedTask(n, key, _CHANGES.decode(changes), tries, error) for n, key, changes, tries, error in rows]

    def retry(self, number: int) -> bool:
        again = "UPDATE penstock_tasks SET failed = 0, tries = 0, due_us = 0"
        where = "WHERE processor = ? AND number = ? AND failed = 1"
        return self._transact(lambda sql: sql.run(f"{again} {where}", self.name, number)) > 0

    def dismiss(self, number: int) -> bool:
        return self._transact(lambda sql: self._dismiss(sql, number))

    def _dismiss(self, sql: Sql, number: int) -> bool:
        # One after the other with the owner.
        sql.run("UPDATE penstock_processors SET term = term WHERE name = ?", self.name)
        query = "SELECT 1 FROM penstock_tasks WHERE processor = ? AND number = ? AND failed = 1"
        if not sql.rows(query, self.name, number):
            return False
        self._end(sql, number)
        return True
