"""The app that the tests of contents post to, and what is sent to it as CSV, Arrow and CloudEvents."""

from __future__ import annotations

import datetime as dt
import enum
import io
from decimal import Decimal
from typing import Annotated, Any

import msgspec
import pyarrow as pa
from running_edge import Edge, Reply

from penstock import App, Event, Struct

ARROW = "application/vnd.apache.arrow.stream"
CE = "application/cloudevents+json"
CES = "application/cloudevents-batch+json"


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Place(Struct):
    city: str
    lat: float | None = None


class Reading(Event):
    n: int
    at: int | None = None
    name: str = "none"
    value: float | None = None
    good: bool = False
    colour: Colour | None = None
    price: Annotated[Decimal, msgspec.Meta(extra={"precision": 8, "scale": 2})] | None = None
    when: dt.datetime | None = None
    day: dt.date | None = None
    level: Annotated[int, msgspec.Meta(ge=0, le=9)] = 1
    place: Place | None = None
    tags: list[str] = []
    counts: dict[str, int] = {}


def readings() -> App:
    """Readings under every choice for ids, times and unknown fields."""
    made = App("contents")
    made.stream("plain", Reading, key="name", time="at", partitions=2)
    made.stream("pair", Reading, id=["name", "n"], key="n")
    made.stream("kept", Reading, unknown="keep")
    made.stream("strict", Reading, unknown="reject")
    made.stream("cloud", Reading, id="cloudevent")
    return made


async def send(edge: Edge, stream: str, body: bytes, kind: str, **headers: str) -> Reply:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return await edge.post(stream, body, headers={"Content-Type": kind} | sent)


def stream_of(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, **options) as writer:
        writer.write_table(table, max_chunksize=1000)
    return sink.getvalue()


async def arrow(edge: Edge, stream: str, columns: Any, **headers: str) -> Reply:
    return await send(edge, stream, stream_of(pa.table(columns)), ARROW, **headers)


def cloud(data: Any = None, **more: Any) -> dict[str, Any]:
    made = {"specversion": "1.0", "id": "1", "source": "/tests", "type": "reading"} | more
    return made if data is None else made | {"data": data}
