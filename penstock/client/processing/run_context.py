"""What a handler has in its hand beside the change: a key that stays the same, and calls that are logged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Mapping
from typing import Any, TypeVar

from penstock.client.processing.replay import Replay, Request, Target
from penstock.client.processing.work import Task

T = TypeVar("T")
ACCEPTED = range(200, 300)
_NO_HEADERS: Mapping[str, str] = {}


class _Known:
    """What both contexts tell."""

    def __init__(self, task: Task, replay: Replay, term: int) -> None:
        self._replay = replay
        self.key = task.key
        """The idempotency key of this task: the same in each try, process and machine."""
        self.tries = task.tries
        """How often this task was tried before, as far as tries came to an end."""
        self.term = term
        """Grows with each start and take-over of the processor."""


class Context(_Known):
    """For a handler that is a function; it runs in a thread.

    def pay(change, ctx):
        ctx.call("https://bank/charges", {"to": change.key["song"], "amount": change.row["amount"]})
    """

    def call(
        self,
        target: Target,
        payload: Any = None,
        *,
        method: str = "POST",
        headers: Mapping[str, str] = _NO_HEADERS,
        accept: Container[int] = ACCEPTED,
        timeout_s: float | None = None,
    ) -> Any:
        """Call a URL, or a function that gets a `Call`; once, as far as the other side lets it be.

        The request is logged, then sent with `Idempotency-Key`, then its answer is logged; in a later try of this task
        it is answered from the log. Returns an `Answer`, or what the function returned, as JSON has it. Raises
        `UnreachableError` and `CallRefusedError` when it had no effect, `CallCutOffError` when nobody knows. `headers`
        are not logged, so that secrets may be in them.
        """
        return self._replay.call(self._replay.number(), Request(target, payload, method, headers, accept, timeout_s))

    def once(self, make: Callable[[], Any]) -> Any:
        """The value of `make()` in the first run of this task that got so far: for times, random values, reads."""
        return self._replay.once(self._replay.number(), make)


class AsyncContext(_Known):
    """For a handler that is a coroutine function; calls may be under way at the same time.

    async def pay(change, ctx):
        await ctx.call("https://bank/charges", {"to": change.key["song"], "amount": change.row["amount"]})
    """

    async def call(
        self,
        target: Target,
        payload: Any = None,
        *,
        method: str = "POST",
        headers: Mapping[str, str] = _NO_HEADERS,
        accept: Container[int] = ACCEPTED,
        timeout_s: float | None = None,
    ) -> Any:
        """As `Context.call`."""
        number = self._replay.number()
        return await in_thread(self._replay.call, number, Request(target, payload, method, headers, accept, timeout_s))

    async def once(self, make: Callable[[], Any]) -> Any:
        """As `Context.once`."""
        return await in_thread(self._replay.once, self._replay.number(), make)


async def in_thread(work: Callable[..., T], *values: Any) -> T:
    """The result of something that blocks. One that is cancelled still waits for it: a thread cannot be taken back."""
    running = asyncio.ensure_future(asyncio.to_thread(work, *values))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        if not running.cancelled():
            running.exception()
        raise
