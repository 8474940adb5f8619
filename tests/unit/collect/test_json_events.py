from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from penstock.collect.judging.json_events import balanced, deeper_than, elements

values = st.recursive(
    st.none() | st.integers() | st.text('a"\\{}[],', max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('"\\]', max_size=3), inner, max_size=3),
    max_leaves=12,
)


def depth(value: object) -> int:
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


@given(values)
def test_depth_is_what_a_parser_would_count(value: object) -> None:
    raw = json.dumps(value).encode() + b" " * 70  # spaces, and below: brackets in strings never count
    assert not deeper_than(raw, depth(value))
    assert depth(value) == 0 or deeper_than(raw, depth(value) - 1)


@given(st.lists(values, min_size=1))
def test_elements_are_cut_where_a_parser_would_cut(array: list[object]) -> None:
    raw = json.dumps(array).encode()
    assert balanced(raw)
    assert [json.loads(element) for element in elements(raw)] == array


def test_a_million_levels_are_measured_without_recursion() -> None:
    raw = b"[" * 500_000 + b"]" * 500_000
    assert deeper_than(raw, 499_999)
    assert not deeper_than(raw, 500_000)


def test_brackets_that_do_not_match_are_not_balanced() -> None:
    assert not balanced(b"[[]")
    assert not balanced(b"[]]")
    assert not balanced(b"][")
    assert not balanced(b"")
