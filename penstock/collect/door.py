"""Takes events in over HTTP: `POST /streams/{stream}`, the one way in that is always open.

1. A 200 means that the accepted events, and the dead letters of the rejected ones, are on the disk.
2. Whatever a sender sends, the answer is one of the contract's; no input is an error of the server.
3. What cannot be read at all is kept, raw, in `dead`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from aiohttp import web

from penstock.collect.cutting import SLICE_BYTES
from penstock.collect.door_replies import ACK, error_reply, json_reply, outcome_reply
from penstock.collect.intake import Intake, Outcome
from penstock.collect.pressure import Pressure
from penstock.collect.reception import Reception
from penstock.collect.request_body import Body
from penstock.collect.request_options import APPLIED_WAIT_S, ack_level, producer_of, wait_s
from penstock.collect.sender import Sender, sender_of
from penstock.collect.signals import CollectFailed, RequestRefused, Signals
from penstock.collect.slow_bodies import SlowBodies
from penstock.collect.unanswered import Unanswered
from penstock.config import Limits
from penstock.declaration import LEDGERS, Application
from penstock.errors import (
    BadBodyError,
    BadRequestError,
    LogUnavailableError,
    PenstockError,
    ReadOnlyStreamError,
    StaleTermError,
    UnknownStreamError,
)
from penstock.log.control import producer_key
from penstock.log.log import Producer, Stream
from penstock.position import Position
from penstock.rights.credential import CREDENTIAL, NOBODY
from penstock.rights.signatures import Signatures

WaitAbsorbed = Callable[[Position, float], Awaitable[Mapping[str, Mapping[str, Any]]]]
"""Waits until all views downstream of a position have absorbed it, or for so many seconds; by view, `applied` and
`position`."""


class Door:
    """The handler of `POST /streams/{stream}`; lives on the edge's loop."""

    def __init__(
        self,
        application: Application,
        intakes: Mapping[str, Intake],
        reception: Reception,
        unanswered: Unanswered,
        memory: Mapping[str, Any],
        wait_absorbed: WaitAbsorbed,
        limits: Limits,
        signals: Signals,
        pressure: Pressure,
        slow: SlowBodies | None = None,
        signatures: Signatures | None = None,
    ) -> None:
        self._application, self._intakes, self._reception = application, intakes, reception
        self._unanswered, self._memory, self._wait_absorbed = unanswered, memory, wait_absorbed
        self._limits, self._signals, self._signatures = limits, signals, signatures
        self._pressure, self._slow = pressure, slow

    async def post(self, request: web.Request) -> web.StreamResponse:
        """One request; never raises but for a lost connection."""
        name = request.match_info["stream"]
        try:
            return await self._post(request, name)
        except ConnectionError:
            raise
        except Exception as error:
            reply = error_reply(self._explained(error, request, name))
        if not request.content.is_eof():
            reply.force_close()  # the rest of the body is not read, so nothing more can come on this connection
        return reply

    def _explained(self, error: Exception, request: web.Request, stream: str) -> PenstockError:
        """What the sender is told, after it was counted."""
        if isinstance(error, StaleTermError):
            error = LogUnavailableError("another process writes this log now", detail=error.message)
        if not isinstance(error, PenstockError):
            self._signals(CollectFailed(request.path, repr(error)))
            return PenstockError("the server met an error of its own", hint="see the server's log")
        if not isinstance(error, BadBodyError):  # its bytes are in `dead`: it was received
            self._signals(RequestRefused(stream if stream in self._intakes else "", error.code))
        return error

    async def _post(self, request: web.Request, name: str) -> web.StreamResponse:
        intake = self.intake(name)
        level, producer = ack_level(request), producer_of(request)
        patience_s = wait_s(request, APPLIED_WAIT_S, self._limits.wait_s)
        account = sender_of(request, "post").account
        self._pressure.guards[name].check(account)
        body = Body(request, self._limits, self._pressure.room, account, self._slow)
        if level == "none":
            return await self._let_go(intake, body, request, producer)
        outcome = await self._take(intake, body, request, producer)
        reached = "logged"
        if level == "applied" and not outcome.repeated and await self._applied(outcome.position, patience_s):
            reached = "applied"
        return outcome_reply(outcome, reached, self._expected(intake.stream, producer))

    async def _take(self, intake: Intake, body: Body, request: web.Request, producer: Producer | None) -> Outcome:
        try:
            raw, sender = await self._read(intake, body, request)
            return await self._reception.take(intake, raw, body.form, sender, producer, share=body.share)
        finally:
            body.close()

    async def _read(self, intake: Intake, body: Body, request: web.Request) -> tuple[bytes, Sender]:
        """The body and who sent it, which of a signed one is known only now."""
        try:
            raw = await body.read()
        except BadBodyError as error:
            await self._reception.bury(intake, error, body.packed, await self._sender(request, intake, body))
            raise
        return raw, await self._sender(request, intake, body)

    async def _sender(self, request: web.Request, intake: Intake, body: Body) -> Sender:
        """Raises `SignatureError` when only a signature could tell, and does not."""
        stream = intake.stream.name
        if self._signatures and stream in self._signatures and request.get(CREDENTIAL, NOBODY) == NOBODY:
            signed = (stream, request.headers, body.packed)
            inline = len(body.packed) < SLICE_BYTES
            check = self._signatures.check
            request[CREDENTIAL] = check(*signed) if inline else await asyncio.to_thread(check, *signed)
        return sender_of(request, "post")

    async def _let_go(
        self, intake: Intake, body: Body, request: web.Request, producer: Producer | None
    ) -> web.StreamResponse:
        """ack=none: only the reading of the body is waited for."""
        if producer is not None:
            raise BadRequestError(
                "a producer's sequence needs an answer", detail="ack=none", hint="use ack=logged with Producer-Seq"
            )
        self._unanswered.check_room()
        try:
            raw, sender = await self._read(intake, body, request)
        except BaseException:
            body.close()
            raise
        token = self._unanswered.take(intake, body, raw, sender).token()
        return json_reply(202, {"ack": token, "level": "pending"}, {ACK: token})

    async def _applied(self, position: Position, patience_s: float) -> bool:
        views = await self._wait_absorbed(position, patience_s)
        return all(view["applied"] for view in views.values())

    def _expected(self, stream: Stream, producer: Producer | None) -> int | None:
        """The number that the log expects next from this producer."""
        if producer is None:
            return None
        mark = self._memory.get(producer_key(stream, producer))
        return int(mark[1]) + 1 if mark else producer.sequence + 1

    def intake(self, name: str) -> Intake:
        """The way into a stream. Raises `ReadOnlyStreamError` or `UnknownStreamError`."""
        return self._intakes.get(name) or self._refuse(name)

    def _refuse(self, name: str) -> Intake:
        names = ", ".join(self._intakes) or "none; declare one with app.stream(...)"
        if self._application.flow(name) or name in LEDGERS:
            what = "a ledger" if name in LEDGERS else "made by a flow"
            raise ReadOnlyStreamError(f"the stream '{name}' is {what}", hint=f"post to one of: {names}")
        raise UnknownStreamError(f"no stream is called '{name[:80]}'", hint=f"the streams are: {names}")
