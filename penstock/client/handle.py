"""What the caller holds of one event that it sent: whether it was taken, to be asked, waited for or awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from concurrent.futures import Future
from threading import Lock

from penstock.client.batch import Receipt

Outcome = Receipt | Exception


class Handle:
    """The fate of one event. There is one per event, so it is small: waiting costs more, and only who waits pays."""

    __slots__ = ("_future", "_lock", "_outcome")

    def __init__(self, lock: Lock) -> None:
        self._lock = lock
        self._outcome: Outcome | None = None
        self._future: Future[Receipt] | None = None

    def done(self) -> bool:
        """Whether the server has answered, or never will."""
        return self._outcome is not None

    def result(self, timeout_s: float | None = None) -> Receipt:
        """Wait for the answer.

        Raises `EventRejectedError` if the server rejected the event, `UnsentError` or `FencedError` if this producer
        ended before it was answered, and `TimeoutError` if it is not answered in time (it may still be).
        """
        return self._waiter().result(timeout_s)

    def __await__(self) -> Generator[None, None, Receipt]:
        return asyncio.wrap_future(self._waiter()).__await__()

    def settle(self, outcome: Outcome) -> None:
        """What is told first stands: an answer may still come to a producer that has ended."""
        with self._lock:
            if self._outcome is not None:
                return
            self._outcome = outcome
            future = self._future
        if future is not None:
            _resolve(future, outcome)

    def _waiter(self) -> Future[Receipt]:
        with self._lock:
            if self._future is None:
                self._future = Future()
                self._future.set_running_or_notify_cancel()  # one who gives up waiting must not cancel the others
                if self._outcome is not None:
                    _resolve(self._future, self._outcome)
            return self._future


def _resolve(future: Future[Receipt], outcome: Outcome) -> None:
    if isinstance(outcome, Receipt):
        future.set_result(outcome)
    else:
        future.set_exception(outcome)
