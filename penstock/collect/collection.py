"""Puts the stage together for the edge process: streams, door, acks and pulls over one log writer.

collect = Collect(application, log, group, views.wait_absorbed, Limits(), SystemClock(), observer.emit)
await collect.start()
collect.add_routes(web_app)
...
await collect.close()
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from random import Random

from aiohttp import web

from penstock.clock import Clock
from penstock.collect.acks import Acks
from penstock.collect.admit import Judge
from penstock.collect.counted import Group
from penstock.collect.counts import Counts
from penstock.collect.dead_letters import DeadLedger
from penstock.collect.door import Door, WaitAbsorbed
from penstock.collect.idempotency import Idempotency
from penstock.collect.intake import Intake
from penstock.collect.pixel import Pixel
from penstock.collect.pull import Sleep
from penstock.collect.pulls import Pulls
from penstock.collect.receipts import Receipts
from penstock.collect.reception import Reception
from penstock.collect.signals import Signals
from penstock.collect.stream_specs import make_dead, make_stream
from penstock.collect.unanswered import Unanswered
from penstock.collect.view_reply import MayRead, Rows, ViewReplies, by_credential
from penstock.config import Limits
from penstock.declaration import Application, StreamDef
from penstock.log.log import Log
from penstock.rights.signatures import Signatures


def _receipt_id() -> str:
    return secrets.token_hex(8)


class Collect:
    """Stage 1 in one process. Made before the loop runs; its streams exist from then on."""

    def __init__(
        self,
        application: Application,
        log: Log,
        group: Group,
        wait_absorbed: WaitAbsorbed,
        limits: Limits,
        clock: Clock,
        signals: Signals,
        *,
        random: Random | None = None,
        sleep: Sleep = asyncio.sleep,
        new_id: Callable[[], str] = _receipt_id,
        rows: Rows | None = None,
        may_read: MayRead = by_credential,
        signatures: Signatures | None = None,
    ) -> None:
        """Raises `SchemaChangeError` when a stream's class no longer fits its stored events. `rows` and `may_read` are
        for senders that ask for a view's row."""
        self.counts = Counts(log.memory())
        dead = DeadLedger(make_dead(log, group), group, self.counts, clock)
        self.intakes = {s.name: self._intake(s, log, group, dead, limits, signals) for s in application.streams}
        receipts = Receipts(log.memory(), clock)
        reception = Reception(dead, clock, signals)
        self._unanswered = Unanswered(reception, receipts, signals, new_id)
        self.signatures = signatures or Signatures(application, clock, signals)
        self._door = Door(
            application,
            self.intakes,
            reception,
            self._unanswered,
            Idempotency(log.memory(), clock),
            ViewReplies(rows, may_read),
            log.memory(),
            wait_absorbed,
            limits,
            signals,
            self.signatures,
        )
        self._pixel = Pixel(self._door, clock)
        self._acks = Acks(self.intakes, receipts, wait_absorbed, limits, clock, signals)
        self.pulls = Pulls(
            application, self.intakes, log, group, f"edge-{new_id()}", limits, clock, signals, random or Random(), sleep
        )

    def _intake(
        self, declared: StreamDef, log: Log, group: Group, dead: DeadLedger, limits: Limits, signals: Signals
    ) -> Intake:
        stream = make_stream(log, group, declared)
        end = stream.position(log.bounds(stream).ends)
        return Intake(Judge(declared, limits), stream, end, group, dead, self.counts, signals)

    def add_routes(self, app: web.Application) -> None:
        """The runner of this app is best made with `auto_decompress=False`: the door unpacks bodies itself, bounded."""
        app.router.add_post("/streams/{stream}", self._door.post)
        app.router.add_get("/streams/{stream}/pixel.gif", self._pixel.get, allow_head=False)
        app.router.add_get("/acks/{token}", self._acks.get)

    async def start(self) -> None:
        """Begin to pull."""
        self.pulls.start()

    async def close(self) -> None:
        """Stop pulling and write what came with ack=none. The server has stopped taking requests before."""
        await self.pulls.close()
        await self._unanswered.drain()
        for intake in self.intakes.values():
            await intake.drain()
