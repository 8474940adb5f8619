"""`penstock.testing.rows`: a user's function over events, as the app would run it, without running the app."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock import App, Event, Struct
from penstock.errors import DuplicateKeyError, PlanError, UnknownStreamError, UnknownViewError
from penstock.testing import rows

pytestmark = pytest.mark.usefixtures("spark")


class Line(Struct):
    item: str
    price: Decimal | None = None


class Order(Event):
    order_id: int
    country: str
    amount: float
    at: int
    lines: list[Line] = []
    labels: dict[str, str] = {}


def order(order_id: int, country: str, amount: float, at: int = 0, **more: Any) -> Order:
    return Order(order_id=order_id, country=country, amount=amount, at=at, **more)


def shop(**options: Any) -> App:
    app = App("shop")
    app.stream("orders", Order, key="order_id", id="order_id", time="at", late_after="1 minute")

    @app.view(key="country", order_by="-orders", limit=1, **options)
    def countries(orders: DataFrame) -> DataFrame:
        return orders.groupBy("country").agg(F.count("*").alias("orders"), F.sum("amount").alias("turnover"))

    @app.flow(key="country")
    def large(orders: DataFrame) -> DataFrame:
        return orders.where("amount >= 10").select("_time", "country", "amount")

    @app.view(key=["window", "country"])
    def by_minute(large: DataFrame) -> DataFrame:
        return large.groupBy(F.window("_time", "1 minute"), "country").agg(F.count("*").alias("orders"))

    @app.view(key="country", where="amount > 5")
    def newest(orders: DataFrame) -> DataFrame:
        return orders.select("country", "amount", "_time")

    @app.view(key="order_id")
    def whole(orders: DataFrame) -> DataFrame:
        return orders

    @app.view(key="country")
    def twice(orders: DataFrame) -> DataFrame:
        return orders.select("country").union(orders.select("country"))

    @app.view(key="country")
    def broken(orders: DataFrame) -> DataFrame:
        return orders.select("country", "no_such_column")

    return app


ORDERS = [order(1, "NL", 12.5, 1_000), order(2, "DE", 40, 2_000), order(3, "NL", 7.5, 61_000)]


def test_a_views_rows_come_in_its_order_and_without_its_limit() -> None:
    assert rows(shop(), "countries", orders=ORDERS) == [
        {"country": "NL", "orders": 2, "turnover": 20.0},
        {"country": "DE", "orders": 1, "turnover": 40.0},
    ]


def test_a_views_where_is_honoured() -> None:
    assert [row["country"] for row in rows(shop(where="orders > 1"), "countries", orders=ORDERS)] == ["NL"]


def test_an_id_that_comes_twice_is_one_event() -> None:
    assert rows(shop(), "countries", orders=[ORDERS[0], ORDERS[0]])[0]["orders"] == 1


def test_a_flow_gives_its_rows_as_they_come() -> None:
    assert rows(shop(), "large", orders=ORDERS) == [
        {"_time": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), "country": "NL", "amount": 12.5},
        {"_time": datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC), "country": "DE", "amount": 40.0},
    ]


def test_a_view_behind_a_flow_is_computed_through_it() -> None:
    minute = {"start": datetime(1970, 1, 1, tzinfo=UTC), "end": datetime(1970, 1, 1, 0, 1, tzinfo=UTC)}
    assert rows(shop(), "by_minute", orders=ORDERS) == [
        {"window": minute, "country": "DE", "orders": 1},
        {"window": minute, "country": "NL", "orders": 1},
    ]


def test_of_two_rows_of_one_key_the_last_counts_also_when_it_fails_the_where() -> None:
    events = [order(1, "NL", 9), order(2, "NL", 3), order(3, "DE", 3), order(4, "DE", 9)]
    assert [row["country"] for row in rows(shop(), "newest", orders=events)] == ["DE"]


def test_every_column_that_a_flow_sees_is_there() -> None:
    event = order(
        7, "NL", 1.5, 1_000, lines=[Line(item="tea", price=Decimal("2.50")), Line(item="cup")], labels={"a": "b"}
    )
    (row,) = rows(shop(), "whole", orders=[event])
    at = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert row == {
        "order_id": 7,
        "country": "NL",
        "amount": 1.5,
        "at": 1_000,
        "lines": [{"item": "tea", "price": Decimal("2.50")}, {"item": "cup", "price": None}],
        "labels": {"a": "b"},
        "_time": at,
        "_received": at,
        "_id": "7",
        "_key": "7",
        "_partition": 0,
        "_offset": 0,
    }


def test_a_stream_without_events_gives_no_rows() -> None:
    assert rows(shop(), "countries") == []


def test_two_rows_of_one_key_are_an_error_where_the_app_would_stop() -> None:
    with pytest.raises(DuplicateKeyError, match="NL"):
        rows(shop(), "twice", orders=ORDERS[:1])


def test_what_the_function_raises_names_the_users_line() -> None:
    with pytest.raises(PlanError, match=r"test_testing_rows\.py:\d+: 'broken' raised"):
        rows(shop(), "broken", orders=ORDERS)


def test_names_and_types_that_are_wrong_are_told() -> None:
    with pytest.raises(UnknownViewError, match="'cities'"):
        rows(shop(), "cities")
    with pytest.raises(UnknownStreamError, match="'order'"):
        rows(shop(), "countries", order=ORDERS)
    with pytest.raises(TypeError, match="instances of Order, not of dict"):
        rows(shop(), "countries", orders=[{"order_id": 1}])


def test_the_session_is_the_one_of_the_process(spark: SparkSession) -> None:
    rows(shop(), "countries", orders=ORDERS)
    assert SparkSession.getActiveSession() is spark
