"""Rows change all at once, large batches off the loop, and what readers hold never changes."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from fake_flows import small_app

from penstock.change import Column
from penstock.config import Limits
from penstock.errors import NotReadyError
from penstock.views.store import Content, View

COLUMNS = (Column("k", "string"), Column("v", "bigint"))


def _content() -> Content:
    return Content("topics", "e", COLUMNS, ("k",), None, 0, Limits())


def _apply(content: Content, ops: dict[Any, Any], *, copy: bool = False) -> None:
    batch = content.prepare(content.offset + 1, ops, None, 0)
    content.apply(batch, content.changed_copy(batch.changes) if copy else None)


@pytest.mark.parametrize("copy", [False, True])
def test_batches_applied_in_place_or_to_a_copy_give_the_same_rows(copy: bool) -> None:
    rng, content, wanted = random.Random(1), _content(), {}
    for _ in range(50):
        ops = {(f"k{rng.randrange(9)}",): rng.choice([None, ("x", rng.randrange(3))]) for _ in range(4)}
        wanted = {k: r for k, r in (wanted | ops).items() if r is not None}
        _apply(content, ops, copy=copy)
    assert content.rows == wanted
    assert content.offset == 50


def test_changes_carry_the_row_before_and_leave_out_what_does_not_change() -> None:
    content = _content()
    _apply(content, {("a",): ("a", 1), ("b",): ("b", 1)})
    batch = content.prepare(2, {("a",): ("a", 1), ("b",): None, ("c",): None}, None, 0)
    assert [(c.key, c.before, c.after) for c in batch.changes] == [(("b",), ("b", 1), None)]


def test_what_was_captured_does_not_change() -> None:
    content = _content()
    _apply(content, {("a",): ("a", 1)})
    captured = content.captured()
    assert content.captured() is captured
    _apply(content, {("a",): ("a", 2), ("b",): ("b", 1)})
    assert dict(captured.items()) == {("a",): ("a", 1)}
    assert captured.offset == 1
    assert len(content.captured()) == 2


def test_history_taken_back_gives_the_rows_of_any_earlier_offset() -> None:
    rng, content = random.Random(2), _content()
    states = [dict(content.rows)]
    for _ in range(30):
        _apply(content, {(f"k{rng.randrange(6)}",): rng.choice([None, ("x", rng.randrange(9))]) for _ in range(3)})
        states.append(dict(content.rows))
    rows = dict(content.rows)
    for offset in range(29, -1, -1):
        batch = content.history.next(offset)
        assert batch is not None
        for change in batch.changes:
            rows.pop(change.key, None)
            if change.before is not None:
                rows[change.key] = change.before
        assert rows == states[offset]


def test_the_size_of_rows_is_estimated_within_a_factor_of_two() -> None:
    content = _content()
    _apply(content, {(f"key number {i}",): (f"key number {i}", i + 10_000) for i in range(1_000)})
    per_row = content.bytes / 1_000
    assert 150 < per_row < 400


async def test_waiting_ends_when_the_view_changes_or_time_is_up() -> None:
    definition = small_app().declared().view("topics")
    assert definition is not None
    view = View(definition, Limits())
    with pytest.raises(NotReadyError):
        await view.loaded(0.01)
    loaded = asyncio.create_task(view.loaded(5))
    await asyncio.sleep(0)
    content = _content()
    view.replace(content, {})
    assert await loaded is content
    assert not await view.until(lambda: content.offset > 0, 0.01)
