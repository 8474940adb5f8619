"""Views over views, and views that Spark folds only in part: kept current by steps, through restarts and damage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from penstock import App, Event
from penstock.errors import DiskFullError
from penstock.flows.plan import Planner
from penstock.flows.regroup import steps
from penstock.flows.regroup.regrouping import Regrouping
from penstock.flows.regroup.sums import RunningSums
from penstock.log.builds import batch_meta
from tests.flows.world import World

Make = Callable[[App], World]


class Sale(Event):
    at: int
    country: str
    product: str


def top(sold: DataFrame) -> DataFrame:
    by = Window.partitionBy("country").orderBy(F.desc("n"), "product")
    return sold.withColumn("place", F.row_number().over(by)).where("place <= 2").select("country", "place", "product")


def shop(*, weight: int = 1) -> App:
    """A folded view, its top two by country, and who leads how often: three deep."""
    app = App("shop")
    app.stream("sales", Sale, time="at", late_after="1 hour")

    @app.view(key=["country", "product"])
    def sold(sales: DataFrame) -> DataFrame:
        return sales.groupBy("country", "product").agg((F.count("*") * weight).alias("n"))

    @app.view(key=["country", "place"])
    def best(sold: DataFrame) -> DataFrame:
        return top(sold)

    @app.view(key="product")
    def leaders(best: DataFrame) -> DataFrame:
        return best.where("place = 1").groupBy("product").agg(F.count("*").alias("countries"))

    return app


def sales(text: str) -> list[Sale]:
    """`NL:a NL:b` as events."""
    pairs = [pair.split(":") for pair in text.split()]
    return [Sale(at=1_000_000 + number, country=c, product=p) for number, (c, p) in enumerate(pairs)]


def keyed(rows: list[dict[str, Any]], *names: str) -> set[tuple[Any, ...]]:
    return {tuple(row[name] for name in names) for row in rows}


def equal(world: World) -> bool:
    return {name: report.result for name, report in world.verify().items() if report.result != "equal"} == {}


def test_a_chain_of_views_moves_in_one_commit_and_equals_its_functions(world: Make) -> None:
    played = world(shop())
    played.send("sales", [sales("NL:a NL:a NL:b NL:c DE:b DE:b DE:a")])
    played.run()
    assert keyed(played.rows("best"), "country", "place", "product") == {
        ("NL", 1, "a"), ("NL", 2, "b"), ("DE", 1, "b"), ("DE", 2, "a"),
    }  # fmt: skip
    assert keyed(played.rows("leaders"), "product", "countries") == {("a", 1), ("b", 1)}
    played.send("sales", [sales("NL:c NL:c NL:c DE:c")])
    played.run()
    assert keyed(played.rows("best"), "country", "place", "product") == {
        ("NL", 1, "c"), ("NL", 2, "a"), ("DE", 1, "b"), ("DE", 2, "a"),
    }  # fmt: skip
    assert keyed(played.rows("leaders"), "product", "countries") == {("c", 1), ("b", 1)}
    last = [played._flows.last_commit(stream) for name in ("best", "leaders") if (stream := played.stream(name))]
    assert len({commit.written_us for commit in last if commit}) == 1
    told = [batch_meta(commit.meta).step for commit in last if commit and commit.meta]
    assert told[0] == told[1], "the edge shows both in one turn"
    assert told[0] is not None
    assert set(told[0]) == {"best", "leaders"}
    assert equal(played)


def test_what_spark_cannot_fold_is_cut_where_it_can(world: Make) -> None:
    app = App("shop")
    app.stream("sales", Sale, time="at", late_after="1 hour")

    @app.view(key=["window", "place"], keep="1 minute")
    def best(sales: DataFrame) -> DataFrame:
        counted = sales.groupBy(F.window("_time", "10 seconds"), "product").agg(F.count("*").alias("n"))
        by = Window.partitionBy("window").orderBy(F.desc("n"), "product")
        return counted.withColumn("place", F.row_number().over(by)).where("place <= 2")

    @app.view(key="product")
    def frequent(sales: DataFrame) -> DataFrame:
        return sales.groupBy("product").agg(F.count("*").alias("n")).where("n BETWEEN 2 AND 3")

    played = world(app)
    played.send("sales", [sales("NL:a NL:b NL:b NL:c")])
    played.run()
    assert keyed(played.rows("best"), "place", "product", "n") == {(1, "b", 2), (2, "a", 1)}
    assert keyed(played.rows("frequent"), "product", "n") == {("b", 2)}
    later = [Sale(at=1_100_000 + n, country="NL", product=p) for n, p in enumerate("aabb")]
    played.send("sales", [later])
    played.run()
    assert keyed(played.rows("frequent"), "product", "n") == {("a", 3)}
    assert keyed(played.rows("best"), "place", "product", "n") == {(1, "a", 2), (2, "b", 2)}, "keep= lets the old go"
    assert equal(played)


ALSO = [pytest.param(damage, marks=pytest.mark.long) for damage in ("deleted", "garbage")]


@pytest.mark.parametrize("damage", ["older", *ALSO])
def test_held_rows_are_filled_again_and_only_differences_are_written(world: Make, damage: str) -> None:
    played = world(shop())
    held = played.folder.held
    played.send("sales", [sales("NL:a NL:b NL:b")])
    played.run()
    old = held.read_bytes()
    played.send("sales", [sales("NL:a NL:a DE:c")])
    played.run()
    before = {
        name: played._flows.bounds(stream).ends for name in ("best", "leaders") if (stream := played.stream(name))
    }
    if damage == "deleted":
        held.unlink()
    else:
        held.write_bytes(old if damage == "older" else b"no database" * 1000)
    for wal in held.parent.glob("held.db-*"):
        wal.unlink()
    played.run()
    rows = {name: _changes(played, name, ends[0]) for name, ends in before.items()}
    assert rows == {"best": 0, "leaders": 0}, "what is equal is not written again"
    played.send("sales", [sales("DE:d DE:d")])
    played.run()
    assert keyed(played.rows("leaders"), "product", "countries") == {("a", 1), ("d", 1)}
    assert equal(played)


def _changes(played: World, name: str, start: int) -> int:
    stream = played.stream(name)
    assert stream is not None
    return sum(block.batch.num_rows for block in played._flows.read(stream, 0, start))


def test_a_step_that_the_log_has_and_held_rows_lack_is_not_written_twice(
    world: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps end between the commit of the log and that of `held.db`, and begin again."""
    played = world(shop())
    played.send("sales", [sales("NL:a NL:b NL:b")])
    played.run()
    stream = played.stream("best")
    assert stream is not None
    end = played._flows.bounds(stream).ends[0]
    commit, deaths = steps.Steps._commit, []

    def commit_and_die(self: steps.Steps, move: Any) -> None:
        commit(self, move)
        if not deaths:
            deaths.append(move)
            raise RuntimeError("died")

    monkeypatch.setattr(steps.Steps, "_commit", commit_and_die)
    played.send("sales", [sales("NL:a NL:a")])
    played.run()
    assert deaths
    assert _changes(played, "best", end) == 2
    assert keyed(played.rows("best"), "place", "product") == {(1, "a"), (2, "b")}
    assert equal(played)


def test_a_step_that_the_log_refuses_is_tried_again(world: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    played = world(shop())
    played.send("sales", [sales("NL:a NL:b NL:b")])
    played.run()
    commit, refused = steps.Steps._commit, []

    def refuse_once(self: steps.Steps, move: Any) -> None:
        if not refused:
            refused.append(self)
            raise DiskFullError("no room")
        assert self is refused[0], "the same steps go on"
        commit(self, move)

    monkeypatch.setattr(steps.Steps, "_commit", refuse_once)
    played.send("sales", [sales("NL:a NL:a")])
    played.run()
    assert keyed(played.rows("best"), "place", "product") == {(1, "a"), (2, "b")}
    assert equal(played)


def test_an_input_that_is_rebuilt_changes_rows_and_resets_nobody(world: Make) -> None:
    played = world(shop())
    played.send("sales", [sales("NL:a NL:b NL:b")])
    played.run()
    epochs = {name: stream.epoch for name in ("sold", "best") if (stream := played.stream(name))}
    played.use(shop(weight=2))
    played.run()
    again = {name: stream.epoch for name in ("sold", "best") if (stream := played.stream(name))}
    assert again["sold"] != epochs["sold"]
    assert again["best"] == epochs["best"]
    assert equal(played)


def test_a_view_that_fails_holds_up_itself_alone_and_catches_up(world: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    app = shop()

    @app.view(key="country", how="regrouped")
    def fragile(sold: DataFrame) -> DataFrame:
        return sold.groupBy("country").agg(F.sum("n").alias("all"))

    @app.view(key="country", how="added")
    def added(sold: DataFrame) -> DataFrame:
        return sold.groupBy("country").agg(F.sum("n").alias("all"))

    played = world(app)
    played.send("sales", [sales("NL:a")])
    played.run()
    computed = Regrouping.computed

    def fails(self: Regrouping, *given: Any) -> Any:
        if self.view.name == "fragile":
            raise RuntimeError("broken today")
        return computed(self, *given)

    monkeypatch.setattr(Regrouping, "computed", fails)
    monkeypatch.setattr(RunningSums, "computed", _broken)
    played.send("sales", [sales("NL:b NL:b DE:c")])
    monkeypatch.setattr(steps, "_BACKOFF_MOST_S", 0.2)
    views = ("fragile", "added")
    played.run(until=lambda: _sum_of(played, "best") == 3 and {_state(played, view) for view in views} == {"retrying"})
    assert keyed(played.rows("fragile"), "country", "all") == keyed(played.rows("added"), "country", "all")
    assert keyed(played.rows("fragile"), "country", "all") == {("NL", 1)}
    monkeypatch.undo()
    played.run()
    for view in views:
        assert keyed(played.rows(view), "country", "all") == {("NL", 3), ("DE", 1)}
    assert equal(played)


def _broken(*_: Any) -> Any:
    raise RuntimeError("broken today")


def _sum_of(played: World, name: str) -> int:
    return len(played.rows(name))


def _state(played: World, name: str) -> str:
    return str(played.memory()[f"flow/{name}"]["state"])


def test_a_view_without_units_is_refused_above_its_limit(world: Make) -> None:
    app = App("shop")
    app.stream("sales", Sale, time="at", late_after="1 hour")

    @app.view(key="product")
    def sold(sales: DataFrame) -> DataFrame:
        return sales.groupBy("product").agg(F.count("*").alias("n"))

    @app.view(key="product", whole=3)
    def ranked(sold: DataFrame) -> DataFrame:
        return sold.withColumn("place", F.row_number().over(Window.orderBy(F.desc("n"), "product")))

    played = world(app)
    played.send("sales", [sales("NL:a NL:b NL:b")])
    played.run()
    assert keyed(played.rows("ranked"), "product", "place") == {("b", 1), ("a", 2)}
    played.send("sales", [sales("NL:c NL:d NL:e")])
    played.run(until=lambda: _state(played, "ranked") == "retrying")
    error = played.memory()["flow/ranked"]["error"]
    assert error["code"] == "too_much"
    assert "whole=" in error["hint"]


def test_a_frontier_tells_where_each_view_stands(world: Make) -> None:
    played = world(shop())
    played.send("sales", [sales("NL:a"), sales("NL:b")])
    played.run()
    stream = played.stream("best")
    assert stream is not None
    last = played._flows.last_commit(stream)
    assert last is not None
    assert last.meta is not None
    sold = played.stream("sold")
    assert sold is not None
    assert batch_meta(last.meta).end == {"sold": [sold.epoch, list(played._flows.bounds(sold).ends)]}


def test_a_view_says_how_it_is_kept(spark: SparkSession, tmp_path: Path) -> None:
    from penstock.config import Folder

    planned, problems = Planner(spark, shop().declared(), Folder(tmp_path)).plan_all()
    assert [p for p in problems if p.level == "error"] == []
    ways = {name: (made.how, made.units.columns if made.units else None) for name, made in planned.items()}
    assert ways == {
        "sold": ("folded", None),
        "best": ("regrouped", ("country",)),
        "leaders": ("added", ("product",)),
    }
