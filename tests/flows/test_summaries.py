"""Summaries against exact answers: each estimate within its bound, in every order and cut, and proved by `verify`."""

import math
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock import App, Event, summaries
from penstock.errors import DeclarationError
from penstock.flows.summary_bounds import compare_bounded
from penstock.sketches import CountMin, CountMinRanges, Membership, item_hash
from penstock.summaries import CHECK, VALUES
from penstock.testing import run
from tests.flows.world import World

START = datetime(2026, 1, 1, tzinfo=UTC)
START_MS = int(START.timestamp() * 1000)


class View(Event):
    view_id: int
    at: int
    ad: str
    visitor: str
    took: float


def views(count: int, seed: int, visitors: int = 400) -> list[View]:
    random = Random(seed)
    return [
        View(
            view_id=n,
            at=START_MS + 1000 * n,
            ad=f"ad {min(random.randrange(20), random.randrange(20))}",
            visitor=f"v{random.randrange(visitors)}",
            took=round(random.lognormvariate(0, 1), 6),
        )
        for n in range(count)
    ]


def ads() -> App:
    app = App("ads")
    app.stream("views", View, key="view_id", time="at", id="view_id")

    @app.view(key="half")
    def summed(views: DataFrame) -> DataFrame:
        return views.groupBy((F.col("view_id") % 2).alias("half")).agg(
            summaries.distinct("visitor", sketch=True).alias("visitors"),
            summaries.distinct("visitor", kind="hll", lg=8, sketch=True).alias("roughly"),
            summaries.frequency("ad", ranges=0).alias("ads"),
            summaries.membership("visitor", expected=500).alias("seen"),
            summaries.sample("ad", "visitor", n=5).alias("some"),
            summaries.drift("took", [0.5, 1.0, 2.0], [0.25, 0.25, 0.25, 0.25]).alias("moved"),
        )

    @app.view(key="half")
    def bounded(views: DataFrame) -> DataFrame:
        return views.groupBy((F.col("view_id") % 2).alias("half")).agg(
            summaries.quantiles("took", [0.5, 0.99], error=0.01).alias("took"),
            summaries.quantiles("took", [0.9], error=0.05, sketch=True).alias("merged"),
            summaries.heavy_hitters("ad", 3, tracked=8).alias("most"),
            F.avg("took").alias("mean"),
        )

    return app


def test_real_queries_give_summaries_that_verify_proves(world: Callable[[App], World]) -> None:
    played, events = world(ads()), views(600, seed=1)
    played.send("views", [events[:10], events[10:400]])
    played.run()
    played.send("views", [[event] for event in events[400:405]] + [events[405:]])
    played.run(max_rows=100)
    reports = played.verify()
    assert {name: (report.result, report.differences) for name, report in reports.items()} == {
        "summed": ("equal", []),
        "bounded": ("equal", []),
    }
    assert played.memory()["build/summed"]["proof"] == "exact"
    assert played.memory()["build/bounded"]["proof"] == "bounded"
    for row in played.rows("summed"):
        mine = [event for event in events if event.view_id % 2 == row["half"]]
        assert row["visitors"]["estimate"] == len({event.visitor for event in mine})  # exact below 4,096
        assert row["visitors"]["bound"] == 0
        assert abs(row["roughly"]["estimate"] - row["visitors"]["estimate"]) <= row["roughly"]["bound"]
        counts, sketch = Counter(event.ad for event in mine), CountMin.of(row["ads"]["sketch"])
        assert sketch.total == row["ads"]["total"] == len(mine)
        assert all(counts[ad] <= sketch.count(ad) <= counts[ad] + row["ads"]["bound"] for ad in counts)
        filter = Membership.of(row["seen"]["filter"])
        assert all(filter.holds(event.visitor) for event in mine)
        assert sum(filter.holds(f"never {n}") for n in range(1000)) <= 10
        chosen = sorted(mine, key=lambda event: item_hash(str(event.view_id), None))[:5]
        assert row["some"] == {
            "rows": [{"ad": event.ad, "visitor": event.visitor} for event in chosen],
            "of": len(mine),
        }
        shares = [sum(low <= e.took < high for e in mine) / len(mine) for low, high in BUCKETS]
        psi = sum((p - 0.25) * math.log(p / 0.25) for p in shares)
        assert row["moved"]["drift"] == pytest.approx(psi)


BUCKETS = [(-math.inf, 0.5), (0.5, 1.0), (1.0, 2.0), (2.0, math.inf)]


def test_sketches_read_as_spark_wrote_them(spark: SparkSession) -> None:
    random = Random(5)
    numbers = [random.randrange(1000) for _ in range(5000)]
    texts = [random.choice(["", "a", "äöü", "a longer text of more than 32 bytes for the hash"]) for _ in numbers]
    frame = spark.createDataFrame(list(zip(numbers, texts, strict=True)), "n bigint, text string")
    row = frame.agg(
        summaries.frequency("n", width=2048, ranges=10).alias("numbers"),
        summaries.frequency("text", depth=3, width=64).alias("texts"),
        summaries.membership("n", expected=60_000).alias("seen"),
    ).first()
    assert row is not None
    counts, sketch = Counter(numbers), CountMin.of(bytes(row["numbers"]["sketch"]))
    assert len(sketch.rows) == 8
    assert sketch.width == 2048
    assert all(counts[n] <= sketch.count(n) <= counts[n] + sketch.bound for n in range(1000))
    ranges = CountMinRanges.of([bytes(level) for level in row["numbers"]["levels"]])
    for low, high in [(0, 999), (17, 611), (500, 500), (3, 4), (9, 8)]:
        exact = sum(counts[n] for n in range(low, high + 1))
        assert exact <= ranges.count(low, high) <= exact + 20 * sketch.bound
    exact_square = sum(count * count for count in counts.values())
    assert exact_square <= sketch.inner(sketch) <= exact_square + 2 * len(numbers) ** 2 // 2048
    words = CountMin.of(bytes(row["texts"]["sketch"]))
    assert {text: words.count(text) for text in set(texts)} == Counter(texts)
    filter = Membership.of([[bytes(block) for block in blocks] for blocks in row["seen"]["filter"]])
    assert [len(blocks) for blocks in filter.blocks] == [3] * 7
    assert all(filter.holds(n) for n in counts)
    assert sum(filter.holds(n) for n in range(10_000, 12_000)) == 0
    asked = spark.createDataFrame([(n,) for n in (*list(counts)[:20], -1, 10_001)], "n bigint")
    held = frame.agg(summaries.membership("n", expected=60_000).alias("seen"))
    found = asked.crossJoin(held).select("n", summaries.seen("seen", "n").alias("yes")).collect()
    assert {row["n"] for row in found if not row["yes"]} == {-1, 10_001}
    with pytest.raises(ValueError, match="not the bytes"):
        CountMin.of(b"short")


def test_averages_decay_and_move_and_are_compared_with_another_time() -> None:
    app = App("rates")
    app.stream("views", View, key="view_id", time="at", id="view_id", late_after="1 day")

    @app.view(key="window")
    def minutes(views: DataFrame) -> DataFrame:
        return views.groupBy(F.window("_time", "1 minute")).agg(
            F.count("*").alias("n"),
            summaries.rate("1 second", over="1 minute").alias("per_second"),
            summaries.decayed("took", half_life="20 seconds", window="1 minute").alias("lately"),
        )

    @app.view(key="window")
    def trend(minutes: DataFrame) -> DataFrame:
        return summaries.moving(minutes.select("window", "n"), "n", over="3 minutes")

    @app.view(key="window")
    def change(minutes: DataFrame) -> DataFrame:
        return summaries.compared(minutes.select("window", "n"), "n", ago="2 minutes")

    counts = [5, 1, 7, 0, 4]
    events = [
        View(view_id=100 * m + n, at=START_MS + 60_000 * m + 1000 * n, ad="a", visitor="v", took=float(n))
        for m, count in enumerate(counts)
        for n in range(count)
    ]
    Random(3).shuffle(events)
    with run(app) as t:
        for event in events:
            t.send("views", event)
        shown = {_minute(row): row for row in t.rows("minutes")}
        assert {m: row["per_second"] for m, row in shown.items()} == {m: n / 60 for m, n in enumerate(counts) if n}
        weights = [2 ** (n / 20) for n in range(5)]
        lately = sum(n * w for n, w in enumerate(weights)) / sum(weights)
        assert shown[0]["lately"] == pytest.approx(lately)
        moved = {_minute(row): row["n_moving"] for row in t.rows("trend")}
        assert {m: (each["sum"], each["windows"]) for m, each in moved.items()} == {
            0: (5, 1),
            1: (6, 2),
            2: (13, 3),
            4: (11, 2),
        }
        changed = {_minute(row): (row["before"], row["change"], row["ratio"]) for row in t.rows("change")}
        assert changed == {0: (None, None, None), 1: (None, None, None), 2: (5, 2, 1.4), 4: (7, -3, 4 / 7)}


def _minute(row: dict[str, Any]) -> int:
    return (row["window"]["start"] - START) // timedelta(minutes=1)


def test_an_estimate_outside_of_its_bound_is_a_difference() -> None:
    values = [float(n) for n in range(1000)]

    def rank(likely: float) -> dict[str, Any]:
        facts = f'{{"kind": "rank", "at": 0.5, "error": 0.01, "likely": {likely}}}'
        return {"took": {"at": [0.5], "values": [{CHECK: facts, VALUES: values}], "bound": 0.01}}

    def shown(value: float) -> dict[str, Any]:
        return {"took": {"at": [0.5], "values": [value], "bound": 0.01}}

    def compared(held: list[float], likely: float) -> tuple[int, int]:
        rows = {n: shown(value) for n, value in enumerate(held)}
        found = compare_bounded(rows, dict.fromkeys(rows, rank(likely)), lambda a, b: a == b)
        return len(found.differences), len(found.missed)

    assert compared([490.0, 500.0, 511.0], 1.0) == (0, 0)
    assert compared([480.0, 500.0, 520.0], 1.0) == (2, 0)
    assert compared([480.0, 500.0, 520.0], 0.99) == (0, 2)
    assert compared([480.0] * 4 + [500.0] * 20, 0.99) == (4, 0)
    top = {CHECK: '{"kind": "top", "k": 2, "error": 0.01}', VALUES: ["a"] * 60 + ["b"] * 30 + ["c"] * 10}

    def most(**counts: int) -> int:
        items = [{"item": item, "count": count} for item, count in counts.items()]
        return len(compare_bounded({1: {"most": items}}, {1: {"most": top}}, lambda a, b: a == b).differences)

    assert most(a=60, b=31) == 0
    assert most(a=60, b=33) == 1
    assert most(a=60, c=10) == 1


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: summaries.distinct("x", lg=40), "lg=40 is out of range"),
        (lambda: summaries.distinct("x", kind="bloom"), "'bloom' is no kind"),  # type: ignore[arg-type]
        (lambda: summaries.heavy_hitters("x", sketch=True), "heavy_hitters has no sketch to give as bytes"),
        (lambda: summaries.sample("x", sketch=True), "sample has no sketch to give as bytes"),
        (lambda: summaries.quantiles("x", [1.5]), "are no shares"),
        (lambda: summaries.frequency("x", width=1), "is no sketch"),
        (lambda: summaries.membership("x", expected=0), "expected=0"),
        (lambda: summaries.rate("0 seconds", over="1 minute"), "rate: 0 seconds"),
        (lambda: summaries.decayed("x", half_life="1 second", window="1 hour"), "more than 500 half-lives"),
        (lambda: summaries.drift("x", [1.0], [1.0]), "1 edges and 1 shares"),
    ],
)
def test_what_makes_no_sense_is_refused_where_it_is_written(
    spark: SparkSession, call: Callable[[], Any], said: str
) -> None:
    with pytest.raises(DeclarationError, match=said):
        call()
