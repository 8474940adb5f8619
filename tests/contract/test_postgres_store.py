"""What only a shared database can meet: owners that fall silent, sessions that are lost, several at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from uuid import uuid4

import psycopg
import pytest

from penstock.client.processing import sql_work
from penstock.client.processing.stores.postgres import PostgresStore
from penstock.errors import StoreFencedError, StoreUnavailableError
from penstock.testing.contracts.work_kept import QUESTION, batch, tasks, told, topic

DEADLINE_S = 60.0


@pytest.fixture
def name() -> str:
    return f"p-{uuid4().hex[:8]}"


@pytest.fixture
def owner(database: str, name: str) -> Iterator[PostgresStore]:
    with closing(PostgresStore(database, name, lease_s=1.0)) as store:
        assert store.acquire(QUESTION)
        store.take(batch("p1", topic("jazz", 1)))
        yield store


def taken_over(database: str, name: str) -> PostgresStore:
    """Stand by until it is our turn."""
    new = PostgresStore(database, name, lease_s=60.0)
    deadline = time.monotonic() + DEADLINE_S
    while new.acquire(QUESTION) is None:
        assert time.monotonic() < deadline, "nobody could take over"
        time.sleep(0.05)
    return new


def test_a_silent_owner_is_replaced_after_its_lease_and_not_before(
    database: str, name: str, owner: PostgresStore
) -> None:
    begun = time.monotonic()
    owner.renew()
    with closing(taken_over(database, name)) as new:
        assert time.monotonic() - begun >= 1.0
        with pytest.raises(StoreFencedError):
            owner.renew()
        assert told(tasks(new)) == [("jazz", 1, None)]


def test_a_transaction_that_was_not_committed_prolongs_nothing(owner: PostgresStore) -> None:
    def fail(sql: object) -> None:
        raise ValueError("after the lease was prolonged, before the commit")

    with pytest.raises(ValueError, match="before the commit"):
        owner._owned(fail)
    assert owner._ours_until == 0, "who is about to call must ask the database"
    owner.ensure()
    assert owner._ours_until > time.monotonic()


def test_an_owner_that_renews_is_not_replaced(database: str, name: str, owner: PostgresStore) -> None:
    with closing(PostgresStore(database, name, lease_s=1.0)) as other:
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            owner.renew()
            assert other.acquire(QUESTION) is None
            time.sleep(0.1)


def test_an_owner_that_stops_within_a_transaction_does_not_hold_up_the_next(
    database: str, name: str, owner: PostgresStore
) -> None:
    """As with SIGSTOP between two statements: the lock is the server's, which ends the session after the lease."""
    stopped, woken, ended = threading.Event(), threading.Event(), []

    def stop(sql: object) -> None:
        if not stopped.is_set():
            stopped.set()
            woken.wait(DEADLINE_S)

    def run() -> None:
        try:
            owner._owned(stop)
        except StoreFencedError as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert stopped.wait(DEADLINE_S)
    with closing(taken_over(database, name)) as new:
        woken.set()
        thread.join(DEADLINE_S)
        assert len(ended) == 1
        assert told(tasks(new)) == [("jazz", 1, None)]


def test_before_a_call_is_sent_the_lease_is_ours_for_certain(database: str, name: str, owner: PostgresStore) -> None:
    owner.renew()
    owner.ensure()
    with closing(taken_over(database, name)), pytest.raises(StoreFencedError):
        owner.ensure()


def test_a_lost_session_is_opened_again_and_nothing_is_done_twice(
    database: str, name: str, owner: PostgresStore
) -> None:
    def lose() -> None:
        with psycopg.connect(database, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'penstock'")

    lose()
    owner.take(batch("p2", topic("go", 1)))
    lose()
    task = owner.next(1)
    assert task is not None
    lose()
    owner.finish(task)
    assert told(tasks(owner)) == [("go", 1, None)]


def test_a_database_that_stays_away_is_told(database: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.client.processing.stores.postgres.RETRY_S", 0.3)
    with pytest.raises(StoreUnavailableError):
        PostgresStore("postgresql://nobody@127.0.0.1:9/none", name, lease_s=1.0)


def test_many_who_want_it_at_once_get_it_one_after_the_other(database: str, name: str) -> None:
    terms: list[int] = []

    def want() -> None:
        with closing(PostgresStore(database, name, lease_s=60.0)) as store:
            deadline = time.monotonic() + DEADLINE_S
            while (resumed := store.acquire(QUESTION)) is None:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            store.take(batch(f"p{resumed.term}", topic("jazz", resumed.term)))
            terms.append(resumed.term)

    threads = [threading.Thread(target=want) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert terms == [1, 2, 3, 4, 5]


def test_the_next_task_is_found_without_reading_the_whole_queue(owner: PostgresStore) -> None:
    """Without statistics the planner would sort all of it for each task: 70 ms instead of 0.1 at 10,000."""
    owner.take(batch("p2", *(topic(f"t{n}", n) for n in range(1000))))
    assert owner._connection is not None
    question = sql_work._DUE.replace("?", "%s")
    plan = "\n".join(row for (row,) in owner._connection.execute(f"EXPLAIN {question}", (owner.name, 1, 1)))
    assert "Index Scan using penstock_tasks_pkey" in plan, plan
    assert "Sort" not in plan, plan
