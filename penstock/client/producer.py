"""Sends events to one stream, each once: `Producer` for threads and `AsyncProducer` for asyncio."""

from __future__ import annotations

import asyncio
import atexit
import os
import ssl
import time
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from datetime import datetime
from os import PathLike
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Literal, TypedDict, Unpack

import msgspec

from penstock.client.batch import Handle
from penstock.client.dispatcher import Dispatcher, DoorConnection, Key, Rejected
from penstock.client.journal import Disk, Journal, Storer, fresh_start
from penstock.client.outbox import Outbox, QueueBounds, Status
from penstock.clock import Clock, SystemClock
from penstock.errors import (
    BadRequestError,
    PenstockError,
    ProducerClosedError,
    QueueFullError,
    TooLargeError,
    UnsentError,
)

Sendable = Mapping[str, Any] | msgspec.Struct | bytes
EVENT_BYTES = 1024**2
"""What a server takes as one event at most."""
_as_object = msgspec.json.Decoder(dict[str, msgspec.Raw])


def event_line(event: Sendable) -> bytes:
    """The event as JSON without a line break. Raises what is wrong with it, before anything is kept.

    >>> event_line({"order_id": 1})
    b'{"order_id":1}'
    """
    line = _checked(event) if isinstance(event, bytes) else _encoded(event)
    if len(line) > EVENT_BYTES:
        raise TooLargeError(f"an event of {len(line)} bytes", hint=f"an event has at most {EVENT_BYTES} bytes of JSON")
    return line


def _encoded(event: Mapping[str, Any] | msgspec.Struct) -> bytes:
    if not isinstance(event, Mapping | msgspec.Struct):
        raise _no_event(f"found {type(event).__name__}")
    try:
        return msgspec.json.encode(event if isinstance(event, msgspec.Struct) else dict(event))
    except (TypeError, ValueError, RecursionError) as error:
        raise _no_event(str(error)) from None


def _checked(raw: bytes) -> bytes:
    try:
        _as_object.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _no_event(str(error)) from None
    return raw if b"\n" not in raw and b"\r" not in raw else msgspec.json.encode(msgspec.json.decode(raw))


def _no_event(detail: str) -> BadRequestError:
    return BadRequestError(
        "this cannot be sent as an event", detail=detail, hint="send a dict, an event class or a JSON object as bytes"
    )


EXIT_S = 5.0
"""How long the end of a program waits for a producer that was not closed."""
_STOP_S = 2.0


class ProducerOptions(TypedDict, total=False):
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


class Workings:
    """What both faces of a producer share: it puts the parts together from the options, and takes them apart in
    order."""

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
        self._closed = self._promises = False
        connection = DoorConnection(url, stream, timeout_s, tls)
        now_us = self.clock.now_us()
        journal = None if folder is None else Journal(Path(folder), stream, disk, now_us)
        self._storer = None if journal is None else Storer(journal)
        start = fresh_start(now_us) if journal is None else journal.start
        bounds = QueueBounds(queue_events, queue_bytes, batch_events, batch_bytes, linger_ms / 1000)
        self.outbox = Outbox(start, bounds, self._storer, self.clock)
        self._dispatcher = Dispatcher(
            self.outbox,
            connection,
            start.producer,
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
        place = self.outbox.put(line)
        if place is None and not self.waits:
            raise self.queue_full()
        return place

    def complete(self, moment: datetime | int | None) -> None:
        """Promise with the next batch; None: there are no more."""
        if isinstance(moment, datetime) and moment.tzinfo is None:
            raise BadRequestError("a promise needs a time with a zone", hint="use datetime.now(UTC), or milliseconds")
        words = "end" if moment is None else moment.isoformat() if isinstance(moment, datetime) else str(int(moment))
        self._promises = self._promises or moment is not None
        if self.outbox.promise(words) is None:
            raise self.queue_full()

    def end(self) -> None:
        """One that has promised says that it is over."""
        if self._promises and not self._closed:
            with suppress(PenstockError):  # then it is over when it was silent for long enough
                self.complete(None)

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
        loss = self.unsent() if self.outbox.unsent()[0] else None
        self.outbox.end(loss or ProducerClosedError("this producer is closed", hint="make a new one"))
        self._dispatcher.stop(_STOP_S)
        if self._storer is not None:
            self._storer.close()
        elif loss is not None:
            raise loss

    def _at_exit(self) -> None:
        if self.ours:
            with suppress(PenstockError):  # what is left is told by `close`
                self.flush(EXIT_S)
            self.close()


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

    def __init__(self, url: str, stream: str, **options: Unpack[ProducerOptions]) -> None:
        self._workings = Workings(url, stream, **options)

    def send(self, event: Sendable, timeout_s: float | None = None) -> Handle:
        """Put an event into the queue; the handle says when the server has it.

        Waits for room in a full queue (for `timeout_s` at most), or raises `QueueFullError` with `full="error"`.
        Raises `BadRequestError` or `TooLargeError` if it cannot be an event, `DiskFullError` if the folder does not
        take it: then it is not in the queue.
        """
        line = event_line(event)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while (place := self._workings.put(line)) is None:
            try:
                self._workings.outbox.room(len(line)).result(_left_s(deadline))
            except TimeoutError:
                raise self._workings.queue_full() from None
        handle, stored = place
        stored.result()
        return handle

    def complete(self, moment: datetime | int) -> None:
        """Promise that nothing older than this (a time with a zone, or milliseconds since 1970) will be sent from now
        on. It goes with the batch behind all that was sent before, and counts in streams with `complete="producers"`:
        until `close`, nothing there closes that this producer may still change.

            orders.complete(datetime.now(UTC) - timedelta(seconds=10))
        """
        self._workings.complete(moment)

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until the server has answered for all that was sent before. Raises `UnsentError` when time is up."""
        self._workings.flush(timeout_s)

    def status(self) -> Status:
        """How it is: what waits, and why."""
        return self._workings.status()

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Flush, then end. What is then unsent stays in the folder; without one it is lost: raises `UnsentError`."""
        if self._workings.ours:
            self._workings.end()
            with suppress(PenstockError):  # what is left is told below
                self.flush(timeout_s)
            self._workings.close()

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

    def __init__(self, url: str, stream: str, **options: Unpack[ProducerOptions]) -> None:
        self._workings = Workings(url, stream, **options)

    async def send(self, event: Sendable, timeout_s: float | None = None) -> Handle:
        """As `Producer.send`."""
        line = event_line(event)
        try:
            async with asyncio.timeout(timeout_s):
                while (place := self._workings.put(line)) is None:
                    await asyncio.wrap_future(self._workings.outbox.room(len(line)))
        except TimeoutError:
            raise self._workings.queue_full() from None
        handle, stored = place
        await asyncio.wrap_future(stored)
        return handle

    def complete(self, moment: datetime | int) -> None:
        """As `Producer.complete`."""
        self._workings.complete(moment)

    async def flush(self, timeout_s: float | None = None) -> None:
        """As `Producer.flush`."""
        try:
            await asyncio.wait_for(asyncio.wrap_future(self._workings.outbox.drained()), timeout_s)
        except TimeoutError:
            raise self._workings.unsent() from None

    def status(self) -> Status:
        """As `Producer.status`."""
        return self._workings.status()

    async def close(self, timeout_s: float = CLOSE_S) -> None:
        """As `Producer.close`."""
        if self._workings.ours:
            self._workings.end()
            with suppress(PenstockError):  # what is left is told below
                await self.flush(timeout_s)
            await asyncio.to_thread(self._workings.close)

    async def __aenter__(self) -> AsyncProducer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _left_s(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())
