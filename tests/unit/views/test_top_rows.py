"""The bounded ranking tells subscribers exactly what ranking everything would."""

from __future__ import annotations

import random
from typing import Any

import pytest

from penstock.change import Change, Column
from penstock.views.read_query import evaluate, parse_query
from penstock.views.top_rows import TopState, delta_between

COLUMNS = [Column("k", "string"), Column("v", "bigint")]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("reserve", [0, 1, 5, 1000])
def test_top_rows_stay_exact_through_random_batches(seed: int, reserve: int) -> None:
    rng = random.Random(seed)
    query = parse_query(COLUMNS, ["k"], where="v < 90", order_by="-v", limit=rng.randrange(6))
    rows: dict[Any, Any] = {(f"k{i}",): (f"k{i}", rng.randrange(100)) for i in range(30)}
    state = TopState(query, rows, reserve)
    shown = state.shown()
    rebuilt = 0
    for _ in range(60):
        changes = []
        for key in rng.sample(sorted(rows.keys() | {(f"k{i}",) for i in range(40)}), 4):
            after = rng.choice([None, (key[0], rng.randrange(100))])
            if rows.get(key) != after:
                changes.append(Change(key, rows.get(key), after))
            rows = {k: r for k, r in (rows | {key: after}).items() if r is not None}
        told = state.apply(changes)
        if told is None:
            state, rebuilt = TopState(query, rows, reserve), rebuilt + 1
            told = delta_between(shown, state.shown())
        for gone in told[1]:
            del shown[gone]
        shown |= {(row[0],): row for row in told[0]}
        assert sorted(shown.values()) == sorted(evaluate(query, rows))
        assert state.rows() == evaluate(query, rows)
    if reserve == 1000:
        assert rebuilt == 0


def test_a_ranking_that_grew_is_cut_back() -> None:
    query = parse_query(COLUMNS, ["k"], order_by="-v", limit=2)
    rows: dict[Any, Any] = {(f"k{i}",): (f"k{i}", i) for i in range(100)}
    state = TopState(query, rows, reserve=3)
    for i in range(90):
        key = (f"k{i}",)
        state.apply([Change(key, rows[key], (key[0], 1000 + i))])
        rows[key] = (key[0], 1000 + i)
    assert len(state._ranked) <= 5 * 8
    assert state.rows() == evaluate(query, rows)
