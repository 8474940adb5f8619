"""What an app may declare as a table, and what it is told otherwise."""

from __future__ import annotations

import pytest

from penstock import App, Event
from penstock.errors import DeclarationError


class Row(Event):
    id: int
    name: str = ""
    share: float
    tags: list[str]


class Order(Event):
    op: str
    key: int


def codes(app: App) -> list[str]:
    return [problem.code for problem in app.declared().problems() if problem.level == "error"]


@pytest.mark.parametrize(
    ("key", "code"), [("id", None), ("nothing", "unknown_field"), ("name", "bad_key"), ("share", "bad_key")]
)
def test_a_key_is_a_field_that_is_always_there_and_fits_an_address(key: str, code: str | None) -> None:
    app = App("shop")
    app.table("rows", Row, key=key)
    assert codes(app) == ([code] if code else [])


def test_a_table_has_a_key_and_a_name_of_its_own() -> None:
    app = App("shop")
    with pytest.raises(DeclarationError, match="needs a key"):
        app.table("rows", Row, key=[])
    app.stream("rows", Row)
    app.table("rows", Row, key="id")
    assert codes(app) == ["name_taken"]


def test_a_class_that_could_be_taken_for_a_delete_is_refused() -> None:
    app = App("shop")
    app.table("orders", Order, key="key")
    assert codes(app) == ["reserved_fields"]
