"""Takes events whose sender does not wait (`ack=none`): a receipt at once, judgement and writing behind it.

The receipt comes when the body is in memory. What follows is bounded (bytes by the door's room, requests by a
number) and is written out when the process stops in order. A sender's requests go on into the log in the order of their
arrival, though a large body is judged in a thread while a small one is not: each waits for the one before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from penstock.collect.intake import Intake, Note
from penstock.collect.reception import Judged, Reception
from penstock.collect.sender import Sender
from penstock.collect.ways.receipts import Receipts
from penstock.collect.ways.request_body import RequestBody
from penstock.errors import (
    BadBodyError,
    LaggingError,
    LogUnavailableError,
    OutcomeUnknownError,
    OverloadedError,
    PenstockError,
    TooManyError,
)
from penstock.observe.signals import ReceiptLost, Signals
from penstock.position import Position

MOST_WAITING = 10_000
"""Requests that wait to be judged; each is a task of about 10 kB."""
PATIENCE_S = 30.0
"""From its arrival, how long a request tries again where there is too much; then it is shed, and counted so."""
LONGEST_WAIT_S = 15.0
TURN_S = 5.0
"""How long a request that wants an answer waits behind them."""
_TOO_MUCH = (TooManyError, LaggingError, OverloadedError)

_Line = tuple[str, str]
"""A stream and an account: whose order is kept."""


class Unanswered:
    """The requests that were let go with a receipt."""

    def __init__(self, reception: Reception, receipts: Receipts, signals: Signals, new_id: Callable[[], str]) -> None:
        self._reception, self._receipts, self._signals, self._new_id = reception, receipts, signals, new_id
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending = asyncio.Event()
        self._last: dict[_Line, asyncio.Future[None]] = {}

    def holds_up(self, stream: str, account: str) -> bool:
        """Whether something that this sender has sent before is not on its way into the log."""
        return bool(self._last) and (stream, account) in self._last

    async def turn(self, intake: Intake, sender: Sender) -> None:
        """Return when what this sender has sent before is on its way into the log. Raises `OverloadedError` when that
        takes too long."""
        if self._last and (before := self._last.get((intake.stream.name, sender.account))) is not None:
            done, _ = await asyncio.wait([before], timeout=TURN_S)
            if not done:
                raise OverloadedError(
                    "requests that you sent before with ack=none still wait",
                    detail=f"longer than {TURN_S:g} s",
                    hint="send the same request again after the time in Retry-After",
                )

    def check_room(self) -> None:
        """Raises `OverloadedError` when no more may wait."""
        if len(self._tasks) >= MOST_WAITING:
            raise OverloadedError(
                "as many requests with ack=none wait as may",
                detail=f"{len(self._tasks)} requests",
                hint="send the same request again after the time in Retry-After, or use ack=logged",
            )

    def take(self, intake: Intake, body: RequestBody, raw: bytes, sender: Sender) -> Position:
        """Returns the receipt."""
        id = self._new_id()
        self._receipts.open(id)
        loop = asyncio.get_running_loop()
        line, gone_on = (intake.stream.name, sender.account), loop.create_future()
        before, self._last[line] = self._last.get(line), gone_on
        gone_on.add_done_callback(lambda _: self._left(line, gone_on))
        task = loop.create_task(self._write(id, intake, body, raw, sender, before, gone_on))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return Position("receipt", intake.stream.name, id, ())

    async def drain(self) -> None:
        """Return when all of it is written: also what waited, since later there is nobody to write it."""
        self._ending.set()
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    def _left(self, line: _Line, gone_on: asyncio.Future[None]) -> None:
        if self._last.get(line) is gone_on:
            del self._last[line]

    async def _write(
        self,
        id: str,
        intake: Intake,
        body: RequestBody,
        raw: bytes,
        sender: Sender,
        before: asyncio.Future[None] | None,
        gone_on: asyncio.Future[None],
    ) -> None:
        until_s, events = asyncio.get_running_loop().time() + PATIENCE_S, 1
        try:
            try:
                unread = partial(self._receipts.unread, id, intake.end)
                judged = await self._reception.judged(intake, raw, body.form, sender, unread)
                events = judged.decoded.received
                await _passed(before)
                await self._take(intake, body, judged, raw, sender, id, gone_on, until_s)
            finally:
                await _passed(before)  # also behind a body that cannot be read: it holds its place in the line
                _set(gone_on)
        except BadBodyError:
            self._receipts.close(id)
        except Exception as error:
            await self._lose(id, intake, sender, error, events)
        else:
            self._receipts.close(id)
        finally:
            body.close()

    async def _take(
        self,
        intake: Intake,
        body: RequestBody,
        judged: Judged,
        raw: bytes,
        sender: Sender,
        id: str,
        gone_on: asyncio.Future[None],
        until_s: float,
    ) -> None:
        """Its sender cannot be told to come again, so that whoever must wait waits here, for a while."""
        wait_s, loop = 1.0, asyncio.get_running_loop()
        note, unread = Note(partial(self._receipts.taken, id)), partial(self._receipts.unread, id, intake.end)
        while True:
            anyway = self._ending.is_set()
            try:
                if not body.share.events and not anyway:
                    body.share.hold(judged.decoded.received)
                await self._reception.take_judged(
                    intake, judged, raw, sender, None, note, unread, lambda: _set(gone_on), anyway
                )
                return
            except (*_TOO_MUCH, LogUnavailableError) as error:
                left_s = until_s - loop.time()
                if anyway or left_s <= 0:
                    raise
                await self._pause(min(wait_s, left_s, error.retry_after_s or wait_s))
            wait_s = min(LONGEST_WAIT_S, 2 * wait_s)

    async def _pause(self, wait_s: float) -> None:
        """Shorter when this edge stops."""
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._ending.wait()

    async def _lose(self, id: str, intake: Intake, sender: Sender, error: Exception, events: int) -> None:
        """What was too much is shed, and counted in the log; of the rest only this process can tell."""
        failure = error if isinstance(error, PenstockError) else PenstockError("the server met an error of its own")
        if isinstance(error, OutcomeUnknownError):  # its receipt is there if it is written after all
            events = 0
        if isinstance(error, _TOO_MUCH):
            with suppress(PenstockError):
                await intake.drop(events, sender)
                events = 0
        self._receipts.lose(id, failure.body())
        self._signals(ReceiptLost(intake.stream.name, sender.way, error, events))


async def _passed(before: asyncio.Future[None] | None) -> None:
    if before is not None and not before.done():
        await asyncio.wait([before])


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
