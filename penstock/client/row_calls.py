"""Calls a function for every row that comes to meet a condition, or changes while it does: the server calls the client.

At least once for each connection: a row that changed just before this process died may not have been handled, and does
not come again after a restart. `client.process` is the way to handle each change exactly once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.client.live_rows import KeyColumns
from penstock.client.loop_thread import LoopThread
from penstock.client.subscription import Following
from penstock.client.view_rows import Changes, Hashable, Row, key_of

_log = logging.getLogger("penstock.client")


@dataclass(frozen=True, slots=True)
class RowChange:
    """One row that was changed."""

    view: str
    row: Row
    before: Row | None
    """What it was when it last met the condition; None: it has come to meet it."""
    position: str
    """Behind the batch that it came with."""


Call = Callable[[RowChange], Awaitable[None]]


class Calls:
    """Follows, compares and calls. It keeps a copy of the rows, to know after a `reset` which have changed."""

    def __init__(self, watch: Following[Changes], key_columns: KeyColumns, call: Call, existing: bool) -> None:
        self._watch, self._key_columns, self._call = watch, key_columns, call
        self._rows: dict[Hashable, Row] | None = {} if existing else None
        self._key: Sequence[str] = ()

    async def run(self) -> None:
        """Until it is cancelled, the server refuses, or a call fails."""
        try:
            async for changes in self._watch:
                if changes.snapshot:
                    self._key = await self._key_columns()
                for change in self._news(changes):
                    await self._call(change)
        finally:
            await self._watch.aclose()

    def _news(self, changes: Changes) -> list[RowChange]:
        upserts = {key_of(row, self._key): row for row in changes.upserts}
        before = upserts if self._rows is None else self._rows
        news = [
            RowChange(changes.view, row, before.get(key), changes.position)
            for key, row in upserts.items()
            if before.get(key) != row
        ]
        rows = {} if changes.snapshot or self._rows is None else self._rows
        for row in changes.deletes:
            rows.pop(key_of(row, self._key), None)
        rows.update(upserts)
        self._rows = rows
        return news


class AsyncCalling:
    """What `AsyncClient.on` gives: calls go on until `stop`, or until one fails."""

    def __init__(self, calls: Calls, position: Callable[[], str | None]) -> None:
        self._task = asyncio.create_task(_run_logged(calls))
        self._position = position

    @property
    def position(self) -> str | None:
        return self._position()

    async def wait(self) -> None:
        """Until it ends; raises the reason."""
        await asyncio.shield(self._task)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def __aenter__(self) -> AsyncCalling:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


class Calling:
    """What `Client.on` gives: the same for threads."""

    def __init__(self, calls: Calls, position: Callable[[], str | None], loop_thread: LoopThread) -> None:
        self._loop_thread, self._position = loop_thread, position

        async def begin() -> AsyncCalling:
            return AsyncCalling(calls, position)

        self._calling = loop_thread.run(begin())

    @property
    def position(self) -> str | None:
        return self._position()

    def wait(self, timeout_s: float | None = None) -> None:
        """Until it ends; raises the reason, or `TimeoutError`."""
        self._loop_thread.run(self._calling.wait(), timeout_s)

    def stop(self) -> None:
        self._loop_thread.run(self._calling.stop())

    def __enter__(self) -> Calling:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


async def _run_logged(calls: Calls) -> None:
    """A failure that nobody waits for is not lost: it is in the log."""
    try:
        await calls.run()
    except asyncio.CancelledError:
        raise
    except Exception as failure:
        _log.error("calls for rows have ended: %s: %s", type(failure).__name__, failure)
        raise


def in_order(handler: Callable[[RowChange], Any], in_thread: bool) -> Call:
    """A handler of either kind as something to wait for; a plain one may block, so that it runs in a thread."""

    async def call(change: RowChange) -> None:
        result = await asyncio.to_thread(handler, change) if in_thread else handler(change)
        if asyncio.iscoroutine(result):
            await result

    return call
