"""Queries: how they are read, how rows are ordered, and that following batches equals asking again."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.change import Change, Column, Key, Row
from penstock.errors import BadQueryError
from penstock.views.read_query import (
    DEFAULT,
    Query,
    QueryState,
    ascending,
    descending,
    evaluate,
    key_of,
    parse_query,
)

NAN = float("nan")
NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)

COLUMNS = (
    Column("window", "struct<start:timestamp,end:timestamp>"),
    Column("topic", "string"),
    Column("rsvps", "bigint"),
    Column("score", "double"),
    Column("counts", "map<string,int>"),
)
KEY = ("window", "topic")


def window(minute: int) -> dict[str, datetime]:
    start = NOON + timedelta(minutes=minute)
    return {"start": start, "end": start + timedelta(minutes=1)}


def view(*rows: Row) -> dict[Key, Row]:
    return {key_of(row, (0, 1)): row for row in rows}


def query(**asked: Any) -> Query:
    return parse_query(COLUMNS, KEY, **asked)


def topics(rows: list[Row]) -> list[str]:
    return [row[1] for row in rows]


ROWS = view(
    (window(0), "jazz", 5, 1.0, None),
    (window(0), "golf", None, NAN, None),
    (window(1), "chess", 9, None, None),
    (window(1), "art", 5, -1.0, None),
)


# Reading


def test_order_by_takes_a_text_or_a_list_and_nested_fields() -> None:
    assert query(order_by="-rsvps, window.start") == query(order_by=["-rsvps", "window.start"])
    assert [str(item) for item in query(order_by="-RSVPS,Window.Start").order_by] == ["-rsvps", "window.start"]


def test_defaults_apply_only_to_what_was_left_out() -> None:
    defaults = (["-rsvps"], 2)
    assert query(defaults=defaults).limit == 2
    assert query(limit=DEFAULT, defaults=defaults).limit == 2
    assert query(limit=None, defaults=defaults).limit is None
    assert query(limit="null", defaults=defaults).limit is None
    assert query(limit=0, defaults=defaults).limit == 0
    assert query(defaults=defaults).order_by == query(order_by="-rsvps").order_by
    assert query(order_by="topic", defaults=defaults).order_by == query(order_by="topic").order_by
    assert query(order_by=[], defaults=defaults).order_by == ()


def test_select_always_keeps_the_key() -> None:
    asked = query(select="rsvps")
    assert [column.name for column in asked.output] == ["window", "topic", "rsvps"]
    assert query(select=["topic", "rsvps", "window"]).select == ("topic", "rsvps", "window")
    assert query(select="*").select is None
    assert evaluate(asked, view((window(0), "jazz", 5, 1.0, None))) == [(window(0), "jazz", 5)]


def test_select_of_a_single_column_still_gives_rows() -> None:
    asked = parse_query([Column("k", "int"), Column("v", "int")], ["k"], select="k")
    assert evaluate(asked, {(1,): (1, 2)}) == [(1,)]


@pytest.mark.parametrize("limit", [-1, "x", "-1", "", "1.5", 1.5, True, "9" * 5000, "²"])
def test_a_limit_that_is_not_a_whole_number_is_refused_with_a_hint(limit: Any) -> None:
    with pytest.raises(BadQueryError, match="'limit' must be a whole number") as caught:
        query(limit=limit)
    assert "limit=null" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"order_by": "nothing"}, "no column 'nothing'"),
        ({"order_by": "window.middle"}, "no field 'middle'"),
        ({"order_by": "topic.x"}, "no field 'x'"),
        ({"order_by": "counts"}, "a map has no order"),
        ({"order_by": "--rsvps"}, "no column '-rsvps'"),
        ({"order_by": [1]}, "not the name of a column"),
        ({"select": "nothing"}, "no column 'nothing'"),
        ({"select": ""}, "names no column"),
        ({"select": "window.start"}, "no column 'window.start'"),
        ({"where": "nothing = 1"}, "no column 'nothing'"),
        ({"where": ""}, "empty"),
    ],
)
def test_what_a_view_does_not_have_is_refused_by_name(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(BadQueryError, match=message):
        query(**asked)


def test_equal_queries_are_equal_and_hash_equal() -> None:
    one = query(where="rsvps>1", select="rsvps", order_by="-rsvps", limit="3")
    two = query(where="1 < RSVPS", select=["rsvps"], order_by=["-rsvps"], limit=3)
    assert one == two
    assert hash(one) == hash(two)
    assert one != query(where="rsvps>1", select="rsvps", order_by="rsvps", limit=3)


def test_a_query_names_every_column_that_needs_rights() -> None:
    assert query(where="score > 1", select="topic", order_by="-rsvps").reads == {
        "window",
        "topic",
        "score",
        "rsvps",
    }


# Order


def test_nulls_come_first_ascending_and_last_descending() -> None:
    assert topics(evaluate(query(order_by="rsvps"), ROWS)) == ["golf", "jazz", "art", "chess"]
    assert topics(evaluate(query(order_by="-rsvps"), ROWS)) == ["chess", "jazz", "art", "golf"]


def test_nan_is_above_every_number() -> None:
    assert topics(evaluate(query(order_by="score"), ROWS)) == ["chess", "art", "jazz", "golf"]
    assert topics(evaluate(query(order_by="-score"), ROWS)) == ["golf", "jazz", "art", "chess"]


def test_structs_order_field_by_field_and_ties_by_key() -> None:
    assert topics(evaluate(query(order_by="-window"), ROWS)) == ["art", "chess", "golf", "jazz"]
    assert topics(evaluate(query(order_by="window.end,-topic"), ROWS)) == ["jazz", "golf", "chess", "art"]
    assert topics(evaluate(query(order_by="window", limit=2), ROWS)) == ["golf", "jazz"]


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.decimals(allow_nan=False)
    | st.text(max_size=3)
    | st.binary(max_size=3)
    | st.datetimes(timezones=st.just(UTC))
    | st.datetimes()
    | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=5,
)


@settings(max_examples=200)
@given(st.lists(ANYTHING, max_size=8))
def test_any_values_sort_and_descending_is_the_reverse(values: list[Any]) -> None:
    up = sorted(map(ascending, values))
    down = sorted(values, key=descending)
    assert [ascending(value) for value in down] == up[::-1]


def test_long_decimals_keep_their_order_descending() -> None:
    small, large = Decimal("1" * 37 + "1"), Decimal("1" * 37 + "2")
    assert descending(large) < descending(small)


def test_a_key_is_hashable_and_nan_is_one_key() -> None:
    row = ({"start": 1, "end": {"deep": [2, float("nan")]}}, date(2024, 5, 1), float("nan"))
    assert key_of(row, (0, 1, 2)) == key_of((*row[:2], float("nan")), (0, 1, 2))
    assert len({key_of(row, (2,)), key_of((1, 2, float("nan")), (2,))}) == 1


# Following


def test_a_row_pushed_out_of_the_top_is_a_delete_and_comes_back_as_an_upsert() -> None:
    state = QueryState.build(query(order_by="-rsvps", limit=2), ROWS)
    assert topics(state.rows()) == ["chess", "jazz"]
    new = (window(2), "go", 7, None, None)
    key = key_of(new, (0, 1))
    upserts, deletes = state.apply([Change(key, None, new)])
    assert topics(upserts) == ["go"]
    assert [key[1] for key in deletes] == ["jazz"]
    upserts, deletes = state.apply([Change(key, new, None)])
    assert topics(upserts) == ["jazz"]
    assert deletes == [key]


def test_a_change_outside_the_selected_columns_is_not_told() -> None:
    for limit in (None, 3):
        state = QueryState.build(query(select="rsvps", order_by="-rsvps", limit=limit), ROWS)
        before = next(iter(ROWS.values()))
        after = (*before[:3], 99.0, None)
        assert state.apply([Change(key_of(before, (0, 1)), before, after)]) == ([], [])


def test_nan_to_nan_is_no_change() -> None:
    before = (window(0), "golf", None, float("nan"), None)
    after = (window(0), "golf", None, float("nan"), None)
    for limit in (None, 3):
        state = QueryState.build(query(limit=limit), view(before))
        assert state.apply([Change(key_of(before, (0, 1)), before, after)]) == ([], [])


def test_a_row_that_ceases_to_pass_is_a_delete_and_one_that_never_passed_is_not() -> None:
    for limit in (None, 3):
        state = QueryState.build(query(where="rsvps > 5", limit=limit), ROWS)
        keys = {row[1]: (key, row) for key, row in ROWS.items()}
        changes = [Change(key, row, (*row[:2], 1, None, None)) for key, row in keys.values()]
        upserts, deletes = state.apply(changes)
        assert upserts == []
        assert deletes == [keys["chess"][0]]


def test_limit_zero_shows_nothing_and_says_nothing() -> None:
    state = QueryState.build(query(limit=0), ROWS)
    assert state.rows() == []
    key, row = next(iter(ROWS.items()))
    assert state.apply([Change(key, row, None), Change(key, None, row)]) == ([], [])


def test_without_a_limit_no_row_is_kept() -> None:
    state = QueryState.build(query(order_by="topic"), ROWS)
    assert topics(state.rows()) == ["art", "chess", "golf", "jazz"]
    state.apply([])
    with pytest.raises(ValueError, match="pass the view's rows"):
        state.rows()
    assert topics(state.rows(ROWS)) == ["art", "chess", "golf", "jazz"]


def test_a_before_image_that_was_never_seen_is_an_error_and_not_a_wrong_answer() -> None:
    state = QueryState.build(query(limit=2), ROWS)
    stranger = (window(9), "zzz", 1, None, None)
    with pytest.raises(LookupError):
        state.apply([Change(key_of(stranger, (0, 1)), stranger, None)])


# Any batches

PROPERTY_COLUMNS = (
    Column("k", "int"),
    Column("a", "double"),
    Column("w", "struct<x:int,y:string>"),
    Column("d", "decimal(10,2)"),
    Column("hidden", "int"),
)
VALUES = st.tuples(
    st.sampled_from([None, NAN, float("nan"), 0.0, -0.0, 1.5, float("inf")]),
    st.none()
    | st.builds(lambda x, y: {"x": x, "y": y}, st.sampled_from([None, 1, 2]), st.sampled_from([None, "a", "b"])),
    st.sampled_from([None, Decimal("1.00"), Decimal("-2.50")]),
    st.integers(0, 2),
)
BATCHES = st.lists(st.lists(st.tuples(st.integers(0, 9), st.none() | VALUES), max_size=8), max_size=6)
QUERIES = st.fixed_dictionaries(
    {
        "where": st.sampled_from([None, "a > 1", "w.x = 1 OR d IS NULL", "hidden <> 1", "10 / hidden > 1"]),
        "select": st.sampled_from([None, "a", "w,d", "k"]),
        "order_by": st.sampled_from([[], "a", "-a", "w", "-w", "-w.y,d", "-d,a", "hidden", "-k"]),
        "limit": st.sampled_from([None, 0, 1, 2, 3, 5, 100]),
    }
)


def oracle(asked: Query, rows: Mapping[Key, Row]) -> list[Row]:
    """The answer from its definition, with a comparison written for these columns and no sort key."""
    passing = [row for row in rows.values() if asked.where is None or asked.where(row)]

    def compare(one: Row, two: Row) -> int:
        for item in asked.order_by:
            a, b = (functools.reduce(lambda v, n: v and v[n], item.path[1:], row[item.index]) for row in (one, two))
            if order := _order(a, b):
                return -order if item.descending else order
        return _order(one[0], two[0])

    ordered = sorted(passing, key=functools.cmp_to_key(compare))
    return [asked.project(row) for row in (ordered if asked.limit is None else ordered[: asked.limit])]


def _order(a: Any, b: Any) -> int:
    if a is None or b is None:
        return (a is not None) - (b is not None)
    if isinstance(a, dict):
        return next((order for name in a if (order := _order(a[name], b[name]))), 0)
    if a != a or b != b:
        return int(a != a) - int(b != b)
    return int(a > b) - int(a < b)


def batch_of(ops: list[tuple[int, Any]], rows: dict[Key, Row]) -> list[Change]:
    """Applies the ops to the rows, one change for each that changes something; a key may come twice."""
    changes = []
    for number, values in ops:
        before = rows.get((number,))
        after = (number, *values) if values is not None else None
        if before is None and after is None:
            continue
        changes.append(Change((number,), before, after))
        if after is None:
            del rows[(number,)]
        else:
            rows[(number,)] = after
    return changes


def text_of(rows: list[Row]) -> list[str]:
    """Rows in a form in which NaN equals NaN and zero has no sign."""
    return [repr(row).replace("-0.0", "0.0") for row in rows]


@settings(max_examples=400)
@given(QUERIES, BATCHES)
def test_following_batches_gives_what_asking_again_gives(asked: dict[str, Any], batches: Any) -> None:
    parsed = parse_query(PROPERTY_COLUMNS, ["k"], **asked)
    place = [column.name for column in parsed.output].index("k")
    rows: dict[Key, Row] = {}
    batch_of(batches[0] if batches else [], rows)
    state = QueryState.build(parsed, rows)
    client = {(row[place],): row for row in state.rows()}
    for ops in batches[1:]:
        shown = dict(client)
        upserts, deletes = state.apply(batch_of(ops, rows))
        for key in deletes:
            assert key in client, "a delete of what was not visible"
            del client[key]
        for row in upserts:
            assert text_of([row]) != text_of([shown[(row[place],)]] if (row[place],) in shown else [])
            client[(row[place],)] = row
        expected = oracle(parsed, rows)
        assert sorted(text_of(list(client.values()))) == sorted(text_of(expected))
        assert text_of(state.rows(rows)) == text_of(expected)
        assert text_of(QueryState.build(parsed, rows).rows()) == text_of(expected)
        assert text_of(evaluate(parsed, rows)) == text_of(expected)
