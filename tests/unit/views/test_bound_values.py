"""Parameters of a filter are values and nothing else."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from where_columns import COLUMNS, NOON, row, where

from penstock.errors import BadQueryError
from penstock.views.where.filter import Where, compile_where

PARAMS: list[tuple[str, dict[str, Any]]] = [
    ("rsvps = :n", {"n": 42}),
    ("rsvps = :n", {"n": "42"}),
    ("rsvps > :n AND :n > 40", {"n": 41}),
    ("price = :p", {"p": Decimal("9.5")}),
    ("price < :p", {"p": 1e3}),
    ("score = :x", {"x": 1.5}),
    ("topic = :t", {"t": "Jazz"}),
    ("topic <> :t", {"t": "' OR '1'='1"}),
    ("at = :at", {"at": "2024-05-01T12:00:00Z"}),
    ("at = :at", {"at": NOON}),
    ("local = :at", {"at": datetime(2024, 5, 1, 12)}),
    ("day = :day", {"day": "2024-05-01"}),
    ("day = :day", {"day": date(2024, 5, 1)}),
    ("raw = :raw", {"raw": b"\x1a"}),
    ("ok = :ok", {"ok": True}),
    ("(rsvps = :none) IS NULL", {"none": None}),
    ("topic LIKE :pattern", {"pattern": "J%"}),
    ("topic LIKE :p ESCAPE :e", {"p": "J!azz%", "e": "a"} | {"p": "Ja%", "e": "!"}),
    ("tags[:i] = :t", {"i": 1, "t": "Blues"}),
    ("counts[:key] = 1", {"key": "k"}),
    (":t = ANY(tags)", {"t": "Blues"}),
    ("topic = ANY(:topics)", {"topics": ["Golf", "Jazz"]}),
    ("rsvps = ANY(:numbers)", {"numbers": [1, 42, None]}),
    ("(topic = ANY(:topics)) IS NULL", {"topics": ["Golf", None]}),
    ("NOT topic = ANY(:topics)", {"topics": []}),
    ("rsvps BETWEEN :low AND :high", {"low": 1, "high": 2**70}),
    ("distance(place.geo.lat, place.geo.lon, :lat, :lon) < :km", {"lat": 59.91, "lon": 10.75, "km": 5}),
]


@pytest.mark.parametrize(("text", "params"), PARAMS, ids=[text for text, _ in PARAMS])
def test_a_parameter_stands_for_its_value(text: str, params: dict[str, Any]) -> None:
    compiled = compile_where(text, COLUMNS, params=params)
    assert compiled(row())
    assert compiled.errors == 0
    assert where(compiled.text) == compiled, "the text of a filter holds its parameters' values"


@settings(max_examples=200)
@given(st.text(max_size=30) | st.text("'\"\\\\`;:-/*)( OR1=", max_size=20), st.booleans())
def test_a_text_that_is_bound_is_never_read_as_sql(value: str, listed: bool) -> None:
    """Whatever it holds, it is compared as it is, and nothing else of the filter changes."""
    text = "topic = ANY(:v) AND n = 7" if listed else "topic = :v AND n = 7"
    compiled = compile_where(text, COLUMNS, params={"v": [value, "other"] if listed else value})
    assert compiled(row(topic=value))
    assert not compiled(row(topic=value + "x"))
    assert not compiled(row(topic=value, n=8))
    assert compiled.columns == {"topic", "n"}


WRONG_PARAMS: list[tuple[str, Any, str]] = [
    ("rsvps = :n", {}, "no value for the parameter ':n'"),
    ("rsvps = :n", {"N": 1}, "no value for the parameter ':n'"),
    ("rsvps = ?", {}, "needs a name"),
    ("rsvps = :n", {"n": "many"}, "cannot be read as bigint"),
    ("topic = :n", {"n": 5}, "string.*int"),
    ("rsvps = :n", {"n": [1]}, "is a list"),
    ("rsvps = :n", {"n": {"a": 1}}, "does not know"),
    ("rsvps = ANY(:n)", {"n": 1}, "needs an array"),
    ("rsvps = ANY(:n)", {"n": [[1]]}, "does not know"),
    ("rsvps = ANY(:n)", {"n": list(range(1001))}, "1000 are allowed"),
    ("rsvps = :n", {"n": 10**40}, "more than 38 digits"),
    ("rsvps = :n", {"n": Decimal("NaN")}, "finite"),
    ("topic = :n", {"n": "x" * 5000}, "4096 are allowed"),
    ("at > :n", {"n": "yesterday"}, "cannot be read as timestamp"),
    ("rsvps = :n", {f"n{i}": i for i in range(101)}, "100 are allowed"),
    ("rsvps = :n", [1], "must be an object"),
    (":n", {"n": "ok"}, "string, not a condition"),
    ("topic = :a.b", {"a": "x"}, "no field"),
]


@pytest.mark.parametrize(("text", "params", "message"), WRONG_PARAMS, ids=[m for _, _, m in WRONG_PARAMS])
def test_a_parameter_that_does_not_fit_is_refused(text: str, params: Any, message: str) -> None:
    with pytest.raises(BadQueryError, match=message):
        compile_where(text, COLUMNS, params=params)


def test_filters_with_equal_parameters_are_equal_and_with_others_are_not() -> None:
    def of(value: Any, text: str = "rsvps > :n") -> Where:
        return compile_where(text, COLUMNS, params={"n": value, "unused": 1})

    assert of(5) == of(5) == where("rsvps > 5")
    assert of(5) != of(6)
    assert of(5, "rsvps > :n") == compile_where("rsvps > :least", COLUMNS, params={"least": 5})
