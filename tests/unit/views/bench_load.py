"""Measures loading, following and ranking a million rows; run it by hand: `python tests/unit/views/bench_load.py`."""

from __future__ import annotations

import asyncio
import gc
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from fake_flows import FakeFlows, small_app

from penstock.config import Folder, Limits
from penstock.log.opening import open_reader
from penstock.serve.fanout.answers import answer, json_parts
from penstock.serve.fanout.messages import RowCodec
from penstock.views.read_query import parse_query
from penstock.views.store import Content
from penstock.views.top_rows import TopState
from penstock.views.views import Views

ROWS = 1_000_000
TS = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        ("window", pa.struct([("start", TS), ("end", TS)])),
        ("topic", pa.string()),
        ("rsvps", pa.int64()),
        ("rate", pa.float64()),
    ]
)


def batch(schema: pa.Schema, low: int, high: int) -> pa.RecordBatch:
    """Rows of 1,000 topics in each minute."""
    start = pa.array(np.arange(low, high) // 1000 * 60_000_000, TS)
    windows = pa.StructArray.from_arrays([start, start], fields=list(SCHEMA.field("window").type))
    topics = pa.array([f"topic{i % 1000}" for i in range(low, high)])
    numbers = pa.array(np.random.default_rng(low).permutation(high - low))
    rates, ops = pa.array(np.random.default_rng(low).random(high - low)), pa.array(np.zeros(high - low, np.int8))
    return pa.RecordBatch.from_arrays([windows, topics, numbers, rates, ops], schema=schema)


async def measured(what: str, work: Callable[[], Awaitable[Any]]) -> Any:
    """Run `work` and print how long it took and the longest time that the loop stood still meanwhile."""
    longest, over = 0.0, False

    async def beat() -> None:
        nonlocal longest
        while not over:
            at = time.perf_counter()
            await asyncio.sleep(0.001)
            longest = max(longest, time.perf_counter() - at - 0.001)

    beating = asyncio.create_task(beat())
    await asyncio.sleep(0.01)
    longest, began, cpu = 0.0, time.perf_counter(), time.process_time()
    result = await work()
    took, over, spent = time.perf_counter() - began, True, time.process_time() - cpu
    print(f"{what:42} {took:8.3f} s, CPU {spent:7.3f} s, loop stood still {longest * 1000:7.1f} ms")
    await beating
    return result


async def main() -> None:
    with tempfile.TemporaryDirectory() as path:
        flows = FakeFlows(Folder(Path(path)).flows_log)
        stream = flows.build("elsewhere", SCHEMA, ("window", "topic"))
        for low in range(0, ROWS, 10_000):
            flows.append(stream, batch(stream.schema, low, low + 10_000))
        if "compact" in sys.argv:
            flows.log.compact(stream, ROWS // 10_000)
        views = Views(small_app().declared(), open_reader(Folder(Path(path)).flows_log), limits=Limits())
        view = views.view("elsewhere")

        async def load() -> Content:
            await views.start()
            return await view.loaded()

        content = await measured(f"load {ROWS} rows", load)
        gc.freeze()
        for size in (100, 2_000, 10_000, 100_000):
            offset = content.offset + 1

            async def follow(offset: int = offset) -> None:
                await view.until(lambda: content.offset >= offset, None)

            await asyncio.to_thread(flows.append, stream, batch(stream.schema, ROWS, ROWS + size))
            await measured(f"decode and apply a batch of {size}", follow)
        await questions(content)
        print(f"estimated {content.bytes >> 20} MiB of rows, {content.history.bytes >> 20} MiB of history")
        await views.stop()
        flows.close()


async def questions(content: Content) -> None:
    top = parse_query(content.columns, content.key, order_by="-rsvps", limit=20)
    filtered = parse_query(content.columns, content.key, where="topic = 'topic7'")
    everything = parse_query(content.columns, content.key)
    ordered = parse_query(content.columns, content.key, order_by="-rsvps")
    await measured("capture the rows", lambda: asyncio.sleep(0, content.captured()))
    await measured("GET the top 20", lambda: answer(top, content))
    await measured("GET where topic = ... (0.1 %)", lambda: answer(filtered, content))
    rows = await measured("GET all", lambda: answer(everything, content))

    async def encode() -> None:
        async for _ in json_parts(RowCodec(everything), rows, 5_000):
            pass

    await measured("  and turn them into JSON objects", encode)
    await measured("GET all, ordered", lambda: answer(ordered, content))
    captured = content.captured()
    await measured("begin a subscription to the top 20", lambda: asyncio.to_thread(TopState, top, captured))


if __name__ == "__main__":
    asyncio.run(main())
