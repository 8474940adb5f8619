"""Rows, events and messages are described as they really look in JSON, whatever their types and names."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from described import strict
from jsonschema import Draft202012Validator, FormatChecker

from penstock import App, Event
from penstock.protocol import wire
from penstock.serve.describe.message_schemas import columns_of, event_schemas, key_spec, row_spec
from penstock.views.unpack import rows_of

ROW = pa.schema(
    [
        ("text", pa.string()),
        ("small", pa.int8()),
        ("large", pa.int64()),
        ("real", pa.float64()),
        ("yes", pa.bool_()),
        ("moment", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("day", pa.date32()),
        ("money", pa.decimal128(38, 2)),
        ("raw", pa.binary()),
        ("window", pa.struct([("start", pa.timestamp("us", "UTC")), ("end", pa.timestamp("us", "UTC"))])),
        ("list", pa.list_(pa.struct([("n", pa.int64())]))),
        ("map", pa.map_(pa.string(), pa.float64())),
    ]
)
NOW = dt.datetime(2026, 11, 16, 4, 0, 0, 123456, dt.UTC)
FULL: dict[str, Any] = {
    "text": "x",
    "small": 1,
    "large": 2**60,
    "real": float("nan"),
    "yes": True,
    "moment": NOW,
    "local": NOW.replace(tzinfo=None),
    "day": NOW.date(),
    "money": Decimal("1.50"),
    "raw": b"\0\xff",
    "window": {"start": NOW, "end": NOW},
    "list": [{"n": 2**54}, {"n": None}],
    "map": [("a", 1.5), ("b", None)],
}


def problems(schema: dict[str, Any], value: Any) -> list[str]:
    checked = Draft202012Validator(strict(schema), format_checker=FormatChecker())
    return [f"{error.json_path}: {error.message}" for error in checked.iter_errors(value)]


@pytest.mark.parametrize("given", [FULL, dict.fromkeys(ROW.names)], ids=["full", "nulls"])
def test_a_row_of_every_type_looks_as_it_is_described(given: dict[str, Any]) -> None:
    batch = pa.RecordBatch.from_pylist([given], schema=ROW)
    (row,) = rows_of(batch, ROW.names)
    shown = msgspec.json.decode(msgspec.json.encode({n: wire(v) for n, v in zip(ROW.names, row, strict=True)}))
    described = row_spec(columns_of(ROW), ["text"])
    assert problems(described, shown) == []
    assert problems(described, {"small": 1}), "the key is always there"
    assert problems(described, shown | {"large": 1.5})
    assert problems(described, shown | {"other": 1})


def test_a_delete_has_the_keys_columns_and_all_of_them() -> None:
    described = key_spec(columns_of(ROW), ["text", "window"])
    assert problems(described, {"text": "x", "window": None}) == []
    assert problems(described, {"text": "x"})
    assert problems(described, {"text": "x", "window": None, "small": 1})


class Error(Event):
    n: int


def test_a_class_may_have_the_name_of_a_schema_of_ours() -> None:
    app = App("names")
    app.stream("errors", Error)
    events, classes = event_schemas(app.declared().streams)
    assert events["errors"] == {"$ref": "#/components/schemas/event.Error"}
    assert set(classes) == {"event.Error"}
