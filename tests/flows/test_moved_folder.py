"""A folder that is exported while its queries run goes on as if it had never moved."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock import App, Event
from penstock.config import Folder
from penstock.flows.session import hold
from penstock.run.moving import export, restore
from tests.flows.world import World


class Order(Event):
    order_id: int
    at: int
    country: str


def shop() -> App:
    app = App("shop")
    app.stream("orders", Order, key="order_id", id="order_id", time="at", late_after="1 hour")

    @app.view(key="country")
    def countries(orders: DataFrame) -> DataFrame:
        return orders.groupBy("country").agg(F.count("*").alias("orders"))

    @app.view(key="orders")
    def sizes(countries: DataFrame) -> DataFrame:
        return countries.groupBy("orders").agg(F.count("*").alias("countries"))

    return app


def orders(numbers: range) -> list[Order]:
    return [Order(order_id=n, at=1_767_225_600_000 + n, country=f"c{n % 7}") for n in numbers]


def test_queries_stand_still_for_the_copy_which_then_goes_on(
    spark: SparkSession, world: Callable[[App], World], tmp_path: Path
) -> None:
    played, file = world(shop()), tmp_path / "shop.tar"
    played.send("orders", [orders(range(100))])
    lock = hold(spark, played.folder.flows_lock)
    steps: Iterator[int] = iter(range(100, 100_000, 10))
    exporting = threading.Thread(target=export, args=(played.folder, "shop", file), kwargs={"close": False})

    def send_until_exported() -> bool:
        if exporting.ident is None:
            if played.level():
                exporting.start()
            return False
        first = next(steps)
        played.send("orders", [orders(range(first, first + 10))])
        return file.exists()

    try:
        played.run(until=send_until_exported)
    finally:
        lock.release()
        exporting.join()
    assert not played.folder.copy_paused.exists()
    restore(Folder(tmp_path / "copy"), "shop", file)
    copy = World(spark, tmp_path / "copy", shop())
    try:
        there = copy.ends("orders")[0]
        copy.send("orders", [orders(range(there, there + 50))])
        copy.run()
        assert sum(row["orders"] for row in copy.rows("countries")) == there + 50
        for name in ("countries", "sizes"):
            assert copy.memory()[f"build/{name}"] == played.memory()[f"build/{name}"]
        assert {report.result for report in copy.verify().values()} == {"equal"}
        assert not list(copy.folder.checkpoints.glob("*/*.lost"))
    finally:
        copy.close()
