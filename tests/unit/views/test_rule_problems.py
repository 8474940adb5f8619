"""What is wrong with the app's own filters is found before anybody reads, with the user's line."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import App, Event
from penstock.change import Column
from penstock.errors import DeclarationError
from penstock.views.read_rule import rule_problems, stream_columns


class Sale(Event):
    order_id: int
    user_id: str


COLUMNS = [Column("order_id", "bigint"), Column("user_id", "string"), Column("groups", "array<string>")]


def app_with(visible_where: str | None, **channel: Any) -> App:
    app = App("shop")
    app.stream("sales", Sale)

    @app.view(key="order_id", visible_where=visible_where)
    def orders(sales: Any) -> Any: ...

    if channel:
        app.channel("some", orders, **channel)
    return app


def found(app: App) -> list[tuple[str, str, str]]:
    declared = app.declared()
    problems = rule_problems(declared, stream_columns(declared) | {"orders": COLUMNS})
    return [(p.level, p.code, p.message) for p in problems]


@pytest.mark.parametrize(
    "text",
    ["user_id = :sub", "order_id = :id", "user_id = ANY(:users)", ":sub = ANY(groups)", "user_id IN (:a, :b)", "true"],
)
def test_a_condition_that_fits_the_columns_is_no_problem(text):
    assert found(app_with(text)) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("userid = :sub", "no column 'userid'"),
        ("user_id = :sub OR", "cannot be read"),
        ("user_id", "not a condition"),
        ("user_id = (SELECT 1)", "cannot contain"),
        ("nosuch(user_id) = :sub", "nosuch"),
        ("", "empty"),
    ],
)
def test_one_that_does_not_is_an_error(text, said):
    ((level, code, message),) = found(app_with(text))
    assert (level, code) == ("error", "bad_filter")
    assert "'orders'" in message
    assert said in message


def test_a_streams_condition_is_checked_without_spark():
    app = App("shop")
    app.stream("sales", Sale, visible_where="nobody = :sub")
    declared = app.declared()
    (problem,) = rule_problems(declared, stream_columns(declared))
    assert problem.place is not None
    assert str(problem.place).startswith("test_rule_problems.py:")


def test_channels_are_checked_too():
    assert found(app_with(None, where="order_id > 1", select=["user_id"])) == []
    assert found(app_with(None, where="nope > 1"))[0][1] == "bad_filter"
    assert found(app_with(None, select=["nope"]))[0][1] == "unknown_column"
    app = app_with(None)
    app.channel("orders", "sales")
    app.channel("x", "nothing")
    app.channel("dead", "sales")
    codes = {p.code for p in app.declared().problems() if p.level == "error"}
    assert codes == {"name_taken", "unknown_target", "name_reserved"}


def test_a_channel_of_what_is_not_declared_is_refused_where_it_is_written():
    app = App("shop")
    with pytest.raises(DeclarationError, match=r"test_rule_problems.py:\d+: .*no view"):
        app.channel("x", lambda: None)
    with pytest.raises(DeclarationError, match="policy='slow'"):
        app.channel("x", "sales", policy="slow")  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="no column"):
        app.channel("x", "sales", select=[])


def test_a_view_made_of_filtered_events_without_a_filter_is_noted():
    app = App("shop")
    app.stream("sales", Sale, visible_where="user_id = :sub")

    @app.view(key="user_id")
    def totals(sales: Any) -> Any: ...

    assert [p.code for p in app.declared().problems() if p.code == "open_below"] == ["open_below"]
    assert app.declared().filtered() == {"sales"}
