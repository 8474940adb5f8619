"""Answers a query over a view of any size without holding up the loop: small ones at once, large ones in a thread.

Python sorts a million rows in one step that no other thread can interrupt, so large answers are sorted in chunks that
are then merged. Without `order_by` a large answer comes in no particular order.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from heapq import merge
from itertools import islice
from operator import itemgetter
from typing import Any

from aiohttp import web

from penstock.change import Key, Row
from penstock.config import Limits
from penstock.serve.fanout.messages import RowCodec
from penstock.views.read_query import Query, evaluate
from penstock.views.store import Content
from penstock.views.top_rows import best_rows

SMALL_ROWS = 2_000
"""Up to this many rows of a view are filtered and sorted on the loop: about 2 ms."""
_CHUNK_ROWS = 5_000
_RANKED_ROWS = 10_000
"""Up to this limit the best rows are picked out; above it everything is sorted."""
_SLICE_ROWS = 500
"""Rows turned into JSON objects between two steps of the loop: under 1 ms."""


async def answer(query: Query, content: Content) -> list[Row]:
    """The projected rows of a query at the content's present offset."""
    if len(content.rows) <= SMALL_ROWS:
        return evaluate(query, content.rows)
    rows = content.captured() if query.limit is None else content.top(query, query.limit)
    return _large(query, rows) if len(rows) <= SMALL_ROWS else await asyncio.to_thread(_large, query, rows)


async def prepare(query: Query, content: Content, more: int = 0) -> None:
    """Make ready what the first rows of a query are taken from, its limit and some more.

    Whoever takes them in the same step of the loop pays for so many, where no filter leaves out a lot.
    """
    if query.limit is not None and len(content.rows) > SMALL_ROWS:
        await content.orders.ready(query, query.limit + more)


def _large(query: Query, rows: Mapping[Key, Row]) -> list[Row]:
    if query.limit is not None and query.limit <= _RANKED_ROWS:
        return [query.project(row) for _, _, row in best_rows(query, rows, query.limit)]
    passing = ((key, row) for key, row in rows.items() if query.passes(row))
    if query.limit is None and not query.order_by:
        return [query.project(row) for _, row in passing]
    sort_key = _order_of if query.limit is None else Query.sort_key
    chunks = []
    while chunk := [(sort_key(query, key, row), row) for key, row in islice(passing, _CHUNK_ROWS)]:
        chunk.sort(key=itemgetter(0))
        chunks.append(chunk)
    return [query.project(row) for _, row in islice(merge(*chunks, key=itemgetter(0)), query.limit)]


def _order_of(query: Query, key: Key, row: Row) -> tuple[Any, ...]:
    """Without the key, which takes longest to compare and matters only where a limit cuts."""
    return tuple([item.of(row) for item in query.order_by])


async def written(response: web.StreamResponse, data: bytes, limits: Limits) -> None:
    """Write part of a large reply. Raises `ConnectionResetError` for a client that does not read on."""
    try:
        async with asyncio.timeout(limits.subscriber_cut_s):
            await response.write(data)
    except TimeoutError:
        raise ConnectionResetError("the client does not read its reply") from None


async def json_parts(codec: RowCodec, rows: Sequence[Row], part_rows: int) -> AsyncIterator[list[dict[str, Any]]]:
    """The rows as JSON objects, in parts; at least one, which may be empty."""
    for start in range(0, max(len(rows), 1), part_rows):
        part: list[dict[str, Any]] = []
        for at in range(start, min(start + part_rows, len(rows)), _SLICE_ROWS):
            if at:
                await asyncio.sleep(0)
            part += codec.rows(rows[at : min(at + _SLICE_ROWS, start + part_rows)])
        yield part
