"""An index over thousands of filters leaves out only those that a change cannot matter to."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.change import Change, Column
from penstock.errors import BadQueryError
from penstock.views.where.filter import Where, compile_where
from penstock.views.where.filter_index import FilterIndex
from penstock.views.where.intervals import Intervals
from tests.filter_worlds import COLUMNS, Filters, Rows

SMALL = (
    Column("country", "string"),
    Column("person", "bigint"),
    Column("rsvps", "bigint"),
    Column("tags", "array<string>"),
)


def small(text: str, **params: Any) -> Where:
    return compile_where(text, SMALL, params=params)


def change(before: tuple[Any, ...] | None, after: tuple[Any, ...] | None) -> Change:
    return Change((1,), before, after)


def random_filters(rng: random.Random, count: int) -> list[Where]:
    made: list[Where] = []
    while len(made) < count:
        filters = Filters(rng)
        text = filters.condition(rng.randint(0, 2))
        try:
            made.append(compile_where(text, COLUMNS, params=filters.params))
        except BadQueryError:
            continue
    return made


@settings(max_examples=60)
@given(st.integers(0, 2**40))
def test_whoever_passes_a_row_is_found_for_it(seed: int) -> None:
    """Over every type, NULL, NaN, -0.0, numbers beyond 2^53, nested fields, parameters, NOT, OR and CASE."""
    rng = random.Random(seed)
    filters = random_filters(rng, 30)
    index = FilterIndex[int]()
    for number, where in enumerate(filters):
        index.add(number, [where])
    rows = Rows(rng)
    for _ in range(30):
        before, after = (rows.row() if rng.random() < 0.8 else None for _ in range(2))
        found = {*index.touched([change(before, after)]), *index.everywhere}
        for number, where in enumerate(filters):
            passes = any(row is not None and where(row) for row in (before, after))
            assert number in found or not passes, (where, before, after)


def test_the_filters_of_the_property_are_often_indexed_and_often_pass() -> None:
    rng = random.Random(3)
    filters = random_filters(rng, 400)
    index = FilterIndex[int]()
    for number, where in enumerate(filters):
        index.add(number, [where])
    rows = [Rows(rng).row() for _ in range(100)]
    assert len(index.everywhere) < 260
    assert sum(where(row) for where in filters for row in rows) > 2_000
    candidates = sum(len(index.touched([change(None, row)])) for row in rows)
    assert candidates < 100 * 200, "an index that finds everybody is none"


def test_ten_thousand_filters_are_not_tried_one_by_one() -> None:
    index = FilterIndex[int]()
    kinds = [
        lambda i: small("person = :p AND rsvps > 3", p=i),
        lambda i: small("rsvps BETWEEN :low AND :high", low=i * 10, high=i * 10 + 9),
        lambda i: small(":tag = ANY(tags)", tag=f"tag {i}"),
        lambda i: small("country LIKE :pattern", pattern=f"land {i}.%"),
    ]
    for i in range(10_000):
        index.add(i, [kinds[i % 4](i // 4)])
    assert not index.everywhere
    moved = change(("land 7.1", 3, 25, ["tag 9", "x"]), ("land 8.1", 4, 35, ["tag 9", None, "tag 10"]))
    assert sorted(index.touched([moved])) == sorted([12, 16, 9, 13, 38, 42, 31, 35])


def test_a_filter_is_filed_where_the_fewest_others_are() -> None:
    index = FilterIndex[int]()
    for i in range(1_000):
        index.add(i, [small("country = 'no' AND person = :p", p=i)])
    assert len(index.touched([change(None, ("no", 5, 1, None))])) <= 2


def test_the_rule_of_a_reader_files_it_too() -> None:
    index = FilterIndex[str]()
    index.add("ann", [small("person = 1"), small("rsvps % 2 = 0")])
    index.add("bob", [small("person = 2")])
    assert not index.everywhere
    assert list(index.touched([change(None, ("no", 1, 2, None))])) == ["ann"]


def test_what_cannot_be_true_is_never_found_and_what_says_nothing_always() -> None:
    index = FilterIndex[str]()
    index.add("never", [small("person = NULL OR country IN (NULL)")])
    index.add("all", [])
    index.add("odd", [small("rsvps % 2 = 1")])
    assert list(index.everywhere) == ["all", "odd"]
    assert index.touched([change(None, (None, None, 1, None))]) == {}


def test_a_change_is_told_once_and_in_order_to_who_is_filed_twice() -> None:
    index = FilterIndex[str]()
    index.add("both", [small("country IN ('no', 'se') OR person = 1")])
    changes = [change(("no", 1, 1, None), ("se", 1, 1, None)), change(None, ("se", 2, 1, None))]
    assert index.touched(changes) == {"both": changes}


def test_a_value_of_a_wrong_type_is_counted_and_hides_nobody_else() -> None:
    errors = [0]
    index = FilterIndex[str](errors)
    index.add("range", [small("rsvps > 1")])
    index.add("tag", [small("'x' = ANY(tags)")])
    assert list(index.touched([change(None, ("no", 1, "many", ["x"]))])) == ["tag"]
    assert errors == [1]


def test_the_rows_of_a_dropped_filter_are_looked_up_no_more() -> None:
    rng = random.Random(11)
    filters = dict(enumerate(random_filters(rng, 60)))
    index = FilterIndex[int]()
    rows = Rows(rng)
    present: set[int] = set()
    for _ in range(600):
        number = rng.randrange(60)
        if number in present:
            index.remove(number)
            present.discard(number)
        else:
            index.add(number, [filters[number]])
            present.add(number)
        row = rows.row()
        found = {*index.touched([change(row, None)]), *index.everywhere}
        assert found <= present
        assert {n for n in present if filters[n](row)} <= found
    for number in present:
        index.remove(number)
    assert (len(index), index._lookups, index.everywhere) == (0, {}, {})


@settings(max_examples=150)
@given(
    st.lists(st.tuples(st.none() | st.integers(0, 20), st.none() | st.integers(0, 20), st.booleans()), max_size=60),
    st.integers(-1, 21),
)
def test_ranges_are_found_as_if_each_were_looked_at(
    ranges: list[tuple[int | None, int | None, bool]], value: int
) -> None:
    intervals = Intervals[int]()
    kept: dict[int, tuple[int | None, int | None]] = {}
    for number, (low, high, keep) in enumerate(ranges):
        cell = intervals.add(low, high, number)
        if keep:
            kept[number] = (low, high)
        else:
            intervals.remove(cell)
    wanted = [n for n, (low, high) in kept.items() if (low is None or low <= value) and (high is None or value <= high)]
    assert sorted(intervals.at(value)) == wanted
    assert len(intervals) == len(kept)


@pytest.mark.parametrize("operator", ["=", "<=>", ">=", "<="])
def test_a_filter_for_nan_finds_it(operator: str) -> None:
    columns = [Column("x", "double")]
    index = FilterIndex[str]()
    index.add("low", [compile_where("x BETWEEN 1 AND 2", columns)])
    where = compile_where(f"x {operator} :nan", columns, params={"nan": float("nan")})
    index.add("nan", [where])
    assert where((float("nan"),))
    assert "nan" in {*index.touched([change(None, (float("nan"),))]), *index.everywhere}


def test_nan_lies_above_every_number() -> None:
    intervals = Intervals[str]()
    for name, low, high in (("above", 3, None), ("below", None, 3), ("between", 1, 3), ("all", None, None)):
        intervals.add(low, high, name)
    assert sorted(intervals.at(float("nan"))) == ["above", "all"]


@pytest.mark.parametrize("value", [5, float("nan")])
def test_a_lookup_among_many_ranges_looks_at_few(value: float) -> None:
    looks = 0

    class Bound(float):
        def __le__(self, other: Any) -> bool:
            nonlocal looks
            looks += 1
            return float(self) <= other

        def __lt__(self, other: Any) -> bool:
            nonlocal looks
            looks += 1
            return float(self) < other

    intervals = Intervals[int]()
    for i in range(4_096):
        intervals.add(Bound(i), Bound(i + 1), i)
    looks = 0
    assert len(intervals.at(value)) == (2 if value == value else 0)
    assert looks < 200
