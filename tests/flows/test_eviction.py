"""State of closed windows goes in its own time, and nothing that a view shows or leaves out depends on when."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock import App, Event
from penstock.flows import flow_build
from penstock.flows.engine import small_batches
from penstock.flows.engine.small_batches import BatchSize
from tests.flows.world import World
from tests.parts import about

START_MS = 1_700_000_000_000


class Tick(Event):
    n: int
    at: int


def app() -> App:
    made = App("evictions")
    made.stream("ticks", Tick, time="at", id="n", late_after="1 minute")

    @made.view(key="window")
    def windows(ticks: DataFrame) -> DataFrame:
        return ticks.groupBy(F.window("_time", "20 seconds")).agg(F.count("*").alias("c"), F.max("n").alias("newest"))

    return made


def commits() -> list[list[Tick]]:
    """Each commit is 30 seconds on, and brings one event to the last window that is open and one that is too late."""
    found, n = [], 0
    for step in range(12):
        now = START_MS + step * 30_000
        found.append([Tick(n=n + i, at=at) for i, at in enumerate((now, now - 90_000, now - 90_001, now - 59_000))])
        n += 4
    return found


def groups_held(there: World) -> int:
    epoch = there.memory()["live/windows"]
    path = flow_build.checkpoint_of(there.folder, "windows", epoch)
    return there.spark.read.format("statestore").load(str(path)).count()


@about("sink", "eviction")
def test_a_window_whose_state_goes_later_takes_and_refuses_the_same_events(
    world: Callable[[App], World], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = world(app())
    there.send("ticks", commits()[:6])
    there.run(max_rows=1)
    late = groups_held(there)
    monkeypatch.setattr(small_batches, "EVICT_AT_LAST_S", 0.0)
    there.send("ticks", commits()[6:])
    there.run(max_rows=1)
    soon = groups_held(there)
    assert late > 6 >= soon
    assert there.verify()["windows"].result == "equal"
    assert there.dropped == 0
    assert len(there.events("late")) == 11  # the first commit has no bound


@about("eviction")
@pytest.mark.parametrize(("batch_s", "evicting"), [(0.125, [0, 241]), (1.0, [0, 101, 202]), (60.0, [0, 6, 12])])
def test_state_goes_in_the_first_batch_and_then_when_that_costs_little(batch_s: float, evicting: list[int]) -> None:
    now, settings = [100.0], dict[str, str]()

    class Settings:
        def set(self, name: str, value: str) -> None:
            settings[name] = value

    size = BatchSize(True, lambda: now[0])
    evicts = []
    for number in range(evicting[-1] + 1):
        if settings.get("penstock.evicts", "true") == "true":
            evicts.append(number)
        size.follow(Settings(), 1)
        now[0] += batch_s
    assert evicts == evicting
