from __future__ import annotations

import asyncio
import gzip
from pathlib import Path

from running_edge import Edge, held, running, until
from shop_app import shop

from penstock.config import Limits

BROKEN = gzip.compress(b"0" * 2_000_000)[:-9]


def private_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) * 1024


async def test_packed_bodies_that_break_off_leave_no_memory_behind(edge: Edge) -> None:
    """Arrow's `read` kept what it had unpacked of each: 2 MB here, 16 MiB at most."""

    async def post(times: int) -> None:
        for _ in range(times):
            reply = await edge.post("orders", BROKEN, headers={"Content-Encoding": "gzip"})
            assert reply.code == "bad_body"

    await post(10)
    before = private_bytes()
    await post(40)
    assert private_bytes() - before < 30_000_000


async def test_a_packed_body_takes_the_room_that_it_needs_unpacked(tmp_path: Path) -> None:
    body = b'{"order_id": 1}' + b" " * 30_000
    packed = gzip.compress(body)
    async with running(shop(), tmp_path, limits=Limits(unwritten_bytes=100_000)) as edge:
        room, zipped = edge.collect.pressure.room, {"Content-Encoding": "gzip"}
        with held(edge):
            waiting = asyncio.create_task(edge.post("orders", packed, headers=zipped))
            await until(lambda: room.taken_bytes == len(body))
            again = asyncio.create_task(edge.post("orders", packed, headers=zipped))
            await until(lambda: room.taken_bytes == 2 * len(body) or again.done())
            refused = await edge.post("orders", packed, headers=zipped)
            assert (refused.status, refused.code) == (503, "overloaded")
        assert [(await reply).status for reply in (waiting, again)] == [200, 200]
        assert (room.taken_bytes, room.accounts) == (0, 0)
