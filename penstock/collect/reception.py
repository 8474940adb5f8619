"""Takes one body into a stream: judges it where it costs the others least, and keeps in `dead` what cannot be read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from penstock.clock import Clock
from penstock.collect.contents.arrow import decode_arrow
from penstock.collect.contents.cloudevents import decode_cloudevents
from penstock.collect.contents.csv import decode_csv, decode_csv_whole
from penstock.collect.intake import INLINE_EVENTS, Intake, Note, Outcome
from penstock.collect.judging.incoming_events import DecodedEvents
from penstock.collect.judging.json_events import SLICE_BYTES, Form, count
from penstock.collect.judging.judge import Judge
from penstock.collect.judging.rejection import Rejection
from penstock.collect.letters.dead_letters import DeadLedger, Letter
from penstock.collect.limits.room import RoomShare
from penstock.collect.limits.turns import Turns
from penstock.collect.sender import Sender
from penstock.errors import BadBodyError
from penstock.log.log import Producer
from penstock.observe.signals import EventsTaken, Signals

INLINE_BYTES = 8 * 1024
INLINE_MARKS = 256
"""Smaller bodies with fewer commas and line ends are judged on the loop even event by event: a thread would take longer
than the judgement. That takes 5 ms if all are bad; 8 KiB of the shortest possible events would take 100."""
INLINE_CSV_BYTES = 32 * 1024
"""Rows are typed many at a time, which takes 2 ms for so much. Threads that do it beside each other and the loop get in
each other's way: eight senders of 28 kB got a fifth less done. Where a row must be judged alone, it is in a thread."""

JUDGES = 2
"""Threads that judge in Python at one time: the loop has to take turns with each of them at the interpreter."""

LINE_BYTES, COMMA_BYTES = 64, 16
"""What a line and a comma of a body count for at least when accounts take turns."""

BadNote = Callable[[BadBodyError], Mapping[str, Any]]
"""Gives the keys that are set in the commit that keeps an unreadable body."""


class Judged(NamedTuple):
    """The events of a body, and when it came."""

    decoded: DecodedEvents
    received_us: int


class Reception:
    """Shared by all streams; lives on the edge's loop."""

    def __init__(self, dead: DeadLedger, clock: Clock, signals: Signals, turns: Turns) -> None:
        self._dead, self._clock, self._signals, self._turns = dead, clock, signals, turns
        self._judges = asyncio.Semaphore(JUDGES)

    async def take(
        self,
        intake: Intake,
        raw: bytes,
        form: Form,
        sender: Sender,
        producer: Producer | None = None,
        note: Note | None = None,
        bad_note: BadNote | None = None,
        share: RoomShare | None = None,
    ) -> Outcome:
        """Durable on return. Raises `BadBodyError` after the body is in `dead`, and what the log raises.

        Its events are held in `share`, which the caller gives back.
        """
        received_us = self._clock.now_us()
        weight = await self._turn(sender, raw)
        try:
            decoded = await self._decode(intake, raw, form)
            if share is not None:
                share.hold(decoded.received)
            return await intake.take(decoded, received_us, sender, producer, note)
        except BadBodyError as error:
            await self.bury(intake, error, raw, sender, bad_note)
            raise
        finally:
            self._turns.end(sender.account, weight)

    # In two halves, for those who want to look at the events before they are written

    async def judged(
        self, intake: Intake, raw: bytes, form: Form, sender: Sender, bad_note: BadNote | None = None
    ) -> Judged:
        """The events of a body, before anything is written. Raises `BadBodyError` after the body is in `dead`."""
        received_us = self._clock.now_us()
        weight = await self._turn(sender, raw)
        try:
            return Judged(await self._decode(intake, raw, form), received_us)
        except BadBodyError as error:
            await self.bury(intake, error, raw, sender, bad_note)
            raise
        finally:
            self._turns.end(sender.account, weight)

    async def take_judged(
        self,
        intake: Intake,
        judged: Judged,
        raw: bytes,
        sender: Sender,
        producer: Producer | None = None,
        note: Note | None = None,
        bad_note: BadNote | None = None,
        begun: Callable[[], None] | None = None,
        anyway: bool = False,
    ) -> Outcome:
        """Durable on return. Raises what `take` raises. `anyway`: as in `Intake.take`."""
        weight = await self._turn(sender, raw)
        try:
            return await intake.take(
                judged.decoded, judged.received_us, sender, producer, note, begun=begun, anyway=anyway
            )
        except BadBodyError as error:
            await self.bury(intake, error, raw, sender, bad_note)
            raise
        finally:
            self._turns.end(sender.account, weight)

    async def _turn(self, sender: Sender, raw: bytes) -> int:
        """Wait for the account's turn, which must be ended; gives what it counts for."""
        weight = _weight(raw)
        if not self._turns.begin(sender.account, weight):
            await self._turns.wait(sender.account, weight)
        return weight

    async def bury(
        self, intake: Intake, error: BadBodyError, raw: bytes, sender: Sender, bad_note: BadNote | None = None
    ) -> None:
        """Keep a body that cannot be read; it counts as one event."""
        stream = intake.stream.name
        letter = Letter(stream, Rejection(0, "bad_body", error.detail or error.message, raw), sender)
        await self._dead.keep([letter], None if bad_note is None else bad_note(error))
        self._signals(EventsTaken(stream, sender.way, 0, 0, 1))

    async def _decode(self, intake: Intake, raw: bytes, form: Form) -> DecodedEvents:
        judge = intake.judge
        if form in ("json", "lines", "text"):
            decoded = judge.decode(raw, form) if len(raw) <= SLICE_BYTES else None
            if decoded is not None:
                return decoded
        elif form == "csv" and len(raw) <= INLINE_CSV_BYTES and _lines(raw) <= INLINE_EVENTS:
            decoded = decode_csv_whole(judge, raw)
            if decoded is not None:
                return decoded
        if len(raw) <= INLINE_BYTES and count(raw, b",") + _lines(raw) <= INLINE_MARKS:
            return decoded_as(judge, raw, form)
        if form == "arrow":
            return await asyncio.to_thread(decoded_as, judge, raw, form)
        async with self._judges:
            return await asyncio.to_thread(decoded_as, judge, raw, form)


def _lines(raw: bytes) -> int:
    """How many it has at most, whichever of their ends it uses."""
    return count(raw, b"\n") + count(raw, b"\r")


def _weight(raw: bytes) -> int:
    """Bytes, or what as many events cost: those of two bytes each cost as much as others."""
    return max(len(raw), LINE_BYTES * _lines(raw), COMMA_BYTES * count(raw, b","))


def decoded_as(judge: Judge, body: bytes, form: Form) -> DecodedEvents:
    """Each event judged alone where it must be. Raises `BadBodyError` and `TooLargeError` for the body as a whole."""
    if form == "csv":
        return decode_csv(judge, body)
    if form == "arrow":
        return decode_arrow(judge, body)
    if form in ("cloudevent", "cloudevents"):
        return decode_cloudevents(judge, body)
    return judge.decode_apart(body, form)
