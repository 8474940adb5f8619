"""The app that is fuzzed: streams of every kind of field and choice, a flow and a view that never run."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from enum import Enum
from typing import Any

from penstock import App, Event, Struct

app = App("fuzzed")


class Kind(Enum):
    A = "a"
    B = "b"


class Inner(Struct):
    x: float
    names: list[str] = []


class Order(Event):
    order_id: int
    at: dt.datetime | None = None
    price: Decimal | None = None
    kind: Kind = Kind.A
    inner: Inner | None = None
    tags: dict[str, int] = {}
    raw: bytes = b""
    day: dt.date | None = None
    ok: bool = True


class Step(Event):
    n: int
    at: int


orders = app.stream("orders", Order, id="order_id", key="kind", time="at", partitions=2)
app.stream("steps", Step, time="at", unknown="keep")
app.stream("strict", Step, unknown="reject")


@app.flow
def made(orders: Any) -> Any:
    return orders


@app.view(key="kind")
def kinds(orders: Any) -> Any:
    return orders.groupBy("kind").count()
