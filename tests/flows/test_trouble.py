"""One bad event, one wrong key, a lost checkpoint, a falsified view: each is seen, told and survived."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock import App, Event
from penstock.flows.flow_build import checkpoint_of
from penstock.flows.verify import exit_code
from penstock.log.log import Append
from penstock.log.opening import open_log
from tests.flows.world import World


class Reading(Event):
    n: int
    at: int
    text: str


def readings(texts: list[str], start: int = 0) -> list[Reading]:
    return [Reading(n=start + i, at=1_700_000_000_000 + start + i, text=t) for i, t in enumerate(texts)]


def casting_app() -> App:
    app = App("cast")
    app.stream("readings", Reading, time="at", id="n")

    @app.view(key="g")
    def totals(readings: DataFrame) -> DataFrame:
        return readings.groupBy((F.col("n") % 2).alias("g")).agg(F.sum(F.col("text").cast("int")).alias("s"))

    @app.view(key="g")
    def counts(readings: DataFrame) -> DataFrame:
        return readings.groupBy((F.col("n") % 2).alias("g")).agg(F.count("*").alias("c"))

    return app


def test_one_event_that_makes_the_cast_fail_is_left_out_and_found_in_dead(world: Callable[[App], World]) -> None:
    one = world(casting_app())
    one.send("readings", [readings(["1", "2", "3", "oops", "5"]), readings(["6"], 5)])
    one.run()
    assert {row["g"]: row["s"] for row in one.rows("totals")} == {0: 1 + 3 + 5, 1: 2 + 6}
    assert sum(row["c"] for row in one.rows("counts")) == 6
    (letter,) = one.events("dead")
    assert (letter["reason"], letter["stream"], letter["flow"]) == ("poison", "readings", "totals")
    assert b'"oops"' in letter["raw"]
    assert one.memory()["count/readings/totals"]["dead"] == 1
    assert {r.result for r in one.verify().values()} == {"equal"}


def test_when_every_event_fails_the_flow_stops_and_says_so_and_the_other_goes_on(world: Callable[[App], World]) -> None:
    one = world(casting_app())
    one.send("readings", [readings(["bad"] * 40)])

    def stopped() -> bool:
        memory = one.memory()
        counted = one.stream("counts") is not None and memory.get("flow/counts", {}).get("state") == "running"
        return counted and memory.get("flow/totals", {}).get("state") == "stopped" and bool(one.rows("counts"))

    one.run(until=stopped)
    error = one.memory()["flow/totals"]["error"]
    assert "totals" in error["message"]
    assert "test_trouble.py" in error["message"]
    assert "batch 0" in error["detail"]
    assert "readings [0] to [40]" in error["detail"]
    assert "stays stopped" in error["hint"]
    assert sum(row["c"] for row in one.rows("counts")) == 40


def test_two_rows_of_one_key_name_the_key(world: Callable[[App], World]) -> None:
    app = App("twice")
    app.stream("readings", Reading, time="at", id="n")

    @app.view(key="g")
    def wrong(readings: DataFrame) -> DataFrame:
        return readings.repartition(2).select((F.col("n") % 2).alias("g"), "text")

    one = world(app)
    one.send("readings", [readings(["a", "b", "c", "d"])])
    one.run(until=lambda: one.memory().get("flow/wrong", {}).get("state") == "stopped")
    error = one.memory()["flow/wrong"]["error"]
    assert error["code"] == "duplicate_key"
    assert "'g'" in error["message"]


def test_without_an_aggregation_the_last_row_of_a_key_wins(world: Callable[[App], World]) -> None:
    app = App("last")
    app.stream("readings", Reading, time="at", id="n")

    @app.view(key="g")
    def newest(readings: DataFrame) -> DataFrame:
        return readings.select((F.col("n") % 2).alias("g"), "text")

    one = world(app)
    one.send("readings", [readings(["a", "b", "c", "d", "e"])])
    one.run()
    assert {row["g"]: row["text"] for row in one.rows("newest")} == {0: "e", 1: "d"}
    assert one.verify()["newest"].result == "equal"


def test_sql_and_functions_of_pandas_keep_the_order_of_the_log(world: Callable[[App], World]) -> None:
    app = App("last")
    app.stream("readings", Reading, time="at", id="n")

    @app.view(key="g")
    def by_sql(readings: DataFrame, spark: SparkSession) -> DataFrame:
        return spark.sql("WITH r AS (SELECT n % 2 AS g, text FROM {readings}) SELECT * FROM r", readings=readings)

    @app.view(key="g")
    def by_view(readings: DataFrame, spark: SparkSession) -> DataFrame:
        readings.createOrReplaceTempView("readings")
        return spark.sql("SELECT n % 2 AS g, text FROM readings")

    @app.view(key="g", deterministic=True)
    def by_pandas(readings: DataFrame) -> DataFrame:
        halves = readings.select((F.col("n") % 2).alias("g"), "text")
        return halves.mapInPandas(lambda frames: frames, "g bigint, text string")

    one = world(app)
    one.send("readings", [readings(["a", "b", "c", "d", "e"])])
    one.run()
    for name, report in one.verify().items():
        assert {row["g"]: row["text"] for row in one.rows(name)} == {0: "e", 1: "d"}, name
        assert report.result == "equal", name


def test_where_looks_at_the_last_row_of_a_key_and_verify_agrees(world: Callable[[App], World]) -> None:
    app = App("last")
    app.stream("readings", Reading, time="at", id="n")

    @app.view(key="g", where="text <> 'gone'")
    def newest(readings: DataFrame) -> DataFrame:
        return readings.select((F.col("n") % 2).alias("g"), "text")

    one = world(app)
    one.send("readings", [readings(["a", "b", "gone"])])
    one.run()
    assert {row["g"]: row["text"] for row in one.rows("newest")} == {1: "b"}
    assert one.verify()["newest"].result == "equal"


def test_keep_lets_old_windows_go_against_the_newest_event(world: Callable[[App], World]) -> None:
    app = App("keep")
    app.stream("readings", Reading, time="at", id="n", late_after="1 minute")

    @app.view(key="window", keep="2 minutes")
    def recent(readings: DataFrame) -> DataFrame:
        return readings.groupBy(F.window("_time", "1 minute")).count()

    minute = [Reading(n=i, at=1_700_000_000_000 + i * 60_000, text="") for i in range(10)]
    one = world(app)
    one.send("readings", [[event] for event in minute[:6]])
    one.run()
    one.send("readings", [[event] for event in minute[6:]])
    one.run()
    ends = sorted(row["window"]["end"].timestamp() for row in one.rows("recent"))
    newest = minute[-1].at / 1000
    assert ends
    assert ends[0] >= newest - 120
    assert len(ends) == 3
    assert one.verify()["recent"].result == "equal"


def test_a_row_without_a_time_is_kept_until_it_has_one(world: Callable[[App], World]) -> None:
    app = App("keep")
    app.stream("readings", Reading, time="at", id="n")

    @app.view(key="g", keep="2 minutes")
    def last_alarm(readings: DataFrame) -> DataFrame:
        alarm = F.when(F.col("text") == "alarm", F.col("_time"))
        return readings.groupBy((F.col("n") % 2).alias("g")).agg(F.max(alarm).alias("_time"))

    one = world(app)
    texts = ["alarm", "", "", "", "", ""]
    one.send("readings", [[Reading(n=n, at=1_700_000_000_000 + n * 60_000, text=t)] for n, t in enumerate(texts)])
    one.run()
    assert one.rows("last_alarm") == [{"g": 1, "_time": None}]
    assert one.verify()["last_alarm"].result == "equal"


def test_verify_knows_which_windows_a_join_still_holds_open(world: Callable[[App], World]) -> None:
    app = App("pairs")
    app.stream("sent", Reading, time="at", id="n", late_after="1 minute")
    app.stream("seen", Reading, time="at", id="n", late_after="1 minute")

    @app.flow(key="window")
    def answered(sent: DataFrame, seen: DataFrame) -> DataFrame:
        soon = F.expr("a.text = b.text AND b._time BETWEEN a._time AND a._time + INTERVAL 10 MINUTES")
        pairs = sent.alias("a").join(seen.alias("b"), soon)
        return pairs.groupBy(F.window("a._time", "1 minute")).agg(F.count("*").alias("n"))

    one = world(app)
    for minutes, closed in ((range(8), 0), (range(8, 20), 7)):
        for stream in ("sent", "seen"):
            one.send(stream, [[Reading(n=n, at=1_700_000_040_000 + n * 60_000, text="x") for n in minutes]])
        one.run(until=lambda closed=closed: one.level() and len(one.events("answered")) == closed)
        report = one.verify()["answered"]
        assert (report.result, report.rows) == ("equal", closed)
    assert [row["n"] for row in one.events("answered")][:3] == [11, 11, 11]


@pytest.mark.parametrize("damage", ["commits", "offsets", "state", "several", "all"])
def test_what_a_power_cut_leaves_is_mended_or_rebuilt(world: Callable[[App], World], damage: str) -> None:
    one = world(casting_app())
    for start in range(0, 30, 10):
        one.send("readings", [readings(["1"] * 10, start)])
        one.run()
    epoch = one.memory()["live/totals"]
    _cut(checkpoint_of(one.folder, "totals", epoch), damage)
    one.send("readings", [readings(["1"] * 10, 30)])
    one.run()
    assert sum(row["s"] for row in one.rows("totals")) == 40
    assert one.verify()["totals"].result == "equal"


def _cut(checkpoint: Path, damage: str) -> None:
    def newest(kind: str, count: int) -> list[Path]:
        files = [p for p in (checkpoint / kind).iterdir() if p.name.isdigit()]
        return sorted(files, key=lambda p: int(p.name))[-count:]

    if damage == "commits":
        newest("commits", 1)[0].write_bytes(b"")
    elif damage == "offsets":
        newest("offsets", 1)[0].write_bytes(b"v1\n{")
    elif damage == "state":
        for path in (checkpoint / "state").rglob("*"):
            if path.is_file() and path.suffix in (".changelog", ".zip"):
                path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif damage == "several":
        for path in (*newest("commits", 2), *newest("offsets", 2)):
            path.write_bytes(b"")
    else:
        shutil.rmtree(checkpoint)


def test_verify_sees_a_view_that_was_falsified(world: Callable[[App], World]) -> None:
    one = world(casting_app())
    one.send("readings", [readings(["1", "2", "3"])])
    one.run()
    log = open_log(one.folder.flows_log, app="cast")
    output = one.stream("counts")
    assert output is not None
    last = log.last_commit(output)
    assert last is not None
    wrong: dict[str, Any] = {"g": [0], "c": [99], "_op": [0]}
    log.append([Append(output, pa.RecordBatch.from_pydict(wrong, schema=output.schema), meta=last.meta)])
    log.close()
    reports = one.verify()
    assert reports["totals"].result == "equal"
    assert reports["counts"].result == "different"
    assert "'c': 99" in reports["counts"].differences[0]
    assert exit_code(list(reports.values())) == 1
