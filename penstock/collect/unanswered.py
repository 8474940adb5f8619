"""Takes events whose sender does not wait (`ack=none`): a receipt at once, judgement and writing behind it.

The receipt comes when the body is in memory. What follows is bounded (bytes by the door's room, requests by a
number), keeps the order of arrival, and is written out when the process stops in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from penstock.collect.intake import Intake, Outcome
from penstock.collect.receipts import Receipt, Receipts
from penstock.collect.reception import Reception
from penstock.collect.request_body import Body
from penstock.collect.sender import Sender
from penstock.collect.signals import ReceiptLost, Signals
from penstock.errors import BadBodyError, LaggingError, OverloadedError, PenstockError, TooManyError
from penstock.position import Position

MOST_WAITING = 10_000
"""Requests that wait to be judged; each is a task of about 10 kB."""
WAITS_S = (1.0, 2.0, 4.0, 8.0, 15.0)
"""What a request waits at most before it tries again where there is too much; 30 s together, then it is lost."""


class Unanswered:
    """The requests that were let go with a receipt."""

    def __init__(self, reception: Reception, receipts: Receipts, signals: Signals, new_id: Callable[[], str]) -> None:
        self._reception, self._receipts, self._signals, self._new_id = reception, receipts, signals, new_id
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending = False

    def check_room(self) -> None:
        """Raises `OverloadedError` when no more may wait."""
        if len(self._tasks) >= MOST_WAITING:
            raise OverloadedError(
                "as many requests with ack=none wait as may",
                detail=f"{len(self._tasks)} requests",
                hint="send the same request again after the time in Retry-After, or use ack=logged",
            )

    def take(self, intake: Intake, body: Body, raw: bytes, sender: Sender) -> Position:
        """Returns the receipt."""
        id = self._new_id()
        self._receipts.open(id)
        task = asyncio.get_running_loop().create_task(self._write(id, intake, body, raw, sender))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return Position("receipt", intake.stream.name, id, ())

    async def drain(self) -> None:
        """Return when all of it is written."""
        self._ending = True
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    async def _write(self, id: str, intake: Intake, body: Body, raw: bytes, sender: Sender) -> None:
        settle = _Settle(id, intake, self._receipts)
        try:
            outcome = await self._take(intake, body, raw, sender, settle)
            settle.taken_without_commit(outcome)
        except BadBodyError:
            settle.done()
        except Exception as error:
            known = error if isinstance(error, PenstockError) else PenstockError(repr(error))
            self._receipts.lose(id, known.body())
            self._signals(ReceiptLost(intake.stream.name, sender.way, repr(error)))
        else:
            settle.done()
        finally:
            body.close()

    async def _take(self, intake: Intake, body: Body, raw: bytes, sender: Sender, settle: _Settle) -> Outcome:
        """Its sender cannot be told to come again, so that whoever must wait waits here, for a while."""
        for patience_s in (*WAITS_S, None):
            try:
                return await self._reception.take(
                    intake, raw, body.form, sender, None, settle.taken, settle.unread, body.share
                )
            except (TooManyError, LaggingError, OverloadedError) as error:
                if patience_s is None or self._ending:
                    raise
                await asyncio.sleep(min(patience_s, error.retry_after_s or patience_s))
        raise AssertionError


class _Settle:
    """Writes one receipt into the commit of its events, and makes it known once that is durable."""

    def __init__(self, id: str, intake: Intake, receipts: Receipts) -> None:
        self._id, self._intake, self._receipts = id, intake, receipts
        self._expired = receipts.expired()
        self._receipt: Receipt | None = None

    def taken(self, outcome: Outcome) -> Mapping[str, Any]:
        """In the writer's thread, inside the commit."""
        self._receipt = self._receipts.made(outcome)
        return self._receipts.keys(self._id, self._receipt, self._expired)

    def unread(self, error: BadBodyError) -> Mapping[str, Any]:
        """In the writer's thread, inside the commit that keeps a body that cannot be read."""
        self._receipt = self._receipts.made(Outcome(self._intake.end), error.body())
        return self._receipts.keys(self._id, self._receipt, self._expired)

    def taken_without_commit(self, outcome: Outcome) -> None:
        """A body without events needs no commit; this process alone remembers it."""
        if self._receipt is None:
            self._receipt, self._expired = self._receipts.made(outcome), []

    def done(self) -> None:
        if self._receipt is not None:
            self._receipts.settle(self._id, self._receipt, self._expired)
