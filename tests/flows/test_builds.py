"""Builds that begin late, become level without a batch, are refused, or hang."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock import App, Event
from penstock.flows import hang
from tests.flows.world import World


class Sale(Event):
    n: int
    at: int


def sales(start: int, end: int) -> list[Sale]:
    return [Sale(n=n, at=1_700_000_000_000 + n) for n in range(start, end)]


def chain(above: int) -> App:
    app = App("sales")
    app.stream("sales", Sale, time="at", id="n")

    @app.flow
    def large(sales: DataFrame) -> DataFrame:
        return sales.where(F.col("n") >= above).select("n")

    @app.view(key="g")
    def groups(large: DataFrame) -> DataFrame:
        return large.groupBy((F.col("n") % 2).alias("g")).agg(F.count("*").alias("c"))

    return app


def counted(name: str, modulus: int, seconds: float = 0.0) -> App:
    """One view; `seconds` is what its batch takes."""
    app = App("sales")
    app.stream("sales", Sale, time="at", id="n")

    slow = F.udf(lambda n: time.sleep(seconds) or n % modulus, "int")

    def groups(sales: DataFrame) -> DataFrame:
        key = slow("n") if seconds else F.col("n") % modulus
        return sales.groupBy(key.alias("g")).agg(F.count("*").alias("c"))

    app.view(key="g", name=name)(groups)
    return app


def test_a_build_whose_input_has_become_empty_takes_over_without_a_batch(world: Callable[[App], World]) -> None:
    one = world(chain(above=5))
    one.send("sales", [sales(0, 10)])
    one.run()
    assert sum(row["c"] for row in one.rows("groups")) == 5
    before = one.memory()["live/groups"]
    one.use(chain(above=1000))
    one.run(until=lambda: one.memory()["live/groups"] != before and one.memory()["flow/groups"]["state"] == "running")
    assert one.rows("groups") == []
    assert one.verify()["groups"].result == "equal"


def test_a_new_view_begins_with_what_retention_has_left_and_an_old_one_is_not_rebuilt_from_it(
    world: Callable[[App], World],
) -> None:
    one = world(counted("old", 2))
    one.send("sales", [sales(0, 10), sales(10, 20)])
    one.run()
    with one.door() as log:
        stream = log.find("sales")
        log.trim(stream, 1)
    changed = counted("old", 3)
    changed.view(key="g", name="new")(lambda sales: sales.groupBy((F.col("n") % 2).alias("g")).count())
    one.use(changed)

    def both() -> bool:
        states = {name: one.memory().get(f"flow/{name}", {}).get("state") for name in ("old", "new")}
        return states == {"old": "stopped", "new": "running"} and sum(r["count"] for r in one.rows("new")) == 10

    one.run(until=both)
    error = one.memory()["flow/old"]["error"]
    assert "retention has removed the oldest events of 'sales'" in error["message"]
    assert sum(row["c"] for row in one.rows("old")) == 20


def test_a_batch_that_takes_longer_than_a_hang_is_restarted_with_more_patience_and_gets_done(
    world: Callable[[App], World], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hang, "HUNG_S", 1.0)
    one = world(counted("groups", 2, seconds=2.5))
    one.send("sales", [sales(0, 1)])
    one.run()
    assert one.rows("groups") == [{"g": 0, "c": 1}]
    dumps = list(one.folder.logs.glob("hung-groups-*.txt"))
    assert dumps
    assert "org.apache.spark" in dumps[0].read_text()
