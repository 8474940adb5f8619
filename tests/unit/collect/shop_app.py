"""The app that the tests of this folder post to."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

from penstock import App, Event, Struct


class Place(Struct):
    city: str
    lat: float | None = None


class Order(Event):
    order_id: int
    at: int | None = None
    country: str = "de"
    price: Decimal | None = None
    place: Place | None = None
    tags: list[str] = []


class Visit(Event):
    visit: str
    when: dt.datetime | None = None


def shop() -> App:
    """Orders (unknown fields ignored), unique ones, those that keep or reject unknown fields, and a flow."""
    app = App("shop")
    app.stream("orders", Order, key="country", time="at")
    app.stream("once", Order, id="order_id", key=["country", "order_id"], partitions=3)
    app.stream("kept", Order, unknown="keep")
    app.stream("strict", Order, unknown="reject")
    app.stream("visits", Visit, id="visit", key="visit", time="when")

    @app.flow
    def large(orders: Any) -> Any:
        return orders

    return app
