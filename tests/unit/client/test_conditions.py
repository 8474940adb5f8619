"""What Python says becomes SQL with parameters; a value is never text."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pytest

from penstock.client import col, fn, where
from penstock.client.conditions import spelled
from penstock.client.read_request import DEFAULT, read_request
from penstock.errors import BadQueryError


@pytest.mark.parametrize(
    ("condition", "text", "values"),
    [
        (col.rsvps > 3, "`rsvps` > :p1", {"p1": 3}),
        (col("rsvps") == None, "`rsvps` IS NULL", {}),  # noqa: E711
        (col.rsvps != None, "`rsvps` IS NOT NULL", {}),  # noqa: E711
        (col.window.start <= "x", "`window`.`start` <= :p1", {"p1": "x"}),
        (col("group")["any"] != 1, "`group`.`any` <> :p1", {"p1": 1}),
        (col("a b`c") >= 1, "`a b``c` >= :p1", {"p1": 1}),
        (~(col.a < col.b), "NOT (`a` < `b`)", {}),
        ((col.a == 1) | ((col.b == 2) & (col.c == 3)), "(`a` = :p1) OR ((`b` = :p2) AND (`c` = :p3))", None),
        (col.topic.is_in(["jazz", "'; --"]), "`topic` = ANY(:p1)", {"p1": ["jazz", "'; --"]}),
        (col.a.is_in([col.b, 1]), "`a` IN (`b`, :p1)", {"p1": 1}),
        (col.topic.is_in([]), "FALSE", {}),
        (col.tags.any("Jazz"), ":p1 = ANY(`tags`)", {"p1": "Jazz"}),
        (col.n.between(1, 5), "`n` BETWEEN :p1 AND :p2", {"p1": 1, "p2": 5}),
        (col.topic.like("Ja%"), "`topic` LIKE :p1", {"p1": "Ja%"}),
        (col.topic.ilike("ja%"), "`topic` ILIKE :p1", {"p1": "ja%"}),
        (col.a.is_null() & col.b.is_not_null(), "(`a` IS NULL) AND (`b` IS NOT NULL)", {}),
        (-(col.a + 1) * 2 - col.b / 3 % 2 > 1 - col.c, None, {"p1": 1, "p2": 2, "p3": 3, "p4": 2, "p5": 1}),
        (2 * col.a < 4, "(:p1 * `a`) < :p2", {"p1": 2, "p2": 4}),
        (fn.distance(col.lat, col.lon, 52.1, 4) < 5, "distance(`lat`, `lon`, :p1, :p2) < :p3", None),
        (col.price > Decimal("2.50"), "`price` > :p1", {"p1": "2.50"}),
        (col.at > dt.datetime(2024, 1, 1, tzinfo=dt.UTC), "`at` > :p1", {"p1": "2024-01-01T00:00:00.000Z"}),
        (col.day == dt.date(2024, 1, 1), "`day` = :p1", {"p1": "2024-01-01"}),
        (where(col.a > 1, col.b > 2), "(`a` > :p1) AND (`b` > :p2)", {"p1": 1, "p2": 2}),
    ],
)
def test_a_condition_is_text_and_parameters(condition, text, values) -> None:
    made, found = condition.sql()
    assert text is None or made == text
    assert values is None or found == values


def test_names_of_parameters_do_not_clash_with_the_callers() -> None:
    condition = (col.a > 1) & (col.b > 2)
    assert spelled(condition, {"p1": 9}) == ("(`a` > :p2) AND (`b` > :p3)", {"p1": 9, "p2": 1, "p3": 2})
    assert spelled("a > :n", {"n": 2**60}) == ("a > :n", {"n": str(2**60)})
    assert spelled("", {}) == (None, None)


def test_what_is_no_condition_is_told_at_once() -> None:
    with pytest.raises(TypeError, match="&"):
        bool(col.a > 1 and col.b)
    with pytest.raises(TypeError, match="&"):
        1 < col.a < 3  # noqa: B015
    with pytest.raises(BadQueryError, match="no condition"):
        where(col.a)  # type: ignore[arg-type]
    with pytest.raises(BadQueryError, match="no condition"):
        spelled(col.a, None)  # type: ignore[arg-type]
    with pytest.raises(BadQueryError, match="no condition"):
        (col.a > 1) & 2  # type: ignore[operator]
    with pytest.raises(BadQueryError, match="named by a text"):
        col.tags[0]  # type: ignore[index]


def test_what_is_asked_travels_in_two_forms() -> None:
    made = read_request("view", "a/b", col.n > 3, None, "topic, n", ["-n"], None)
    assert made.path == "/views/a%2Fb"
    parameters = {"where": "`n` > :p1", "params": '{"p1":3}', "select": "topic,n", "order_by": "-n", "limit": "null"}
    assert made.parameters() == parameters
    message = made.message("p9")
    assert (message["view"], message["since"], message["limit"]) == ("a/b", "p9", None)
    assert (message["where"], message["params"]) == ("`n` > :p1", {"p1": 3})
    plain = read_request("stream", "s", limit=DEFAULT)
    assert plain.parameters() == {}
    assert plain.message("start").keys() == {"type", "id", "stream", "since"}
