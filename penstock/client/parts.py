"""Puts a producer together from its options, and takes it apart in order: what both of its faces share."""

from __future__ import annotations

import atexit
import os
import ssl
from concurrent.futures import Future
from contextlib import suppress
from os import PathLike
from pathlib import Path
from random import Random
from typing import Literal, TypedDict

from penstock.client.connection import Connection
from penstock.client.dispatch import Dispatcher, Key, Rejected
from penstock.client.handle import Handle
from penstock.client.journal import Disk, Journal, in_memory
from penstock.client.outbox import Bounds, Outbox, Status
from penstock.client.storer import Storer
from penstock.clock import Clock, SystemClock
from penstock.errors import PenstockError, ProducerClosedError, QueueFullError, UnsentError

EXIT_S = 5.0
"""How long the end of a program waits for a producer that was not closed."""
_STOP_S = 2.0


class Options(TypedDict, total=False):
    """The options of both faces; docs/reference/producer.md says what each means."""

    key: Key
    folder: str | PathLike[str] | None
    disk: Disk
    queue_events: int
    queue_bytes: int
    full: Literal["wait", "error"]
    batch_events: int
    batch_bytes: int
    linger_ms: float
    compress: bool
    timeout_s: float
    backoff_most_s: float
    on_rejected: Rejected | None
    tls: ssl.SSLContext | None
    clock: Clock
    random: Random


class Parts:
    """What a producer is made of."""

    def __init__(
        self,
        url: str,
        stream: str,
        *,
        key: Key = None,
        folder: str | PathLike[str] | None = None,
        disk: Disk = "full",
        queue_events: int = 100_000,
        queue_bytes: int = 64 * 1024**2,
        full: Literal["wait", "error"] = "wait",
        batch_events: int = 500,
        batch_bytes: int = 1_000_000,
        linger_ms: float = 5,
        compress: bool = True,
        timeout_s: float = 30.0,
        backoff_most_s: float = 30.0,
        on_rejected: Rejected | None = None,
        tls: ssl.SSLContext | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
    ) -> None:
        self.clock = clock or SystemClock()
        self.waits = full == "wait"
        self._pid = os.getpid()
        self._closed = False
        connection = Connection(url, stream, timeout_s, tls)
        now_us = self.clock.now_us()
        journal = None if folder is None else Journal(Path(folder), stream, disk, now_us)
        self._storer = None if journal is None else Storer(journal)
        found = in_memory(now_us) if journal is None else journal.found
        bounds = Bounds(queue_events, queue_bytes, batch_events, batch_bytes, linger_ms / 1000)
        self.outbox = Outbox(found, bounds, self._storer, self.clock)
        self._dispatcher = Dispatcher(
            self.outbox,
            connection,
            found.producer,
            key=key,
            compress=compress,
            backoff_most_s=backoff_most_s,
            on_rejected=on_rejected,
            clock=self.clock,
            random=random or Random(),
        )
        self._dispatcher.start()
        atexit.register(self._at_exit)

    @property
    def ours(self) -> bool:
        """Whether this is the process that made it: a fork has neither the threads nor the folder."""
        return os.getpid() == self._pid

    def put(self, line: bytes) -> tuple[Handle, Future[None]] | None:
        """None when the queue is full and the caller is to wait for room."""
        if not self.ours:
            raise ProducerClosedError(
                "this producer belongs to the process that this one was forked from",
                hint="make a producer in each process, each with a folder of its own",
            )
        taken = self.outbox.put(line)
        if taken is None and not self.waits:
            raise self.queue_full()
        return taken

    def queue_full(self) -> QueueFullError:
        events, size = self.outbox.unsent()
        return QueueFullError(
            "the producer's queue is full",
            detail=f"{events} events, {size} bytes; {self._dispatcher.doing}",
            hint="send again later, or raise queue_events or queue_bytes",
        )

    def status(self) -> Status:
        events, size = self.outbox.unsent()
        doing, error = self._dispatcher.doing, self._dispatcher.error
        return Status("closed" if self._closed and doing != "fenced" else doing, events, size, error)

    def unsent(self) -> UnsentError:
        events, _ = self.outbox.unsent()
        error = self._dispatcher.error
        return UnsentError(
            f"{events} events were not answered in time",
            detail=error.message if error else None,
            hint="they are in the folder and are sent when a producer opens it again"
            if self._storer
            else "they are lost when this process ends; give the producer a folder to keep them",
        )

    def flush(self, timeout_s: float | None) -> None:
        try:
            self.outbox.drained().result(timeout_s)
        except TimeoutError:
            raise self.unsent() from None

    def close(self) -> None:
        """Stop, keep what is unsent if there is a folder, and say what is lost if there is none."""
        if self._closed or not self.ours:
            return
        self._closed = True
        atexit.unregister(self._at_exit)
        left = self.unsent() if self.outbox.unsent()[0] else None
        ended: PenstockError = left or ProducerClosedError("this producer is closed", hint="make a new one")
        self.outbox.end(ended)
        self._dispatcher.stop(_STOP_S)
        if self._storer is not None:
            self._storer.close()
        elif left is not None:
            raise left

    def _at_exit(self) -> None:
        if self.ours:
            with suppress(PenstockError):  # what is left is told by `close`
                self.flush(EXIT_S)
            self.close()
