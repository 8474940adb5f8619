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

from penstock.collect.intake import Intake, Outcome
from penstock.collect.judging.json_events import SLICE_BYTES
from penstock.collect.limits.pressure import Pressure
from penstock.collect.reception import Reception
from penstock.collect.sender import Sender, sender_of
from penstock.collect.ways.door_replies import (
    ACK,
    APPLIED_PREFERENCE,
    error_reply,
    json_reply,
    outcome_reply,
    replayed_reply,
)
from penstock.collect.ways.idempotency import Idempotency, Once, body_digest
from penstock.collect.ways.kept_replies import KeptReply
from penstock.collect.ways.request_body import RequestBody, SlowBodies
from penstock.collect.ways.request_options import PostOptions, post_options
from penstock.collect.ways.view_reply import ViewReplies
from penstock.collect.ways.without_ack import Unanswered
from penstock.config import Limits
from penstock.declaration import LEDGERS, Application
from penstock.errors import (
    BadBodyError,
    ConditionError,
    LogUnavailableError,
    OutcomeUnknownError,
    PenstockError,
    ReadOnlyStreamError,
    StaleTermError,
    UnknownStreamError,
)
from penstock.log.control import producer_key
from penstock.log.log import Producer, Stream
from penstock.observe.signals import CollectFailed, RequestRefused, Signals
from penstock.position import Position
from penstock.rights.credential import NOBODY, credential_of, heard_by, leave
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
        idempotency: Idempotency,
        replies: ViewReplies,
        memory: Mapping[str, Any],
        wait_absorbed: WaitAbsorbed,
        limits: Limits,
        signals: Signals,
        pressure: Pressure,
        slow: SlowBodies | None = None,
        signatures: Signatures | None = None,
    ) -> None:
        self._application, self._intakes, self._reception = application, intakes, reception
        self._unanswered, self._idempotency, self._replies = unanswered, idempotency, replies
        self._memory, self._wait_absorbed = memory, wait_absorbed
        self._limits, self._signals, self._signatures = limits, signals, signatures
        self._pressure, self._slow = pressure, slow
        self.replicates = False
        """Whether what the log acknowledges is on two machines."""

    async def post(self, request: web.Request) -> web.StreamResponse:
        """One request; never raises but for a lost connection."""
        name = request.match_info["stream"]
        try:
            return await self._post(request, name)
        except ConnectionError:
            raise
        except Exception as error:
            reply = error_reply(self.explained(heard_by(credential_of(request), error), request.path, name))
        if not request.content.is_eof():
            reply.force_close()  # the rest of the body is not read, so nothing more can come on this connection
        return reply

    def explained(self, error: Exception, path: str, stream: str) -> PenstockError:
        """What the sender is told, after it was counted."""
        if isinstance(error, StaleTermError):
            error = LogUnavailableError("another process writes this log now", detail=error.message)
        if not isinstance(error, PenstockError):
            self._signals(CollectFailed(path, error))
            return PenstockError("the server met an error of its own", hint="see the server's log")
        if not isinstance(error, BadBodyError):  # its bytes are in `dead`: it was received
            self._signals(RequestRefused(stream if stream in self._intakes else "", error.code))
        return error

    def intake(self, name: str) -> Intake:
        """The way into the stream of that name. Raises `UnknownStreamError` and `ReadOnlyStreamError`."""
        return self._intakes.get(name) or self._refuse(name)

    async def _post(self, request: web.Request, name: str) -> web.StreamResponse:
        intake = self.intake(name)
        options = post_options(request, self._limits.wait_s, replicates=self.replicates)
        account = sender_of(request, "post").account
        self._pressure.guards[name].check(account)
        body = RequestBody(request, self._limits, self._pressure.room, account, self._slow)
        if options.level == "none":
            return await self._let_go(intake, body, options)
        try:
            raw, sender = await self._read(intake, body, options)
            if options.reply is not None:
                self._replies.check(request, options.reply, intake)
            await self._unanswered.turn(intake, sender)
            if options.once is not None:
                return await self._once(intake, body, raw, sender, options, options.once)
            return await self._take(intake, body, raw, sender, options)
        finally:
            body.close()

    async def _read(self, intake: Intake, body: RequestBody, options: PostOptions) -> tuple[bytes, Sender]:
        """The body and its sender, who is known only now if the body is signed."""
        await body.receive()
        sender = await self._sender(intake, body, options)
        try:
            return await body.unpacked(), sender
        except BadBodyError as error:
            await self._reception.bury(intake, error, body.packed, sender)
            raise

    async def _sender(self, intake: Intake, body: RequestBody, options: PostOptions) -> Sender:
        """Raises `SignatureError` when only a signature could tell, and does not."""
        request, stream = body.request, intake.stream.name
        if self._signatures and stream in self._signatures and credential_of(request, NOBODY) == NOBODY:
            signed = (stream, request.headers, body.packed)
            inline = len(body.packed) < SLICE_BYTES
            check = self._signatures.check
            leave(request, check(*signed) if inline else await asyncio.to_thread(check, *signed))
        return sender_of(request, "beacon" if body.form == "text" else "post", options.sent_us, options.promise)

    async def _take(
        self,
        intake: Intake,
        body: RequestBody,
        raw: bytes,
        sender: Sender,
        options: PostOptions,
        once: Once | None = None,
    ) -> web.StreamResponse:
        note = None if once is None else once.note
        if options.reply is None:
            producer, share = options.producer, body.share
            outcome = await self._reception.take(intake, raw, body.form, sender, producer, note, share=share)
            return outcome_reply(outcome, await self._reached(outcome, options), self._expected(intake.stream, options))
        judged = await self._reception.judged(intake, raw, body.form, sender)
        self._replies.check_one(judged.decoded)
        outcome = await self._reception.take_judged(intake, judged, raw, sender, options.producer, note)
        expected = self._expected(intake.stream, options)
        if not outcome.accepted and not outcome.duplicates:
            return outcome_reply(outcome, _logged(options), expected)
        more = await self._replies.body(
            credential_of(body.request), options.reply, intake, judged.decoded, outcome.position, options.wait_s
        )
        return outcome_reply(outcome, _logged(options), expected, more, late=more is None)

    # Once by its key

    async def _once(
        self, intake: Intake, body: RequestBody, raw: bytes, sender: Sender, options: PostOptions, key: str
    ) -> web.StreamResponse:
        inline = len(raw) <= SLICE_BYTES
        digest = body_digest(body.form, raw) if inline else await asyncio.to_thread(body_digest, body.form, raw)
        begun = self._idempotency.begin(intake.stream.name, sender, key, digest)
        if isinstance(begun, KeptReply):
            await intake.repeated(begun.received, sender)
            return await self._replayed(intake, body, raw, sender, options, begun)
        try:
            return await self._take(intake, body, raw, sender, options, begun)
        except ConditionError:  # an attempt whose outcome was unknown has been written meanwhile
            self._idempotency.end(begun)
            return await self._once(intake, body, raw, sender, options, key)
        except OutcomeUnknownError:
            self._idempotency.doubt(begun)
            raise
        finally:
            self._idempotency.end(begun)

    async def _replayed(
        self, intake: Intake, body: RequestBody, raw: bytes, sender: Sender, options: PostOptions, kept: KeptReply
    ) -> web.StreamResponse:
        """The reply of before; what it waited for in the views is looked up again."""
        position = kept.position
        if options.reply is None or kept.rejected:
            applied = options.level == "applied" and await self._applied(position, options.wait_s)
            return replayed_reply(kept, "applied" if applied else _logged(options))
        judged = await self._reception.judged(intake, raw, body.form, sender)
        self._replies.check_one(judged.decoded)
        more = await self._replies.body(
            credential_of(body.request), options.reply, intake, judged.decoded, position, options.wait_s
        )
        return replayed_reply(kept, _logged(options), more, late=more is None)

    # Without waiting

    async def _let_go(self, intake: Intake, body: RequestBody, options: PostOptions) -> web.StreamResponse:
        """ack=none: only the reading of the body is waited for."""
        self._unanswered.check_room()
        try:
            raw, sender = await self._read(intake, body, options)
        except BaseException:
            body.close()
            raise
        token = self._unanswered.take(intake, body, raw, sender).token()
        headers = {ACK: token} | (APPLIED_PREFERENCE if options.preferred else {})
        return json_reply(202, {"ack": token, "level": "pending"}, headers)

    # What the reply says

    async def _reached(self, outcome: Outcome, options: PostOptions) -> str:
        waits = options.level == "applied" and not outcome.repeated
        return "applied" if waits and await self._applied(outcome.position, options.wait_s) else _logged(options)

    async def _applied(self, position: Position, patience_s: float) -> bool:
        views = await self._wait_absorbed(position, patience_s)
        return all(view["applied"] for view in views.values())

    def _expected(self, stream: Stream, options: PostOptions) -> int | None:
        """The number that the log expects next from this producer."""
        producer: Producer | None = options.producer
        if producer is None:
            return None
        mark = self._memory.get(producer_key(stream, producer))
        return int(mark[1]) + 1 if mark else producer.sequence + 1

    def _refuse(self, name: str) -> Intake:
        names = ", ".join(self._intakes) or "none; declare one with app.stream(...)"
        if self._application.flow(name) or name in LEDGERS:
            what = "a ledger" if name in LEDGERS else "made by a flow"
            raise ReadOnlyStreamError(f"the stream '{name}' is {what}", hint=f"post to one of: {names}")
        raise UnknownStreamError(f"no stream is called '{name[:80]}'", hint=f"the streams are: {names}")


def _logged(options: PostOptions) -> str:
    """The level of what is in the log, as it was asked for."""
    return "replicated" if options.level == "replicated" else "logged"
