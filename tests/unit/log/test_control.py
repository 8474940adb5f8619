from __future__ import annotations

import pytest

from penstock.errors import FencedError, SequenceGapError
from penstock.log import control
from penstock.log.control import IDLE_US, Memory, Producers, judge
from penstock.log.log import Append, Appended, Log, Producer, Stream, StreamSpec
from penstock.testing.contracts.log_events import ManualClock, events


def send(log: Log, stream: Stream, name: str, sequence: int = 0) -> Appended | Exception:
    (result,) = log.append([Append(stream, events([1]), producer=Producer(name, 0, sequence))])
    return result


@pytest.mark.parametrize(
    ("epoch", "sequence", "known", "verdict"),
    [
        (0, 0, (None, -1), "new"),
        (0, 1, (None, -1), 0),
        (3, 0, (None, -1), "new"),
        (0, 4, (0, 4), "repeated"),
        (0, 2, (0, 4), "repeated"),
        (0, 5, (0, 4), "new"),
        (0, 6, (0, 4), 5),
        (1, 0, (0, 4), "new"),
        (1, 1, (0, 4), 0),
        (0, 5, (1, 0), "fenced"),
    ],
)
def test_a_producer_is_judged_by_its_epoch_and_sequence(
    epoch: int, sequence: int, known: tuple[int | None, int], verdict: str | int
) -> None:
    try:
        found: str | int = judge(Producer("p", epoch, sequence), *known)
    except FencedError:
        found = "fenced"
    except SequenceGapError as gap:
        found = gap.expected
    assert found == verdict


def test_the_key_of_a_producer_holds_epoch_sequence_and_token(log: Log, stream: Stream) -> None:
    result = send(log, stream, "p")
    assert isinstance(result, Appended)
    assert log.memory()["producer/numbers/p"] == [0, 0, result.position.token()]


def test_an_idle_producer_is_forgotten_after_a_week_and_not_before(
    log: Log, stream: Stream, clock: ManualClock
) -> None:
    send(log, stream, "idle")
    clock.us += IDLE_US
    send(log, stream, "busy")
    assert "producer/numbers/idle" in log.memory()
    clock.us += 1
    send(log, stream, "busy", 1)
    assert set(log.memory()) == {"producer/numbers/busy"}
    gap = send(log, stream, "idle", 1)
    assert isinstance(gap, SequenceGapError)


def test_beyond_the_most_producers_the_one_not_heard_longest_goes_first() -> None:
    producers = Producers()
    token = Stream("s", "e", 1, False, "events", (), control.SCHEMA, "memory://unit").position([0]).token()
    for name in "abcd":
        producers.apply({f"producer/s/{name}": [0, 0, token]}, 0)
    producers.apply({"producer/s/a": [0, 1, token]}, 1)
    assert producers.to_forget(1, most=2) == ["producer/s/b", "producer/s/c"]


def test_a_mark_of_another_epoch_of_the_stream_counts_for_nothing(log: Log, stream: Stream) -> None:
    send(log, stream, "p")
    send(log, stream, "p", 1)
    anew = log.create(StreamSpec("numbers", stream.schema, epoch="another"))
    result = send(log, anew, "p", 0)
    assert isinstance(result, Appended)
    assert not result.repeated


def test_the_writers_memory_may_be_walked_while_it_changes() -> None:
    values = {str(n): n for n in range(100)}
    memory = Memory(values)
    for n, key in enumerate(memory):
        values[f"new-{n}"] = n
        values.pop(key)
    for key, value in memory.items():
        assert values.pop(key) == value
    assert len(memory) == 0


def test_compaction_is_worth_it_when_most_rows_are_out_of_date() -> None:
    assert not control.wants_compaction(9_999, 1)
    assert not control.wants_compaction(30_000, 10_000)
    assert control.wants_compaction(50_000, 10_000)
