"""Writes down how far webhooks have come: behind what was delivered, many at a time, so that they share the fsync.

1. Progress is never written before its delivery was taken, so that a crash repeats deliveries and skips none; what was
   noted is in the log about `FLUSH_S` later.
2. What must be durable before something is sent, or before an owner is told, is written at once by `write`.
3. A log that cannot be written to is told, and tried again; deliveries go on meanwhile.
4. Whoever changes a webhook's definition holds `alone` from writing it down to knowing it. What was noted before is
   written ahead of that, or made from the new definition behind it, and nothing old comes back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any

from penstock.errors import PenstockError
from penstock.observe.signals import Signal, WebhookProgressUnwritten

FLUSH_S = 0.05
"""What is noted within it goes into one commit: so much is repeated after a crash at most."""
TOGETHER = 250
"""Webhooks in one commit: gathering them takes about 5 ms of the loop."""
RETRY_S = 1.0

Remember = Callable[[Mapping[str, Any]], Awaitable[Any]]


class ProgressKeeper:
    """Of one edge; lives on its loop. `values` gives what is to be written of a webhook, by id."""

    def __init__(
        self, remember: Remember, values: Callable[[str], Mapping[str, Any]], signals: Callable[[Signal], None]
    ) -> None:
        self._remember, self._values, self._signals = remember, values, signals
        self._changed: set[str] = set()
        self._some = asyncio.Event()
        self.alone = asyncio.Lock()
        """While it is held nothing that was noted is written."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="webhook progress")

    async def close(self) -> None:
        """Write what was noted, if the log takes it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        with suppress(PenstockError):
            while self._changed:
                await self._flush()

    def note(self, id: str) -> None:
        """The webhook's progress has changed."""
        self._changed.add(id)
        self._some.set()

    async def write(self, values: Mapping[str, Any]) -> None:
        """Durable on return. What is submitted later is written later, so that nothing older comes behind it."""
        await self._remember(values)

    async def _run(self) -> None:
        while True:
            await self._some.wait()
            self._some.clear()
            try:
                await self._flush()
                await asyncio.sleep(FLUSH_S)
            except PenstockError as error:
                self._signals(WebhookProgressUnwritten(error.code))
                await asyncio.sleep(RETRY_S)

    async def _flush(self) -> None:
        async with self.alone:
            taken = set(islice(self._changed, TOGETHER))
            self._changed -= taken
            if self._changed:
                self._some.set()
            values: dict[str, Any] = {}
            for id in taken:
                values |= self._values(id)
            try:
                if values:
                    await self._remember(values)
            except PenstockError:
                self._changed |= taken
                self._some.set()
                raise
