"""The contract of a processor's store as tests: every promise of `penstock.client.processing.work_store`.

A test module derives from `WorkStoreContract` and gives it the fixture `place`, a `WorkPlace`.
"""

from __future__ import annotations

from contextlib import closing
from typing import Any, Protocol

import pytest

from penstock.client.processing.work import LoggedCall, ProcessorQuestion, Received, Task
from penstock.client.processing.work_store import WorkStore
from penstock.client.view_rows import Changes
from penstock.errors import StoreFencedError, StoreMismatchError

QUESTION = ProcessorQuestion("topics", ("topic",))
UPSERTS = ProcessorQuestion("topics", ("topic",), on="upserts")


class WorkPlace(Protocol):
    """One place of a test's own where a store can be opened any number of times."""

    def open(self, name: str = "work") -> WorkStore:
        """Without becoming its owner."""

    def usurp(self, store: WorkStore) -> WorkStore:
        """Become the owner though somebody else is, as when that one has been silent for longer than its lease."""


def topic(name: str, rsvps: int) -> dict[str, Any]:
    return {"topic": name, "rsvps": rsvps}


def batch(position: str, *upserts: dict[str, Any], deletes: tuple[str, ...] = (), **more: Any) -> Received:
    gone = tuple({"topic": name} for name in deletes)
    return Received(Changes("topics", position, tuple(upserts), gone, **more), received_us=1)


def taken(place: WorkPlace, *batches: Received, question: ProcessorQuestion = QUESTION) -> WorkStore:
    """A store that is owned and has these batches."""
    store = place.open()
    assert store.acquire(question) is not None
    for received in batches:
        store.take(received)
    return store


def tasks(store: WorkStore) -> list[Task]:
    """All that can be done now, by doing it."""
    found = []
    while (task := store.next(1)) is not None:
        found.append(task)
        store.finish(task)
    return found


def told(found: list[Task]) -> list[tuple[Any, ...]]:
    """Topic, count now and count before."""
    return [
        (change.key["topic"], change.row and change.row["rsvps"], change.before and change.before["rsvps"])
        for task in found
        for change in task.changes
    ]


CHARGE = LoggedCall(1, "http://bank/charges", "POST", '{"amount":"1.00"}')


class _Batches:
    """What is handed over."""

    def test_a_stored_batch_gives_a_task_for_each_row_in_order(self, place: WorkPlace) -> None:
        with closing(taken(place, batch("p1", topic("jazz", 1), topic("go", 2), snapshot=True))) as store:
            assert told(tasks(store)) == [("jazz", 1, None), ("go", 2, None)]

    def test_a_batch_that_is_stored_twice_is_handed_over_once(self, place: WorkPlace) -> None:
        again = batch("p2", topic("jazz", 2))
        with closing(taken(place, batch("p1", topic("jazz", 1), snapshot=True), again, again)) as store:
            assert told(tasks(store)) == [("jazz", 1, None), ("jazz", 2, 1)]

    def test_a_snapshot_after_a_reset_gives_only_what_differs(self, place: WorkPlace) -> None:
        first = batch("p1", topic("jazz", 1), topic("go", 2), topic("art", 3), snapshot=True)
        reset = batch("q1", topic("jazz", 1), topic("go", 5), snapshot=True, reset="rebuilt")
        with closing(taken(place, first)) as store:
            tasks(store)
            store.take(reset)
            assert sorted(told(tasks(store))) == [("art", None, 3), ("go", 5, 2)]

    def test_a_row_that_goes_and_comes_back_is_told_again_under_another_key(self, place: WorkPlace) -> None:
        with closing(taken(place, batch("p1", topic("jazz", 1), snapshot=True))) as store:
            store.take(batch("p2", deletes=("jazz",)))
            store.take(batch("p3", topic("jazz", 1)))
            found = tasks(store)
            assert told(found) == [("jazz", 1, None), ("jazz", None, 1), ("jazz", 1, None)]
            assert len({task.key for task in found}) == 3

    def test_with_upserts_only_a_row_that_goes_and_comes_back_is_no_news(self, place: WorkPlace) -> None:
        with closing(taken(place, batch("p1", topic("jazz", 1), snapshot=True), question=UPSERTS)) as store:
            store.take(batch("p2", deletes=("jazz",)))
            store.take(batch("p3", topic("jazz", 1)))
            store.take(batch("q1", snapshot=True, reset="rebuilt"))
            store.take(batch("q2", topic("jazz", 4)))
            assert told(tasks(store)) == [("jazz", 1, None), ("jazz", 4, 1)]

    def test_a_delete_of_a_row_that_was_never_told_is_no_task(self, place: WorkPlace) -> None:
        with closing(taken(place, batch("p1", deletes=("jazz",)))) as store:
            assert tasks(store) == []

    def test_a_batch_may_be_one_task(self, place: WorkPlace) -> None:
        question = ProcessorQuestion("topics", ("topic",), each="batch")
        with closing(taken(place, batch("p1", topic("jazz", 1), topic("go", 2)), question=question)) as store:
            store.take(batch("p2"))
            assert [len(task.changes) for task in tasks(store)] == [2]

    def test_silent_rows_are_known_and_not_handed_over(self, place: WorkPlace) -> None:
        with closing(taken(place)) as store:
            changes = Changes("topics", "p1", (topic("jazz", 1),), (), snapshot=True)
            assert store.take(Received(changes, 1, silent=True)) == 0
            store.take(batch("p2", topic("jazz", 2)))
            assert told(tasks(store)) == [("jazz", 2, 1)]

    def test_any_text_is_a_key(self, place: WorkPlace) -> None:
        names = ["'", '"', "ä€😀", "a\\b", "%s ? :x", "", " ", "\x00", "k" * 5000, "l" * 5000]
        with closing(taken(place, batch("p1", *(topic(name, 1) for name in names), snapshot=True))) as store:
            assert [name for name, *_ in told(tasks(store))] == names
            store.take(batch("p2", *(topic(name, 1) for name in names)))
            assert tasks(store) == []


class _Keys:
    """The idempotency key."""

    def test_the_key_of_a_task_outlives_its_owner(self, place: WorkPlace) -> None:
        with closing(taken(place, batch("p1", topic("jazz", 1)))) as store:
            first = store.next(1)
            store.release()
        with closing(taken(place)) as store:
            again = store.next(1)
            assert first is not None
            assert again is not None
            assert again.key == first.key

    def test_a_lost_store_gives_the_same_rows_the_same_keys(self, place: WorkPlace) -> None:
        """A name stands for a store here, so the part of the key behind it is compared."""
        found = []
        for name, batches in (("one", (("p1", "jazz"), ("p2", "go"))), ("two", (("q7", "go"), ("q9", "jazz")))):
            with closing(place.open(name)) as store:
                assert store.acquire(QUESTION)
                for position, row in batches:
                    store.take(batch(position, topic(row, 1)))
                found.append({task.changes[0].key["topic"]: task.key.split("/")[1] for task in tasks(store)})
        assert found[0] == found[1]
        assert len(set(found[0].values())) == 2


class _Owning:
    """One owner at a time."""

    def test_a_second_owner_waits_until_the_first_releases(self, place: WorkPlace) -> None:
        with closing(taken(place)) as first, closing(place.open()) as second:
            assert second.acquire(QUESTION) is None
            first.release()
            resumed = second.acquire(QUESTION)
            assert resumed is not None
            assert resumed.term == 2

    def test_an_owner_that_was_replaced_can_write_nothing(self, place: WorkPlace) -> None:
        with closing(taken(place, batch("p1", topic("jazz", 1)))) as old:
            task = old.next(1)
            assert task is not None
            with closing(place.usurp(old)) as new:
                attempts = [
                    lambda: old.take(batch("p2", topic("go", 1))),
                    lambda: old.intend(task, CHARGE),
                    lambda: old.settle(task, 1, "answered", "{}"),
                    lambda: old.finish(task),
                    lambda: old.put_back(task, 1, "no", 5),
                    lambda: old.give_up(task, 1, "no"),
                    old.renew,
                    old.ensure,
                ]
                for attempt in attempts:
                    with pytest.raises(StoreFencedError):
                        attempt()
                assert new.calls(task) == []
                assert told(tasks(new)) == [("jazz", 1, None)]

    def test_processors_of_other_names_have_nothing_to_do_with_each_other(self, place: WorkPlace) -> None:
        with closing(taken(place, batch("p1", topic("jazz", 1)))), closing(place.open("other")) as other:
            resumed = other.acquire(QUESTION)
            assert resumed is not None
            assert resumed.position is None
            assert other.next(1) is None

    def test_another_question_is_refused(self, place: WorkPlace) -> None:
        taken(place).close()
        with closing(place.open()) as store, pytest.raises(StoreMismatchError, match="another question"):
            store.acquire(ProcessorQuestion("topics", ("topic",), where="rsvps > 3"))

    def test_a_new_owner_resumes_behind_what_is_stored(self, place: WorkPlace) -> None:
        with closing(taken(place, batch("p1", topic("jazz", 1)), batch("p2", topic("go", 1)))) as store:
            store.release()
        with closing(place.open()) as store:
            resumed = store.acquire(QUESTION)
            assert resumed is not None
            assert resumed.position == "p2"
            assert len(tasks(store)) == 2


class _Tasks:
    """Order, failure and progress."""

    def test_a_task_that_failed_holds_up_its_own_key_only(self, place: WorkPlace) -> None:
        rows = batch("p1", topic("jazz", 1), topic("go", 1))
        with closing(taken(place, rows, batch("p2", topic("jazz", 2)))) as store:
            first = store.next(1)
            assert first is not None
            store.put_back(first, 1, "no", due_us=1000)
            assert told(tasks(store)) == [("go", 1, None)]
            again = store.next(1000)
            assert again is not None
            assert (again.number, again.tries) == (first.number, 1)
            store.finish(again)
            assert told(tasks(store)) == [("jazz", 2, 1)]

    def test_a_task_that_was_put_back_is_due_at_once_for_a_new_owner(self, place: WorkPlace) -> None:
        with closing(taken(place, batch("p1", topic("jazz", 1)))) as store:
            task = store.next(1)
            assert task is not None
            store.put_back(task, 3, "no", due_us=10**18)
            assert store.next(1) is None
            store.release()
        with closing(taken(place)) as store:
            assert [task.tries for task in tasks(store)] == [3]

    def test_what_was_given_up_waits_with_all_behind_it_until_it_is_tried_again(self, place: WorkPlace) -> None:
        with closing(taken(place, batch("p1", topic("jazz", 1)), batch("p2", topic("jazz", 2)))) as store:
            task = store.next(1)
            assert task is not None
            store.intend(task, CHARGE)
            store.give_up(task, 5, "no money")
            assert store.next(10**18) is None
            assert store.waiting() == 0
            (given_up,) = store.failed()
            assert (given_up.key, given_up.tries, given_up.error) == (task.key, 5, "no money")
            with closing(place.open()) as visitor:
                assert visitor.retry(task.number)
                assert not visitor.retry(task.number)
            again = store.next(1)
            assert again is not None
            assert store.calls(again) == [CHARGE]
            assert told(tasks(store)) == [("jazz", 1, None), ("jazz", 2, 1)]

    def test_what_was_dismissed_lets_the_rest_go_on(self, place: WorkPlace) -> None:
        with closing(taken(place, batch("p1", topic("jazz", 1)), batch("p2", topic("jazz", 2)))) as store:
            task = store.next(1)
            assert task is not None
            assert not store.dismiss(task.number)
            store.give_up(task, 5, "no")
            assert store.dismiss(task.number)
            assert told(tasks(store)) == [("jazz", 2, 1)]
            assert store.progress().handled == "p2"

    def test_progress_is_the_position_up_to_which_everything_is_done(self, place: WorkPlace) -> None:
        two = batch("p1", topic("jazz", 1), topic("go", 1))
        with closing(taken(place, two, batch("p2", topic("art", 1)))) as store:
            assert store.progress().handled is None
            first = store.next(1)
            assert first is not None
            store.put_back(first, 1, "no", due_us=10)
            tasks(store)
            assert (store.progress().handled, store.progress().received) == (None, "p2")
            assert (store.progress().waiting, store.progress().oldest_us) == (1, 1)
            store.finish(first)
            assert (store.progress().handled, store.progress().waiting) == ("p2", 0)
            assert store.progress().oldest_us is None
            store.take(batch("p3"))
            assert store.progress().handled == "p3"

    def test_an_end_that_is_told_twice_is_one_end(self, place: WorkPlace) -> None:
        with closing(taken(place, batch("p1", topic("jazz", 1), topic("go", 1)))) as store:
            task = store.next(1)
            assert task is not None
            store.finish(task)
            store.finish(task)
            assert told(tasks(store)) == [("go", 1, None)]


class _Calls:
    """The log of calls."""

    def test_a_call_is_open_until_it_is_settled_and_gone_with_its_task(self, place: WorkPlace) -> None:
        with closing(taken(place, batch("p1", topic("jazz", 1)))) as store:
            task = store.next(1)
            assert task is not None
            store.intend(task, CHARGE)
            assert [call.state for call in store.calls(task)] == ["open"]
            store.settle(task, 1, "unsent", None)
            store.intend(task, CHARGE)
            store.settle(task, 1, "answered", '{"value":7}')
            (found,) = store.calls(task)
            assert (found.state, found.answer) == ("answered", '{"value":7}')
            assert found.same_request(CHARGE)
            store.finish(task)
            assert store.calls(task) == []

    def test_calls_outlive_their_owner(self, place: WorkPlace) -> None:
        with closing(taken(place, batch("p1", topic("jazz", 1)))) as store:
            task = store.next(1)
            assert task is not None
            store.intend(task, CHARGE)
            with closing(place.usurp(store)) as new:
                assert new.calls(task) == [CHARGE]


class WorkStoreContract(_Batches, _Keys, _Owning, _Tasks, _Calls):
    """Every promise of a work store, one test each."""
