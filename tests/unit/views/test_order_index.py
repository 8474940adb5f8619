"""Reads with a limit and rankings look at few rows of a view, however large it is, and find the right ones."""

from __future__ import annotations

import asyncio
import math
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.change import Column, Key, Row
from penstock.config import Limits
from penstock.serve.fanout.answers import answer, prepare
from penstock.serve.fanout.query_history import EarlierRows
from penstock.views.order_index import IDLE_US, INDEXES, OrderIndex
from penstock.views.read_query import Query, evaluate, parse_query
from penstock.views.store import Content
from penstock.views.top_rows import TopState

COLUMNS = (Column("k", "bigint"), Column("v", "double"), Column("name", "string"))


class Counted(dict[Key, Row]):
    """Rows that count how many of them somebody looked at."""

    looked = 0

    def __getitem__(self, key: Key) -> Row:
        self.looked += 1
        return super().__getitem__(key)

    def __iter__(self) -> Iterator[Key]:
        self.looked += len(self)
        return super().__iter__()


def content_of(rows: dict[Key, Row]) -> Content:
    content = Content("v", "1", COLUMNS, ("k",), None, 0, Limits())
    content.begin(1, rows, None)
    content.rows = Counted(content.rows)
    return content


def row(rng: random.Random, key: int) -> Row:
    values = [None, math.nan, -1.5, *(float(n) for n in range(40))]
    return (key, rng.choice(values), rng.choice(["a", "b", "c"]))


def rows_of(count: int, seed: int = 1) -> dict[Key, Row]:
    rng = random.Random(seed)
    return {(key,): row(rng, key) for key in rng.sample(range(count * 2), count)}


def change(content: Content, after: dict[Key, Row | None], written_us: int = 0) -> None:
    content.apply(content.prepare(content.offset + 1, after, None, written_us))


def query_of(order_by: str | None = "-v", limit: int | None = 20, where: str | None = None) -> Query:
    return parse_query(COLUMNS, ["k"], where=where, order_by=order_by, limit=limit)


def count_builds(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    builds, build = [], OrderIndex.build
    monkeypatch.setattr(OrderIndex, "build", lambda *given: builds.append(given) or build(*given))
    return lambda: len(builds)


async def read(query: Query, content: Content) -> list[Row]:
    await prepare(query, content)
    return await answer(query, content)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "question",
    [{}, {"order_by": None}, {"order_by": "name,v"}, {"where": "name = 'a'"}, {"where": "v = 3 and name = 'b'"}],
    ids=str,
)
async def test_an_indexed_read_gives_what_sorting_everything_gives(seed: int, question: dict[str, Any]) -> None:
    rng = random.Random(seed)
    content = content_of(rows_of(3_000, seed))
    query = query_of(limit=rng.choice([1, 20, 300]), **question)
    for size in (0, 1, 50, 700, 3):
        present = sorted(content.rows)
        ops: dict[Key, Row | None] = {key: rng.choice([None, row(rng, key[0])]) for key in rng.sample(present, size)}
        ops |= {(key,): row(rng, key) for key in rng.sample(range(6_000), size)}
        change(content, ops)
        assert repr(await read(query, content)) == repr(evaluate(query, dict(content.rows)))


@pytest.mark.parametrize("seed", range(3))
async def test_an_index_of_the_first_rows_alone_is_right_and_is_made_anew_when_they_have_left(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.views.order_index._LEAST_ROWS", 200)
    monkeypatch.setattr("penstock.views.order_index._COARSE_ROWS", 16)
    rng, content, query = random.Random(seed), content_of(rows_of(2_300, seed)), query_of("-v,name")
    filtered = query_of("-v,name", limit=200, where="name = 'a'")
    built = count_builds(monkeypatch)
    for _ in range(15):
        first = sorted(content.rows, key=lambda key: query.sort_key(key, content.rows[key]))[: rng.randrange(80)]
        worse = {key: rng.choice([None, (key[0], rng.choice([None, -2.0, -3.0]), "z")]) for key in first}
        change(content, worse)
        change(content, {(key,): row(rng, key) for key in rng.sample(range(4_600), rng.randrange(40))})
        assert repr(await read(query, content)) == repr(evaluate(query, dict(content.rows)))
        assert repr(await read(filtered, content)) == repr(evaluate(filtered, dict(content.rows)))
    assert built() > 1


async def test_a_read_looks_at_as_many_rows_of_a_large_view_as_of_a_small_one() -> None:
    looked = []
    for count in (5_000, 50_000):
        content = content_of({(key,): (key, float(key * 7919 % count), "a") for key in range(count)})
        await read(query_of(), content)
        content.rows.looked = 0  # type: ignore[attr-defined]
        await read(query_of(), content)
        looked.append(content.rows.looked)  # type: ignore[attr-defined]
    assert 20 <= looked[1] <= looked[0] * 1.3 <= 130


async def test_the_first_rows_are_followed_and_ranked_again_without_a_scan() -> None:
    """The best row leaves in every batch, so that the ranking runs out of rows again and again."""
    looked, query = [], query_of(order_by="v")
    for count in (5_000, 50_000):
        content = content_of({(key,): (key, float(key), "a") for key in range(count)})
        await prepare(query, content)
        content.rows.looked = 0  # type: ignore[attr-defined]
        state = TopState(query, content.top(query, 31), reserve=10)
        for key in range(200):
            change(content, {(key,): (key, float(count + key), "a")})
            batch = content.history.after(content.offset - 1)
            assert batch is not None
            if state.apply(batch[0].changes) is None:
                state = TopState(query, EarlierRows(content.top(query, 31), []), reserve=10)
            assert state.rows()[0][0] == key + 1
        looked.append(content.rows.looked)  # type: ignore[attr-defined]
    assert looked[1] <= looked[0] * 1.3 <= 200 * 60


async def test_changes_that_come_while_an_index_is_built_are_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    content, query, build = content_of(rows_of(3_000)), query_of("k"), OrderIndex.build
    begun, may_end = threading.Event(), threading.Event()

    def slow(*arguments: Any) -> OrderIndex:
        begun.set()
        assert may_end.wait(30)
        return build(*arguments)

    monkeypatch.setattr(OrderIndex, "build", slow)
    reading = asyncio.ensure_future(prepare(query, content))
    assert await asyncio.to_thread(begun.wait, 30)
    change(content, {(-1,): (-1, 1.0, "new"), min(content.rows): None})
    change(content, {(-2,): (-2, 1.0, "new"), (-1,): None})
    may_end.set()
    await reading
    assert await answer(query, content) == evaluate(query, dict(content.rows))
    assert (await answer(query, content))[0][0] == -2


async def test_many_rows_that_come_to_one_place_are_not_sorted_by_the_next_reader() -> None:
    content, query = content_of(rows_of(3_000)), query_of("k")
    await read(query, content)
    change(content, {(key,): (key, 1.0, "new") for key in range(-3_000, 0)})
    await content.orders.settle()
    content.rows.looked = 0  # type: ignore[attr-defined]
    assert (await read(query, content))[0][0] == -3_000
    assert content.rows.looked <= 100  # type: ignore[attr-defined]


async def test_a_large_batch_is_taken_in_by_slices_and_is_whole_for_whoever_reads_in_between() -> None:
    content, query = content_of(rows_of(3_000)), query_of()
    await prepare(query, content)
    rng = random.Random(3)
    change(content, {(key,): row(rng, key) for key in range(0, 6_000, 2)})
    settling = asyncio.ensure_future(content.orders.settle())
    await asyncio.sleep(0)
    assert repr(await answer(query, content)) == repr(evaluate(query, dict(content.rows)))
    await settling
    assert repr(await answer(query, content)) == repr(evaluate(query, dict(content.rows)))


async def test_an_index_that_nobody_reads_is_let_go() -> None:
    content, query = content_of(rows_of(3_000)), query_of()
    await prepare(query, content)
    change(content, {(1,): (1, 1.0, "a")}, written_us=IDLE_US - 1)
    await answer(query, content)
    change(content, {(1,): (1, 2.0, "a")}, written_us=2 * IDLE_US - 2)
    assert len(content.orders) == 1
    change(content, {(1,): (1, 3.0, "a")}, written_us=2 * IDLE_US)
    assert len(content.orders) == 0


async def test_a_view_keeps_a_few_orders_at_most() -> None:
    content = content_of(rows_of(3_000))
    for order in ("k", "-k", "v", "-v", "name", "-name"):
        await read(query_of(order), content)
    assert len(content.orders) == INDEXES


async def test_no_index_is_made_for_a_filter_that_few_rows_pass() -> None:
    content, query = content_of(rows_of(3_000)), query_of(where="v = 3 and name = 'b'")
    assert await read(query, content) == evaluate(query, dict(content.rows))
    assert len(content.orders) == 0
