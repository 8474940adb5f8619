"""What is sent together under one number, and what its sender holds of it: a handle, and then the server's receipt."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Lock


@dataclass(frozen=True, slots=True)
class BatchNumber:
    """A batch as it is remembered: its number, and which events of the queue it holds.

    The events of a number never change, except that it may be made smaller as long as no try of it can have been
    taken. That is what makes a repeat safe.
    """

    epoch: int
    sequence: int
    first: int
    last: int
    doubtful: bool = False
    """Whether a try may have been taken although no answer came."""


@dataclass(frozen=True, slots=True)
class NumberedBatch:
    """A numbered batch with its events, one line of JSON each."""

    number: BatchNumber
    lines: Sequence[bytes]
    """An empty one is no event: a promise stood there."""
    promise: str | None = None
    """What it promises of all that comes behind it, as the header has it."""

    def body(self) -> bytes:
        return b"".join(line + b"\n" for line in self.lines)


@dataclass(frozen=True, slots=True)
class Receipt:
    """What the server said of the request that an event was in.

    `ack` is its token, for `GET /views/{view}?after=<ack>`; empty in the rare case that nobody can tell it any more.
    `repeated`: the request had been taken before and its answer was lost; which of its events were rejected is then
    only known in the stream `dead`. `shed`: how many events of the request an overloaded server dropped by its
    declared rule.
    """

    ack: str
    repeated: bool = False
    shed: int = 0


Outcome = Receipt | Exception


class Handle:
    """The fate of one event, to be asked, waited for or awaited. It is small: waiting costs more, and only who waits
    pays for that."""

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
        """The first outcome stands: an answer may still come to a producer that has ended."""
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
