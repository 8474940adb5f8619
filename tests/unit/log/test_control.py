from __future__ import annotations

import threading
from contextlib import closing
from typing import Any

import pytest

from penstock.errors import FencedError, SequenceGapError
from penstock.log import control, control_keys
from penstock.log.control import IDLE_US, ControlFollower, ControlMap, Producers, judge
from penstock.log.log import CONTROL, Append, Appended, Log, Producer, Stream, StreamSpec
from penstock.log.opening import open_reader
from penstock.testing.contracts.log_events import ManualClock, events, eventually


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


def test_a_map_may_be_walked_while_it_changes() -> None:
    memory = ControlMap({str(n): n for n in range(100)})
    for n, key in enumerate(memory):
        memory.apply({f"new-{n}": n, key: None})
    for key, value in memory.items():
        assert memory[key] == value
        memory.apply({key: None})
    assert len(memory) == 0


def test_a_family_is_in_the_order_in_which_its_keys_were_set() -> None:
    memory = ControlMap({control_keys.key(n): n for n in "abc"} | {"other": 1})
    memory.apply({control_keys.key("a"): 9, control_keys.key("b"): None})
    assert memory.family(control_keys.key) == {"key/c": "c", "key/a": 9}
    assert list(memory.family(control_keys.key)) == ["key/c", "key/a"]
    assert memory.family(control_keys.key, 1) == {"key/c": "c"}
    assert (memory.size(control_keys.key), memory.size(control_keys.webhook), len(memory)) == (2, 0, 3)


def test_whoever_watches_a_family_hears_of_its_keys_when_a_commit_is_made(log: Log) -> None:
    heard: list[dict[str, Any]] = []

    def broken(_: object) -> None:
        raise RuntimeError("the loop has ended")

    log.memory().watch(control_keys.key, broken)
    log.memory().watch(control_keys.key, lambda changed: heard.append(dict(changed)))
    log.append([Append(sets={"key/a": 1, "webhook/b": 2})])
    log.append([Append(sets={"webhook/b": 3})])
    log.append([Append(sets={"key/a": None, "key/c": 3})])
    assert heard == [{"key/a": 1}, {"key/a": None, "key/c": 3}]


def test_a_process_that_reads_hears_of_the_same_keys(log: Log, stream: Stream) -> None:
    heard: list[dict[str, Any]] = []
    log.append([Append(sets={"key/a": 1, "gone": 1})])
    with closing(open_reader(stream.place)) as reader, closing(ControlFollower(reader, interval_s=0.005)) as follower:
        assert dict(follower.map) == {"key/a": 1, "gone": 1}
        follower.map.watch(control_keys.key, lambda changed: heard.append(dict(changed)))
        log.append([Append(sets={"key/b": 2, "gone": None})])
        eventually(lambda: heard == [{"key/b": 2}])
        assert dict(follower.map) == dict(log.memory())


def test_a_reader_that_compaction_has_passed_hears_what_is_gone(log: Log, stream: Stream) -> None:
    class Stopped:
        """A reader that sees nothing new until it is let."""

        def __init__(self) -> None:
            self.let = threading.Event()

        def revision(self) -> int:
            return int(self.let.is_set())

        def __getattr__(self, name: str) -> Any:
            return getattr(reader, name)

    heard: dict[str, Any] = {}
    log.append([Append(sets={"key/a": 1, "key/b": 1})])
    with closing(open_reader(stream.place)) as reader:
        held = Stopped()
        with closing(ControlFollower(held, interval_s=0.005)) as follower:
            follower.map.watch(control_keys.key, heard.update)
            log.append([Append(sets={"key/a": None, "key/c": 3})])
            (control_stream,) = [stream for stream in log.streams() if stream.name == CONTROL]
            log.compact(control_stream, log.bounds(control_stream).next_commit)
            held.let.set()
            eventually(lambda: dict(follower.map) == dict(log.memory()) == {"key/b": 1, "key/c": 3})
            assert heard["key/a"] is None
            assert heard["key/c"] == 3


def test_compaction_is_worth_it_when_most_rows_are_out_of_date() -> None:
    assert not control.wants_compaction(9_999, 1)
    assert not control.wants_compaction(30_000, 10_000)
    assert control.wants_compaction(50_000, 10_000)
