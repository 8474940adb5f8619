from __future__ import annotations

from pathlib import Path

import pytest
from running_edge import running
from shop_app import shop

from penstock import App, Event
from penstock.collect.collection import stream_spec
from penstock.errors import SchemaChangeError


def app(kind: type, **options: object) -> App:
    made = App("shop")
    made.stream("orders", kind, **options)  # type: ignore[arg-type]
    return made


def test_a_stream_with_an_id_is_unique() -> None:
    specs = {stream.name: stream_spec(stream) for stream in shop().declared().streams}
    assert {name for name, spec in specs.items() if spec.unique} == {"once", "visits"}
    assert specs["once"].partitions == 3
    assert "_unknown" in specs["kept"].schema.names


async def test_a_class_that_grew_by_a_default_reads_its_older_events(tmp_path: Path) -> None:
    class Order(Event):
        order_id: int

    async with running(app(Order), tmp_path) as edge:
        await edge.post("orders", b'{"order_id": 1}')

    class Grown(Event):
        order_id: int
        country: str = "de"

    async with running(app(Grown), tmp_path) as edge:
        await edge.post("orders", b'{"order_id": 2, "country": "nl"}')
        assert [event["country"] for event in edge.events("orders")] == ["de", "nl"]


async def test_a_class_that_no_longer_fits_is_refused_with_the_line_and_a_way_out(tmp_path: Path) -> None:
    class Order(Event):
        order_id: int

    async with running(app(Order), tmp_path) as edge:
        await edge.post("orders", b'{"order_id": 1}')

    class Changed(Event):
        order_id: str

    with pytest.raises(SchemaChangeError) as raised:
        async with running(app(Changed), tmp_path):
            pass
    error = raised.value
    assert error.message.startswith("test_collection.py:")
    assert "'order_id' was bigint and is now string" in str(error.detail)
    assert "default" in str(error.hint)
