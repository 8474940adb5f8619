"""What is declared of columns is compared with the columns that a function gives, and says what is wrong."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import types as T

from penstock import App, Event
from penstock.declaration import ViewDef
from penstock.errors import DeclarationError
from penstock.flows.rules import column_problems

COLUMNS = T.StructType([T.StructField("country", T.StringType()), T.StructField("n", T.LongType())])


class Order(Event):
    country: str


def view(**options: Any) -> ViewDef:
    app = App("shop")
    app.stream("orders", Order)

    @app.view(**{"key": "country"} | options)
    def countries(orders):
        return orders

    return app.declared().views[0]


@pytest.mark.parametrize(
    ("order_by", "unknown"), [("n", None), ("-n", None), ("--n", "--n"), (["country", "-m"], "-m"), ("-", "-")]
)
def test_an_order_is_one_of_the_columns_turned_around_at_most_once(order_by: Any, unknown: str | None) -> None:
    found = list(column_problems(view(order_by=order_by), SimpleNamespace(schema=COLUMNS)))  # type: ignore[arg-type]
    told = [f"order_by='{unknown}' of 'countries' is not a column"] if unknown else []
    assert [problem.message for problem in found] == told


@pytest.mark.parametrize("options", [{"key": ["country", "country"]}, {"order_by": ["n", "country", "n"]}])
def test_a_column_is_named_once(options: Any) -> None:
    with pytest.raises(DeclarationError, match=r"test_declared_columns\.py:\d+: .* names '\w+' twice"):
        view(**options)
