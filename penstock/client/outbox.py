"""The queue of a producer: bounded, kept on disk if there is a folder, and cut into batches that keep their number.

1. There is at most one open batch: the first events of the queue, under one number. It is stored before it is sent.
2. An event leaves the queue only when the batch that holds it is settled.
3. What the caller was told is in the queue is on the disk, if there is a folder.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from threading import Condition, Lock, RLock
from typing import Literal

from penstock.client.batch import BatchNumber, Handle, NumberedBatch, Receipt
from penstock.client.journal import QueueState, StartState, Storer, next_epoch
from penstock.clock import Clock
from penstock.errors import EventRejectedError, PenstockError

_GROWTH = 1.02
"""By how much batches become larger again after one was too large: it costs one refused try in about 35."""

Doing = Literal["idle", "sending", "retrying", "blocked", "fenced", "closed"]


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """How much waits at most, and how much is sent together."""

    queue_events: int
    queue_bytes: int
    batch_events: int
    batch_bytes: int
    linger_s: float


@dataclass(frozen=True, slots=True)
class Status:
    """How a producer is. `error` says why it is `retrying`, `blocked` or `fenced`."""

    state: Doing
    unsent_events: int
    unsent_bytes: int
    error: PenstockError | None = None


class _Entry:
    __slots__ = ("arrived", "handle", "line", "n")

    def __init__(self, n: int, line: bytes, handle: Handle | None, arrived: float) -> None:
        self.n, self.line, self.handle, self.arrived = n, line, handle, arrived


class Outbox:
    """Called by any thread (`put`, `room`, `drained`) and by the one that sends (`next_batch` and what follows)."""

    def __init__(self, start: StartState, bounds: QueueBounds, storer: Storer | None, clock: Clock) -> None:
        self._bounds, self._storer, self._clock = bounds, storer, clock
        self._changed = Condition(RLock())
        self._handles = Lock()
        self._entries = deque(_Entry(n, line, None, 0.0) for n, line in start.events)
        self._events, self._bytes = len(self._entries), sum(len(line) for _, line in start.events)
        self._last = self._entries[-1].n if self._entries else 0
        self._settled = self._entries[0].n - 1 if self._entries else 0
        self._batch, self._epoch, self._sequence = start.batch, start.epoch, 0
        self._batch_bytes = bounds.batch_bytes
        self._room: list[Future[None]] = []
        self._drains: list[tuple[int, Future[None]]] = []
        self._ended: PenstockError | None = None
        self._promises: list[tuple[int, str]] = []
        """Each with the number of the entry that it came with."""

    # Any thread

    def promise(self, words: str) -> tuple[Handle, Future[None]] | None:
        """Send this promise with the batch behind all that was put before, be it one without events."""
        with self._changed:
            place = self.put(b"")
            if place is not None:
                self._promises.append((self._last, words))
            return place

    def put(self, line: bytes) -> tuple[Handle, Future[None]] | None:
        """Take one event; None if there is no room. The future is done when the event is where it must be kept."""
        stored = _future()
        with self._changed:
            if self._ended is not None:
                raise self._ended
            if self._is_full(len(line)):
                return None
            self._events += 1
            self._bytes += len(line)
            self._last += 1
            entry = _Entry(self._last, line, Handle(self._handles), self._clock.monotonic())
            assert entry.handle is not None
            if self._storer is not None:
                self._storer.store((entry.n, line), lambda failure: self._stored(entry, stored, failure))
                return entry.handle, stored
            self._entries.append(entry)
            self._changed.notify()
        stored.set_result(None)
        return entry.handle, stored

    def room(self, size: int) -> Future[None]:
        """Done when it is worth trying `put` again."""
        future = _future()
        with self._changed:
            if not self._is_full(size) or self._ended is not None:
                future.set_result(None)
            else:
                self._room.append(future)
        return future

    def drained(self) -> Future[None]:
        """Done when all that was put until now is settled; fails when that will not happen."""
        future = _future()
        with self._changed:
            if self._last <= self._behind:
                future.set_result(None)
            elif self._ended is not None:
                future.set_exception(self._ended)
            else:
                self._drains.append((self._last, future))
                self._changed.notify()
        return future

    def unsent(self) -> tuple[int, int]:
        return self._events, self._bytes

    def end(self, reason: PenstockError) -> None:
        """Take and give nothing more; whoever still waits is told the reason."""
        with self._changed:
            if self._ended is not None:
                return
            self._ended = reason
            waiting = [entry.handle for entry in self._entries if entry.handle is not None]
            drains, self._drains = self._drains, []
            room, self._room = self._room, []
            self._changed.notify_all()
        for handle in waiting:
            handle.settle(reason)
        for _, future in drains:
            future.set_exception(reason)
        for future in room:
            future.set_result(None)

    # The thread that sends

    def next_batch(self) -> NumberedBatch | None:
        """Wait for the batch that comes next; None when it is over. Raises `DiskFullError`: then it is asked again."""
        with self._changed:
            while self._ended is None and self._batch is None and (wait_s := self._wait_s()) != 0:
                self._changed.wait(wait_s)
            if self._ended is not None:
                return None
            if self._batch is not None:
                return self._filled(self._batch)
            number = self._cut()
        return self._freeze(number)

    @property
    def epoch(self) -> int:
        """That of the next batch; an open batch of an earlier start has a lower one."""
        return self._epoch

    def doubt(self) -> None:
        """A try of the open batch may have been taken: from now on its events stay under its number.

        Nothing is written: a batch that is found in a folder is doubtful anyway.
        """
        with self._changed:
            self._batch = replace(self._open, doubtful=True)

    def trust(self) -> None:
        """No try of the open batch was taken."""
        with self._changed:
            self._batch = replace(self._open, doubtful=False)

    def shrink(self) -> None:
        """The open batch with half of its events, under the same number; later batches are not much larger."""
        with self._changed:
            assert not self._open.doubtful
            half = replace(self._open, last=(self._open.first + self._open.last) // 2)
            self._batch_bytes = len(self._filled(half).body())
        self._freeze(half)

    def renumber(self) -> None:
        """The open batch as the first of a new epoch."""
        with self._changed:
            self._epoch, self._sequence = next_epoch(self._epoch, self._clock.now_us()), 0
            number = BatchNumber(self._epoch, 0, self._open.first, self._open.last)
        self._freeze(number)

    def settle(self, receipt: Receipt, rejected: Mapping[int, EventRejectedError]) -> None:
        """The open batch is done with; `rejected` by the index of the event, `receipt` for all others."""
        self._batch_bytes = min(self._bounds.batch_bytes, int(self._batch_bytes * _GROWTH) + 1)
        index = -1
        for entry in self._close():
            index += bool(entry.line)
            if entry.handle is not None:
                entry.handle.settle(rejected.get(index, receipt) if entry.line else receipt)

    def refuse(self, error: EventRejectedError) -> None:
        """The open batch is one event that the server will never take; its number goes to the next one."""
        with self._changed:
            assert not self._open.doubtful
            if self._open.epoch == self._epoch:
                self._sequence = self._open.sequence
        for entry in self._close():
            if entry.handle is not None:
                entry.handle.settle(error)

    def _close(self) -> list[_Entry]:
        with self._changed:
            done = list(self._within(self._open))
            for _ in done:
                self._entries.popleft()
            self._settled, self._batch = self._open.last, None
            self._leave(done)
            if self._storer is not None and not self._entries:  # else it is written with the next batch's number
                self._storer.store(self._state(None), lambda failure: None)
        return done

    def _freeze(self, number: BatchNumber) -> NumberedBatch:
        """Make the number the open batch, on the disk before in memory."""
        if self._storer is not None:
            written = _future()
            self._storer.store(self._state(number), lambda failure: _finish(written, failure))
            written.result()
        with self._changed:
            self._batch = number
            if number.epoch == self._epoch:
                self._sequence = number.sequence + 1
            return self._filled(number)

    # The thread that stores

    def _stored(self, entry: _Entry, stored: Future[None], failure: Exception | None) -> None:
        """An event is in the queue once it is on the disk, and not if it could not be written."""
        with self._changed:
            ended = self._ended
            if failure is not None:
                self._leave([entry])
            else:
                self._entries.append(entry)
                self._changed.notify()
        if failure is None and ended is not None and entry.handle is not None:
            entry.handle.settle(ended)
        _finish(stored, failure)

    # Within the lock

    @property
    def _open(self) -> BatchNumber:
        assert self._batch is not None
        return self._batch

    def _is_full(self, size: int) -> bool:
        """An empty queue takes an event of any size."""
        bounds = self._bounds
        return self._events > 0 and (self._events >= bounds.queue_events or self._bytes + size > bounds.queue_bytes)

    def _leave(self, entries: list[_Entry]) -> None:
        """Make room, and tell those who wait for it or for the end of the queue."""
        self._events -= len(entries)
        self._bytes -= sum(len(entry.line) for entry in entries)
        drained = [future for last, future in self._drains if last <= self._behind]
        self._drains = [one for one in self._drains if one[0] > self._behind]
        room, self._room = self._room, []
        for future in drained + room:
            future.set_result(None)

    @property
    def _behind(self) -> int:
        """All events up to this one have left; one that could not be stored has no entry."""
        if not self._events:
            return self._last
        return self._entries[0].n - 1 if self._entries else self._settled

    def _wait_s(self) -> float | None:
        """How long to wait for more events: 0 when a batch is full, its first event is old, or somebody flushes."""
        if not self._entries:
            return None
        bounds = self._bounds
        if self._drains or len(self._entries) >= bounds.batch_events or self._bytes >= self._batch_bytes:
            return 0.0
        return max(0.0, self._entries[0].arrived + bounds.linger_s - self._clock.monotonic())

    def _cut(self) -> BatchNumber:
        size, last = 0, 0
        for entry in islice(self._entries, self._bounds.batch_events):
            size += len(entry.line) + 1
            if last and size > self._batch_bytes:
                break
            last = entry.n
        return BatchNumber(self._epoch, self._sequence, self._entries[0].n, last)

    def _filled(self, number: BatchNumber) -> NumberedBatch:
        promised = [words for n, words in self._promises if n <= number.last]
        lines = [entry.line for entry in self._within(number)]
        return NumberedBatch(number, lines, promised[-1] if promised else None)

    def _within(self, number: BatchNumber) -> Iterator[_Entry]:
        return takewhile(lambda entry: entry.n <= number.last, self._entries)

    def _state(self, batch: BatchNumber | None) -> QueueState:
        return QueueState(self._settled, batch, self._epoch)


def _future() -> Future[None]:
    """One that nobody can cancel: others may wait for it too."""
    future: Future[None] = Future()
    future.set_running_or_notify_cancel()
    return future


def _finish(future: Future[None], failure: Exception | None) -> None:
    if failure is None:
        future.set_result(None)
    else:
        future.set_exception(failure)
