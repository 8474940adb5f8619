"""Sends single events with unique keys and sees when each appears at a WebSocket client: the ends of freshness."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec

ARRIVE_S = 15.0
"""How long a probe may take; what takes longer is told as missing."""
_decode = msgspec.json.Decoder().decode


def now_us() -> int:
    return time.time_ns() // 1000


@dataclass
class Seen:
    """When each probe was acknowledged and when it came back, by its number."""

    acked_us: dict[int, int] = field(default_factory=dict)
    wire_us: dict[int, int] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    """What the server said to those that it did not take."""


class Prober:
    """Posts probes at random moments and listens to the view that counts them."""

    def __init__(self, session: aiohttp.ClientSession, url: str, seen: Seen, first: int = 1) -> None:
        """`first` is the number of the first probe: never one that this server has had."""
        self._session = session
        self._url = url
        self._random = random.Random(7)
        self._number = first - 1
        self.seen = seen

    async def send(self, seconds: float, mean_s: float = 0.1) -> range:
        """Probe for so long, without waiting for answers in between, so that a stall is not hidden; returns the
        numbers that were used once each is answered."""
        first, tasks = self._number + 1, []
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._number += 1
            tasks.append(asyncio.create_task(self._post(self._number)))
            await asyncio.sleep(self._random.uniform(0.5, 1.5) * mean_s)
        await asyncio.gather(*tasks)
        return range(first, self._number + 1)

    async def arrived(self, numbers: range) -> None:
        """Wait until all that were acknowledged have come back, or were given their time."""
        deadline = time.monotonic() + ARRIVE_S
        while time.monotonic() < deadline:
            if all(n in self.seen.wire_us for n in numbers if n in self.seen.acked_us):
                return
            await asyncio.sleep(0.05)

    async def _post(self, number: int) -> None:
        event = {
            "sensor": f"probe{number}",
            "kind": "k0",
            "region": 0,
            "value": 1.0,
            "at": now_us() // 1000,
            "probe": number,
        }
        try:
            async with self._session.post(f"{self._url}/streams/readings", json=event) as reply:
                text = await reply.text()
                if reply.status == 200:
                    self.seen.acked_us[number] = now_us()
                    return
        except aiohttp.ClientError as error:
            text = repr(error)
        self.seen.refused.append(text)


@contextlib.asynccontextmanager
async def listening(session: aiohttp.ClientSession, url: str, view: str, seen: Seen) -> AsyncIterator[None]:
    """Follow the view over a WebSocket while the block runs."""
    async with session.ws_connect(f"{url}/views/{view}/socket", max_msg_size=0) as socket:
        await socket.send_json({"type": "subscribe", "view": view, "where": "probe > 0", "limit": None})
        first = _decode(await socket.receive_str())
        if first["type"] != "snapshot":
            raise RuntimeError(f"no snapshot, but: {first}")
        task = asyncio.create_task(_listen(socket, seen))
        try:
            yield
            if task.done():
                task.result()
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def _listen(socket: aiohttp.ClientWebSocketResponse, seen: Seen) -> None:
    async for message in socket:
        at = now_us()
        body: dict[str, Any] = _decode(message.data)
        if body["type"] in ("reset", "error"):
            raise RuntimeError(f"the subscription broke: {body}")
        for row in body.get("upserts", ()):
            seen.wire_us.setdefault(row["probe"], at)
    raise RuntimeError(f"the server closed the socket: {socket.close_code}")
