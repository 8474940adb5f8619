"""Units that fail, are too large, or give one key twice: the rest of the view, and its siblings, go on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock import App, Event
from penstock.config import Folder
from penstock.flows.plan import Planner
from penstock.flows.regroup import regrouping, steps
from tests.flows.world import World

Make = Callable[[App], World]


class Part(Event):
    id: int
    box: str
    weight: int
    count: int


def boxes() -> App:
    app = App("boxes")
    app.table("parts", Part, key="id")
    app.sql("weights", key="box", query="SELECT box, sum(weight div count) AS each FROM parts GROUP BY box")
    app.sql("counts", key="box", how="regrouped", query="SELECT box, sum(count) AS n FROM parts GROUP BY box")
    return app


def part(number: int, box: str, *, count: int = 1) -> dict[str, Any]:
    return {"id": number, "box": box, "weight": 6, "count": count}


def rows(played: World, name: str, *columns: str) -> set[tuple[Any, ...]]:
    return {tuple(row[c] for c in columns) for row in played.rows(name)}


def state(played: World, name: str) -> tuple[str, str | None]:
    told = played.memory().get(f"flow/{name}") or {"state": "", "error": None}
    return told["state"], (told["error"] or {}).get("code")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "_BACKOFF_MOST_S", 0.1)


def test_a_unit_that_fails_leaves_the_view_and_comes_back_when_it_is_mended(world: Make, quick: None) -> None:
    played = world(boxes())
    played.change("parts", [[part(1, "a"), part(2, "b"), part(3, "c")]])
    played.run()
    assert rows(played, "weights", "box", "each") == {("a", 6), ("b", 6), ("c", 6)}
    played.change("parts", [[part(2, "b", count=0), part(3, "c", count=2)]])
    played.run()
    assert rows(played, "weights", "box", "each") == {("a", 6), ("c", 3)}
    assert rows(played, "counts", "box", "n") == {("a", 1), ("b", 0), ("c", 2)}
    (letter,) = played.events("dead")
    assert (letter["flow"], letter["reason"]) == ("weights", "poison")
    assert "box = 'b'" in letter["detail"]
    assert "zero" in letter["detail"]
    reports = played.verify()
    assert {name: report.result for name, report in reports.items()} == {"weights": "equal", "counts": "equal"}
    played.change("parts", [[part(4, "d", count=3)]])
    played.run()
    assert rows(played, "weights", "box", "each") == {("a", 6), ("c", 3), ("d", 2)}, "the others go on"
    played.change("parts", [[part(2, "b", count=3)]])
    played.run()
    assert rows(played, "weights", "box", "each") == {("a", 6), ("b", 2), ("c", 3), ("d", 2)}
    assert len(played.events("dead")) == 1
    assert {report.result for report in played.verify().values()} == {"equal"}


def test_a_view_stops_if_all_of_its_units_fail(world: Make, quick: None) -> None:
    played = world(boxes())
    played.change("parts", [[part(1, "a", count=0), part(2, "b", count=0), part(3, "c", count=0)]])
    played.run(until=lambda: state(played, "weights")[0] == "stopped" and state(played, "counts")[0] == "running")
    assert rows(played, "counts", "box", "n") == {("a", 0), ("b", 0), ("c", 0)}
    assert "zero" in played.memory()["flow/weights"]["error"]["message"]


def test_a_unit_above_its_limit_is_refused_by_name(world: Make, quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regrouping, "UNIT_ROWS", 2)
    played = world(boxes())
    played.change("parts", [[part(1, "a"), part(2, "a"), part(3, "b")]])
    played.run()
    played.change("parts", [[part(4, "a")]])
    played.run(until=lambda: state(played, "counts") == ("retrying", "group_too_large"))
    assert rows(played, "counts", "box", "n") == {("a", 2), ("b", 1)}
    assert "box = 'a'" in played.memory()["flow/counts"]["error"]["message"]


def test_two_rows_of_one_key_are_refused_with_both_units(world: Make, quick: None) -> None:
    app = App("boxes")
    app.table("parts", Part, key="id")
    app.sql("places", key="p", query="SELECT box, id, rank() OVER (PARTITION BY box ORDER BY id) AS p FROM parts")
    played = world(app)
    played.change("parts", [[part(1, "a")]])
    played.run()
    played.change("parts", [[part(2, "b")]])
    played.run(until=lambda: state(played, "places") == ("retrying", "duplicate_key"))
    detail = played.memory()["flow/places"]["error"]["detail"]
    assert "'a'" in detail
    assert "'b'" in detail


def test_chance_the_clock_and_python_are_refused_where_rows_are_computed_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    app = App("boxes")
    app.table("parts", Part, key="id")
    app.sql("drawn", key="id", query="SELECT id, rand() AS r FROM parts")
    app.sql("named", key="id", query="SELECT id, uuid() AS u FROM parts")
    app.sql("timed", key="id", query="SELECT id, current_timestamp() AS t FROM parts")
    app.sql("ranked", key="id", query="SELECT id, row_number() OVER (ORDER BY id, rand()) AS r FROM parts")
    twice = F.udf(lambda n: n * 2, "long")

    @app.view(key="id")
    def coded(parts: DataFrame) -> DataFrame:
        return parts.select("id", twice("count").alias("n"))

    @app.view(key="id", deterministic=True)
    def promised(parts: DataFrame) -> DataFrame:
        return parts.select("id", twice("count").alias("n"))

    planned, problems = Planner(spark, app.declared(), Folder(tmp_path)).plan_all()
    assert {p.message.split("'")[1]: p.code for p in problems if p.level == "error"} == dict.fromkeys(
        ["drawn", "named", "timed", "ranked", "coded"], "not_repeatable"
    )
    assert set(planned) == {"promised"}


def test_a_sample_of_units_is_proved_and_sees_a_wrong_row(world: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    played = world(boxes())
    played.change("parts", [[part(n, f"box{n % 40}", count=n % 7 + 1) for n in range(120)]])
    played.run()
    reports = played.verify(units=5)
    assert {name: (report.result, report.rows) for name, report in reports.items()} == {
        "weights": ("equal", 5), "counts": ("equal", 5),
    }  # fmt: skip
    played.change("parts", [[part(1_000 + n, f"box{n}", count=5) for n in range(40)]])
    computed = regrouping.Regrouping.computed

    def stale(self: regrouping.Regrouping, inputs: Any, units: set[bytes]) -> Any:
        result = computed(self, inputs, units)
        return result.slice(0, 0) if self.view.name == "counts" else result

    monkeypatch.setattr(regrouping.Regrouping, "computed", stale)
    played.run()
    assert {name: report.result for name, report in played.verify(units=5).items()} == {
        "weights": "equal", "counts": "different",
    }  # fmt: skip


def test_deep_verification_sees_what_is_wrong_below(world: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    app = boxes()
    app.sql("heavy", key="n", query="SELECT n, count(*) AS boxes FROM counts GROUP BY n")
    played = world(app)
    played.change("parts", [[part(n, f"box{n % 4}", count=n % 7 + 1) for n in range(12)]])
    played.run()
    assert {report.result for report in played.verify(deep=True).values()} == {"equal"}
    computed = regrouping.Regrouping.computed

    def wrong(self: regrouping.Regrouping, inputs: Any, units: set[bytes]) -> Any:
        result = computed(self, inputs, units)
        return result.slice(0, 0) if self.view.name == "counts" else result

    monkeypatch.setattr(regrouping.Regrouping, "computed", wrong)
    played.change("parts", [[part(50, "box1")]])
    played.run()
    assert played.verify()["heavy"].result == "equal", "its input is taken as it is"
    assert played.verify(deep=True)["heavy"].result == "different"
