"""The two faces of a producer: `Producer` for threads and `AsyncProducer` for asyncio, over the same parts."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from types import TracebackType
from typing import Unpack

from penstock.client.event_line import Sendable, event_line
from penstock.client.handle import Handle
from penstock.client.outbox import Status
from penstock.client.parts import Options, Parts
from penstock.errors import PenstockError

CLOSE_S = 30.0
"""How long `close` waits for answers unless told otherwise."""


class Producer:
    """Sends events to one stream from any number of threads, each event once, in the order of the calls.

    With a `folder`, an event is on the disk when `send` returns and is sent by the next producer that opens the
    folder if this one dies. Without one, it is in memory and dies with the process.

        with Producer("http://localhost:8080", "orders", folder="outbox/orders") as orders:
            orders.send({"order_id": 1, "country": "NL"})

    `close` is called at the end of a program that forgot it, and then waits for 5 seconds.
    """

    def __init__(self, url: str, stream: str, **options: Unpack[Options]) -> None:
        self._parts = Parts(url, stream, **options)

    def send(self, event: Sendable, timeout_s: float | None = None) -> Handle:
        """Put an event into the queue; the handle says when the server has it.

        Waits for room in a full queue (for `timeout_s` at most), or raises `QueueFullError` with `full="error"`.
        Raises `BadRequestError` or `TooLargeError` if it cannot be an event, `DiskFullError` if the folder does not
        take it: then it is not in the queue.
        """
        line = event_line(event)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while (taken := self._parts.put(line)) is None:
            try:
                self._parts.outbox.room(len(line)).result(_left_s(deadline))
            except TimeoutError:
                raise self._parts.queue_full() from None
        handle, stored = taken
        stored.result()
        return handle

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until the server has answered for all that was sent before. Raises `UnsentError` when time is up."""
        self._parts.flush(timeout_s)

    def status(self) -> Status:
        """How it is: what waits, and why."""
        return self._parts.status()

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Flush, then end. What is then unsent stays in the folder; without one it is lost: raises `UnsentError`."""
        if self._parts.ours:
            with suppress(PenstockError):  # what is left is told below
                self.flush(timeout_s)
            self._parts.close()

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncProducer:
    """The same for asyncio: no call holds up the loop, and `await handle` waits for the server's answer.

    Making one opens its folder, which takes some milliseconds.

    async with AsyncProducer("http://localhost:8080", "orders") as orders:
        handle = await orders.send({"order_id": 1, "country": "NL"})
        receipt = await handle
    """

    def __init__(self, url: str, stream: str, **options: Unpack[Options]) -> None:
        self._parts = Parts(url, stream, **options)

    async def send(self, event: Sendable, timeout_s: float | None = None) -> Handle:
        """As `Producer.send`."""
        line = event_line(event)
        try:
            async with asyncio.timeout(timeout_s):
                while (taken := self._parts.put(line)) is None:
                    await asyncio.wrap_future(self._parts.outbox.room(len(line)))
        except TimeoutError:
            raise self._parts.queue_full() from None
        handle, stored = taken
        await asyncio.wrap_future(stored)
        return handle

    async def flush(self, timeout_s: float | None = None) -> None:
        """As `Producer.flush`."""
        try:
            await asyncio.wait_for(asyncio.wrap_future(self._parts.outbox.drained()), timeout_s)
        except TimeoutError:
            raise self._parts.unsent() from None

    def status(self) -> Status:
        """As `Producer.status`."""
        return self._parts.status()

    async def close(self, timeout_s: float = CLOSE_S) -> None:
        """As `Producer.close`."""
        if self._parts.ours:
            with suppress(PenstockError):  # what is left is told below
                await self.flush(timeout_s)
            await asyncio.to_thread(self._parts.close)

    async def __aenter__(self) -> AsyncProducer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _left_s(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())
