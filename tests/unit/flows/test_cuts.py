"""Queries of different speeds have ends of batches in common, and none waits for another."""

from __future__ import annotations

import heapq
import itertools
import random
import threading
from pathlib import Path

import pytest

from penstock.flows.regroup import cuts
from penstock.flows.regroup.cuts import CutFile, CutState


def played(durations: list[float], seed: int, until: float = 100.0) -> list[dict[float, float]]:
    """Readers of a stream that grows all the time, each with batches of about its own duration: where their batches
    end, and when."""
    chance, state = random.Random(seed), CutState()
    ends: list[dict[float, float]] = [{} for _ in durations]
    turns = [(chance.uniform(0, min(duration, 1.0)), number, 0) for number, duration in enumerate(durations)]
    heapq.heapify(turns)
    while turns[0][0] < until:
        now, reader, start = heapq.heappop(turns)
        cut = state.next_cut(str(reader), start, int(now * 1000) + 1, now)
        assert cut > start, "a reader stands although the stream has grown"
        done = now + durations[reader] * chance.uniform(0.5, 1.5)
        ends[reader][cut] = done
        heapq.heappush(turns, (done, reader, cut))
    return ends


def level_at(ends: list[dict[float, float]]) -> list[float]:
    """When all have committed a common place."""
    common = set(ends[0]).intersection(*ends[1:])
    return sorted(max(each[cut] for each in ends) for cut in common)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("durations", [[0.1, 0.1], [0.1, 1.3], [0.1, 0.17, 0.3], [0.1, 0.11, 0.5, 0.9], [0.1] * 6])
def test_readers_of_any_speed_meet_again_and_again(durations: list[float], seed: int) -> None:
    times = level_at(played(durations, seed))
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert max(gaps) < 6 * max(durations)


def test_one_that_is_stopped_is_not_waited_for() -> None:
    gaps = []
    for seed in range(20):
        ends = played([0.1, 0.17, 0.3, 1_000.0], seed, until=60.0)
        times = [time for time in level_at(ends[:3]) if time > cuts._AWAY_S]
        gaps += [b - a for a, b in itertools.pairwise(times)]
    assert max(gaps) < 6 * 0.3


def test_what_two_have_ended_at_is_not_jumped_over() -> None:
    state = CutState()
    for name in "abc":
        state.next_cut(name, 0, 5, 0.0)
    assert state.next_cut("a", 5, 9, 1.0) == 9
    assert state.next_cut("b", 5, 10, 1.0) == 9
    assert state.next_cut("a", 9, 15, 1.0) == 15
    assert state.next_cut("c", 5, 16, 1.0) == 9
    assert state.next_cut("c", 9, 17, 1.0) == 15


def test_a_reader_that_asks_twice_for_one_batch_is_told_the_same() -> None:
    """A function may use a stream twice: Spark asks for each use."""
    state = CutState()
    assert [state.next_cut("a", 0, most, 0.0) for most in (5, 6)] == [5, 5]
    assert state.next_cut("b", 0, 7, 0.0) == 5
    assert [state.next_cut("a", 5, most, 0.0) for most in (8, 9)] == [8, 8]


def test_one_that_is_far_behind_goes_as_far_as_it_may(tmp_path: Path) -> None:
    file = CutFile(tmp_path / "run" / "cuts" / "sales")
    assert file.next_cut("a", "e", 0, lambda: 1_000) == 1_000
    assert file.next_cut("b", "e", 0, lambda: 300) == 300
    assert file.next_cut("b", "e", 300, lambda: 600) == 600
    assert file.next_cut("b", "e", 600, lambda: 1_200) == 1_000


def test_a_file_that_is_torn_or_of_another_epoch_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "sales"
    file = CutFile(path)
    assert file.next_cut("a", "e", 0, lambda: 7) == 7
    assert file.next_cut("b", "f", 0, lambda: 4) == 4
    path.write_bytes(path.read_bytes()[:-9])
    assert file.next_cut("a", "f", 0, lambda: 5) == 5


def test_many_at_once_agree(tmp_path: Path) -> None:
    got: dict[str, list[int]] = {}

    def plan(name: str) -> None:
        file, start, mine = CutFile(tmp_path / "sales"), 0, got.setdefault(name, [])
        for end in range(1, 200):
            cut = file.next_cut(name, "e", start, lambda end=end, start=start: max(end, start + 1))  # type: ignore[misc]
            if cut > start:
                mine.append(cut)
                start = cut

    threads = [threading.Thread(target=plan, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(got["a"]) & set(got["b"])) > 20
