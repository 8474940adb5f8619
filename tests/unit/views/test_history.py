"""History keeps what it promises and says None for what it no longer has."""

from __future__ import annotations

from penstock.change import Change
from penstock.config import Limits
from penstock.views.history import Batch, History

SECOND = 1_000_000


def _batch(number: int, size: int = 10, written_us: int | None = None) -> Batch:
    changes = [Change(("k",), None, (number,))]
    return Batch(number, number + 1, changes, None, number * SECOND if written_us is None else written_us, size)


def _filled(limits: Limits, count: int, size: int = 10) -> History:
    history = History(0, limits)
    for number in range(count):
        history.add(_batch(number, size))
    return history


def test_every_batch_behind_an_offset_is_given_in_order() -> None:
    history = _filled(Limits(), 5)
    assert [batch.start for batch in history.after(2) or ()] == [2, 3, 4]
    assert history.after(5) == []
    assert history.after(6) is None
    assert history.next(4) is not None
    assert history.next(5) is None


def test_old_batches_go_only_beyond_both_the_least_age_and_the_least_size() -> None:
    assert len(_filled(Limits(history_us=3 * SECOND, history_bytes=0), 10)) == 4
    assert len(_filled(Limits(history_us=3 * SECOND, history_bytes=70), 10)) == 7
    assert len(_filled(Limits(history_us=100 * SECOND, history_bytes=0), 10)) == 10


def test_the_most_bytes_win_over_age() -> None:
    history = _filled(Limits(history_us=100 * SECOND, history_bytes_most=35), 10)
    assert (len(history), history.bytes, history.start) == (3, 30, 7)
    assert history.after(6) is None
    assert [batch.start for batch in history.after(7) or ()] == [7, 8, 9]


def test_a_history_that_begins_later_knows_nothing_below() -> None:
    assert History(5, Limits()).after(3) is None
    assert History(5, Limits()).after(5) == []


def test_an_offset_inside_a_batch_that_stands_for_many_is_not_a_place_to_resume() -> None:
    history = History(0, Limits())
    history.add(Batch(0, 10, [], None, 0, 1))
    assert history.after(4) is None
    assert history.after(0) is not None
