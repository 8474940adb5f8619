"""What a processor must never forget, as a contract that a file on one machine and a shared database both keep.

1. A method is one transaction: on return all of it is durable, or it raised and none of it is.
2. One owner at a time. Each acquisition raises the term, and each transaction of an owner checks its own: an owner that
   was stopped, replaced and woken up again writes nothing more (`StoreFencedError`).
3. A batch is stored whole, with its position and with what is then remembered of its rows. Storing it again changes
   nothing but the position.
4. Tasks of one key are given in order: none while an earlier one of its key is open or given up.
5. A call is logged before it is sent, and its answer before the handler sees it.
6. A task's end, what it logged and the position up to which all is done go in one transaction.
7. Every method may be repeated with the same arguments after an error that left its outcome unknown.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from os import PathLike
from pathlib import Path
from typing import Protocol

from penstock.client.processing.stores.sqlite import SqliteStore
from penstock.client.processing.work import (
    CallState,
    FailedTask,
    LoggedCall,
    ProcessorQuestion,
    Progress,
    Received,
    Resumed,
    Task,
)
from penstock.errors import BadRequestError


class WorkStore(Protocol):
    """Of one processor, by name. Methods block; the processor calls them in threads, any number at once."""

    @property
    def lease_s(self) -> float | None:
        """How long ownership lasts without a transaction; None: as long as the process."""

    def acquire(self, question: ProcessorQuestion) -> Resumed | None:
        """Become the owner; None while somebody else is. Called first, and again by one that stands by.

        Raises `StoreMismatchError` if what is stored answers another question. All tasks are due at once then.
        """

    def renew(self) -> None:
        """Go on being the owner: called at least three times per lease. Raises `StoreFencedError`."""

    def ensure(self) -> None:
        """Return only while the lease is certainly ours: called right before a call is sent."""

    def release(self) -> None:
        """Stop being the owner, so that somebody else need not wait for the lease to end."""

    def take(self, received: Received) -> int:
        """Store a batch; how many tasks it made."""

    def next(self, now_us: int, busy: Collection[int] = ()) -> Task | None:
        """The oldest task that is due and not one of the `busy`; it stays open until `finish`."""

    def waiting(self) -> int:
        """How many tasks will be done without anybody's help: not those that were given up, nor what is behind them."""

    def calls(self, task: Task) -> list[LoggedCall]:
        """What earlier tries of this task have logged, by number."""

    def intend(self, task: Task, call: LoggedCall) -> None:
        """Log a call as open, before it is sent (again)."""

    def settle(self, task: Task, number: int, state: CallState, answer: str | None) -> None:
        """Log what became of a call."""

    def finish(self, task: Task) -> None:
        """The handler has succeeded."""

    def put_back(self, task: Task, tries: int, error: str, due_us: int) -> None:
        """The handler has failed so many times; it is due again at that time."""

    def give_up(self, task: Task, tries: int, error: str) -> None:
        """The handler has failed for the last time; the task waits for a person."""

    def progress(self) -> Progress:
        """How far it is. Needs no ownership, as the following."""

    def failed(self) -> list[FailedTask]:
        """The tasks that were given up, in order."""

    def retry(self, number: int) -> bool:
        """Open a given up task again, what it logged included; whether there was one. Its owner sees it in a second."""

    def dismiss(self, number: int) -> bool:
        """End a given up task without success, and let what waits behind it go on; whether there was one."""

    def close(self) -> None:
        """Let go of files and connections."""


LEASE_S = 15.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def open_store(store: str | PathLike[str], name: str, *, lease_s: float = LEASE_S) -> WorkStore:
    """The store of the processor with this name; nothing is owned yet, so that anybody may look at it.

    `lease_s` is for PostgreSQL: how long a machine that says nothing stays the owner.

        for task in open_store("royalties.db", "pay").failed():
            print(task.number, task.error)
    """
    if not _NAME.fullmatch(name):
        raise BadRequestError(
            f"'{name}' cannot be the name of a processor",
            hint="1 to 64 letters, digits, dots, dashes and underscores: it begins every idempotency key",
        )
    if str(store).startswith(("postgresql://", "postgres://")):
        from penstock.client.processing.stores.postgres import PostgresStore

        return PostgresStore(str(store), name, lease_s)
    return SqliteStore(Path(store), name)
