"""A loop in a thread of its own, so that programs without asyncio read through the same parts as those with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from threading import Thread
from typing import Any, TypeVar

from penstock.errors import ClientClosedError

T = TypeVar("T")

_END_S = 5.0


class LoopThread:
    """The thread and its loop. Ends with the process, or by `close`."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="penstock-reader", daemon=True)
        self._thread.start()
        self._closed = False

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Do this and wait for it; an interrupt or the end of time gives it up."""
        future = self.submit(work)
        try:
            return future.result(timeout_s)
        except BaseException:
            future.cancel()
            raise

    def begin(self, work: Coroutine[Any, Any, Any]) -> Callable[[], None]:
        """Start this; what is returned stops it and waits until it has stopped."""
        task = self.run(_begun(work))
        return lambda: None if self._closed else self.run(_stopped(task))

    def close(self, last: Coroutine[Any, Any, None]) -> None:
        """Do this last, then end the loop with all that runs on it."""
        if self._closed:
            last.close()
            return
        self.run(_end_others(), _END_S)  # first, so that they give their connections back
        self.run(last, _END_S)  # it closes what waits between two items, each generator before the one inside it
        self.run(self._loop.shutdown_asyncgens(), _END_S)
        self._closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_END_S)
        self._loop.close()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start this. Raises `ClientClosedError`."""
        if self._closed:
            work.close()
            raise ClientClosedError("this client is closed", hint="make a new one, or stay within its with statement")
        return asyncio.run_coroutine_threadsafe(work, self._loop)


async def _begun(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    return asyncio.create_task(work)


async def _stopped(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _end_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    with suppress(TimeoutError):
        async with asyncio.timeout(_END_S / 2):
            await asyncio.gather(*others, return_exceptions=True)
