"""`penstock.testing.run`: an app for the length of a test, as the batch twin computes it and as the real queries do."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock import App, Event, Struct
from penstock.errors import DeclarationError, UnknownStreamError, UnknownViewError
from penstock.testing import Trial, run
from penstock.testing.pytest_plugin import match
from tests.docs.pages import ROOT, blocks

pytestmark = pytest.mark.usefixtures("spark")
START = datetime(2026, 3, 1, 12, tzinfo=UTC)


class Order(Event):
    order_id: int
    country: str
    amount: float
    at: datetime


class Rate(Struct):
    country: str
    rate: float


def shop() -> App:
    """What real queries are compared with, too: each costs them half a second."""
    app = App("shop")
    app.stream("orders", Order, key="order_id", id="order_id", time="at", late_after="1 minute")
    app.table("rates", Rate, key="country")

    @app.view(key="country", where="orders > 1", order_by="-orders")
    def countries(orders: DataFrame) -> DataFrame:
        return orders.groupBy("country").agg(F.count("*").alias("orders"))

    @app.view(key=["window", "country"], keep="10 minutes")
    def minutes(orders: DataFrame) -> DataFrame:
        return orders.groupBy(F.window("_time", "1 minute"), "country").agg(F.count("*").alias("orders"))

    @app.flow(key="country")
    def closed(orders: DataFrame) -> DataFrame:
        counted = orders.groupBy(F.window("_time", "1 minute"), "country").agg(F.count("*").alias("orders"))
        return counted.select("window", "country", "orders")

    @app.view(key="country")
    def priced(countries: DataFrame, rates: DataFrame) -> DataFrame:
        return countries.join(rates, "country").select("country", (F.col("orders") * F.col("rate")).alias("due"))

    return app


def odd() -> App:
    """A flow with a time of its own, and a view that some events make fail."""
    app = App("odd")
    app.stream("orders", Order, key="order_id", id="order_id", time="at", late_after="1 minute")

    @app.flow(key="country", time="later", late_after="30 seconds")
    def shifted(orders: DataFrame) -> DataFrame:
        later = F.when(F.col("amount") < 0, F.col("_time") - F.expr("INTERVAL 5 MINUTES")).otherwise(F.col("_time"))
        return orders.select("country", "amount", later.alias("later"))

    @app.view(key=["window"])
    def shifts(shifted: DataFrame) -> DataFrame:
        return shifted.groupBy(F.window("_time", "1 minute")).agg(F.count("*").alias("orders"))

    @app.view(key="country")
    def shares(orders: DataFrame) -> DataFrame:
        return orders.groupBy("country").agg(F.sum((1 / F.col("amount")).cast("decimal(10,4)")).alias("share"))

    return app


APP = shop()
numbers: Iterator[int] = iter(range(10**9))


def order(country: str, seconds: float, amount: float = 1.0) -> Order:
    return Order(order_id=next(numbers), country=country, amount=amount, at=START + timedelta(seconds=seconds))


def play(t: Trial) -> None:
    """Events in order, behind, late, at the edge of a window, and twice."""
    t.send("orders", order("NL", 5), order("DE", 6))
    t.send("rates", Rate(country="NL", rate=2.0), {"country": "DE", "rate": 3.0})
    t.send("orders", order("NL", 70), order("NL", 130))
    t.send("orders", order("NL", 20), order("DE", 75))
    t.send("orders", order("NL", 140, amount=-1.0), order("FR", 150))


LOOKS = ("countries", "minutes", "closed", "priced")


def looked(t: Trial) -> dict[str, Any]:
    late = sorted((row["flow"], row["event"]["country"]) for row in t.late())
    flows = {name: sorted(map(str, t.rows(name))) for name in LOOKS}
    return flows | {"late": late, "dead": [row["reason"] for row in t.dead()]}


def test_rows_are_what_a_running_app_shows() -> None:
    with run(APP) as t:
        play(t)
        assert t.rows("countries") == [{"country": "NL", "orders": 5}, {"country": "DE", "orders": 2}]
        assert t.rows("priced") == [{"country": "DE", "due": 6.0}, {"country": "NL", "due": 10.0}]
        assert t.rows("rates") == [{"country": "DE", "rate": 3.0}, {"country": "NL", "rate": 2.0}]
        assert {(row["window"]["start"].minute, row["country"], row["orders"]) for row in t.rows("minutes")} == {
            (0, "NL", 1),
            (0, "DE", 1),
            (1, "NL", 1),
            (1, "DE", 1),
            (2, "NL", 2),
            (2, "FR", 1),
        }
        assert {(row["country"], row["orders"]) for row in t.rows("closed")} == {("DE", 1), ("NL", 1)}
        assert ("minutes", "NL") in {(row["flow"], row["event"]["country"]) for row in t.late()}
        t.delete("rates", "NL")
        assert t.rows("priced") == [{"country": "DE", "due": 6.0}]


def test_real_queries_show_the_same_through_pauses_and_crashes() -> None:
    with run(APP) as twin:
        play(twin)
        expected = looked(twin)
    with run(APP, real=True) as t:
        t.send("orders", order("NL", 5), order("DE", 6))
        assert len(t.rows("minutes")) == 2
        t.pause()
        t.send("rates", Rate(country="NL", rate=2.0), {"country": "DE", "rate": 3.0})
        t.send("orders", order("NL", 70), order("NL", 130))
        t.resume()
        t.crash("after commit")
        t.send("orders", order("NL", 20), order("DE", 75))
        t.crash("before commit")
        assert t.rows("countries")[0]["orders"] == 4
        t.crash()
        t.send("orders", order("NL", 140, amount=-1.0), order("FR", 150))
        assert looked(t) == expected


def test_rows_go_as_keep_says_and_a_paused_app_absorbs_nothing() -> None:
    with run(APP) as t:
        t.send("orders", order("NL", 0))
        assert len(t.rows("minutes")) == 1
        t.pause()
        t.send("orders", order("NL", 3600))
        assert [row["window"]["start"] for row in t.rows("minutes")] == [START]
        t.resume()
        assert [row["window"]["start"] for row in t.rows("minutes")] == [START + timedelta(hours=1)]


def test_the_clock_is_in_the_hand_of_the_test() -> None:
    with run(APP, start=START) as t:
        ahead = order("NL", 1200)
        assert t.send("orders", ahead).rejected[0].startswith("from_the_future")
        t.advance("10 minutes")
        assert t.now == START + timedelta(minutes=10)
        assert t.send("orders", ahead).accepted == 1
        assert t.send("orders", ahead).duplicates == 1
        assert [(row["stream"], row["reason"]) for row in t.dead()] == [("orders", "from_the_future")]
    with run(APP) as t:
        t.send("orders", order("NL", 30))
        assert t.now == START + timedelta(seconds=30)


def test_each_send_is_a_commit_behind_a_flow_that_makes_its_own_time_too() -> None:
    with run(odd()) as t:
        t.send("orders", order("NL", 5))
        t.send("orders", order("NL", 130))
        t.send("orders", order("DE", 75))
        t.send("orders", order("FR", 140, amount=-1.0))
        assert [row["orders"] for row in t.rows("shifts")] == [1, 1]
        assert [row["event"]["country"] for row in t.late("shifts")] == ["DE", "FR"]


def test_what_cannot_be_taken_is_dead_and_so_is_what_makes_a_flow_fail() -> None:
    with run(odd()) as t:
        t.send("orders", order("NL", 0), order("DE", 1, amount=0.0), {"order_id": "x"}, b"{")
        assert [row["country"] for row in t.rows("shares")] == ["NL"]
        letters = [(row["reason"], row["flow"]) for row in t.dead()]
        assert letters == [("wrong_type", None), ("malformed", None), ("poison", "shares")]
        t.crash()
        assert [row["country"] for row in t.rows("shares")] == ["NL"]
        assert len(t.dead()) == 3


def test_a_name_or_a_class_that_is_not_the_apps_is_refused() -> None:
    with run(APP) as t:
        with pytest.raises(UnknownStreamError, match="no stream or table 'order'"):
            t.send("order", order("NL", 0))
        with pytest.raises(UnknownViewError, match="no view or flow 'country'"):
            t.rows("country")
        with pytest.raises(TypeError, match="instances of Order or dicts, not Rate"):
            t.send("orders", Rate(country="NL", rate=1.0))
        with pytest.raises(ValueError, match="real=True"):
            t.crash("after commit")


def test_an_app_that_check_refuses_does_not_run() -> None:
    app = App("wrong")
    app.stream("orders", Order, time="at")

    @app.view(key="country")
    def best(orders: DataFrame) -> DataFrame:
        return orders.groupBy("country").agg(F.count("*").alias("orders")).where("orders > 1").withColumn("x", F.rand())

    with pytest.raises(DeclarationError):
        run(app)


def test_the_page_about_testing_runs_as_it_stands(tmp_path: Path) -> None:
    """In a pytest of its own, with its fixtures and a golden file."""
    (tmp_path / "shop.py").write_text(blocks(ROOT / "README.md", "python")[0].code)
    for block in blocks(ROOT / "docs/how-to/test-a-flow.md", "python"):
        (tmp_path / block.code.split("\n")[0].removeprefix("# ")).write_text(block.code)
    golden = tmp_path / "golden" / "test_shop" / "test_rows_are_as_they_were.json"
    golden.parent.mkdir(parents=True)
    rows = [("NL", 2, 20.0), ("DE", 1, 10.0), ("FR", 1, 30.0)]
    golden.write_text(json.dumps([dict(zip(("country", "orders", "turnover"), row, strict=True)) for row in rows]))
    assert "5 passed" in pytest_of(tmp_path)


def test_rows_are_compared_with_a_golden_file_that_is_written_when_asked(tmp_path: Path) -> None:
    file = tmp_path / "golden" / "rows.json"
    with pytest.raises(pytest.fail.Exception, match="is not there: look at the rows"):
        match(file, [{"n": 2**60}], update=False)
    match(file, [{"n": 2**60, "at": START}], update=True)
    assert json.loads(file.read_text()) == [{"n": str(2**60), "at": "2026-03-01T12:00:00.000Z"}]
    match(file, [{"n": 2**60, "at": START}], update=False)
    with pytest.raises(pytest.fail.Exception, match="not as in"):
        match(file, [{"n": 2, "at": START}], update=False)


def pytest_of(folder: Path, *options: str) -> str:
    installed = any(point.name == "penstock" for point in entry_points(group="pytest11"))
    plugin = () if installed else ("-p", "penstock.testing.pytest_plugin")  # a checkout from before it had one
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugin]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([*command, *options], cwd=folder, env=env, capture_output=True, text=True, timeout=300)
    return done.stdout + done.stderr


def test_a_split_sends_each_event_to_the_first_stream_that_it_fits() -> None:
    app = App("split")
    orders = app.stream("orders", Order, key="order_id", id="order_id", time="at", partitions=2)
    app.split(orders, big="amount > 100", dutch="country = 'NL'", rest=None)

    @app.view(key="country")
    def others(rest: DataFrame) -> DataFrame:
        return rest.groupBy("country").agg(F.count("*").alias("orders"))

    with run(app) as t:
        t.send("orders", order("NL", 1, 500.0), order("NL", 2), order("DE", 3), order("DE", 4, 101.0))
        t.send("orders", order("DE", 5))
        names = ("big", "dutch", "rest")
        amounts = {name: sorted((row["country"], row["amount"]) for row in t.rows(name)) for name in names}
        assert amounts == {
            "big": [("DE", 101.0), ("NL", 500.0)],
            "dutch": [("NL", 1.0)],
            "rest": [("DE", 1.0), ("DE", 1.0)],
        }
        assert t.rows("others") == [{"country": "DE", "orders": 2}]


def test_silence_lets_windows_close_when_time_is_let_pass() -> None:
    app = App("silent")
    app.stream("orders", Order, id="order_id", time="at", late_after="1 minute", idle_after="2 minutes")

    @app.view(key="window", final=True)
    def minutes(orders: DataFrame) -> DataFrame:
        return orders.groupBy(F.window("_time", "1 minute")).agg(F.count("*").alias("orders"))

    with run(app) as t:
        t.send("orders", order("NL", 5))
        t.send("orders", order("NL", 121))
        assert [row["is_final"] for row in t.rows("minutes")] == [True, False]
        t.advance("1 minute")
        assert [row["is_final"] for row in t.rows("minutes")] == [True, False]
        t.advance("2 minutes")
        assert [row["is_final"] for row in t.rows("minutes")] == [True, True]
        t.send("orders", order("NL", 125))
        assert [row["event"]["country"] for row in t.late()] == ["NL"]
