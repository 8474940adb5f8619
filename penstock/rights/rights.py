"""Answers, for collect and serve alike, who somebody is by what they show, and tells when that ends.

1. Without any key, and without JWT options, everybody may do everything; such a server listens on loopback alone.
   From the first key on, nothing is done for anybody without a credential, also after the last key was revoked.
2. A change of keys is in the log before it holds, and holds within a second of the command that asks for it.
3. `watch` ends when a key is revoked or a credential's time is up, so that nothing goes on under rights that are gone.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.clock import Clock, SystemClock
from penstock.errors import PenstockError, UnauthorizedError
from penstock.log import control_keys
from penstock.log.control import Changes, ControlMap
from penstock.observe.signals import AccessRefused, InstructionRefused, KeyCreated, KeyRevoked, Signals
from penstock.overload import Rate
from penstock.rights.allowances import Allowances
from penstock.rights.credential import ANONYMOUS, Credential, TokenFault
from penstock.rights.inbox import Inbox, Instruction
from penstock.rights.keys import PREFIX, START, KeyBook, KeyRecord, stored
from penstock.rights.scope import Scope
from penstock.rights.tickets import TicketFault, Tickets

if TYPE_CHECKING:  # its libraries of cryptography are for servers that take tokens
    from penstock.rights.tokens import Tokens

POLL_S = 0.2
"""How often the inbox and the ends of credentials are looked at."""
FEW = 1_000
"""Ends of credentials that may be held without looking whether anybody still waits for them."""
SUPERVISOR = Credential("supervisor", "supervisor", (Scope("read", "*"),))
"""The process that started this one; it asks how the flows are."""

_SAID = {"unknown": "no such key", "revoked": "the key was revoked", "expired": "the key has expired"}

Remember = Callable[[Mapping[str, Any]], Awaitable[Any]]
Ended = asyncio.Future[PenstockError]


class Rights:
    """All that one edge knows of credentials; lives on its loop."""

    def __init__(
        self,
        memory: ControlMap | None = None,
        *,
        tokens: Tokens | None = None,
        inbox: Inbox | None = None,
        remember: Remember | None = None,
        supervisor: str | None = None,
        clock: Clock | None = None,
        signals: Signals = lambda signal: None,
        rate: Rate | None = None,
        connections: int | None = None,
    ) -> None:
        """`memory` is the log's, `remember` writes to it; without them this process alone knows what it is told.
        `supervisor` is the secret that the parent process shares.

        `rate` and `connections` are what each credential may ask and hold open that has no limits of its own.
        """
        self._memory = ControlMap() if memory is None else memory
        self._book = KeyBook(self._memory)
        self._tokens, self._inbox, self._remember = tokens, inbox, remember
        self._supervisor = supervisor
        self._clock, self._signals = clock or SystemClock(), signals
        self.tickets = Tickets(self._memory, self._clock, remember)
        self.allowances = Allowances(rate, connections, self._clock, signals)
        self._watched: dict[str, set[Ended]] = {}
        self._ends: list[tuple[int, int, Credential, Ended]] = []
        self._numbers = count()
        self._many = FEW
        self._task: asyncio.Task[None] | None = None
        self._was_open = self.is_open
        self.on_first_key: Callable[[], Awaitable[None]] | None = None
        """Awaited when the server stops being open: what lets anybody in must go. It never becomes open again."""

    @property
    def is_open(self) -> bool:
        """Whether everybody may do everything."""
        return self._tokens is None and not len(self._book)

    # Who is this

    def bearer(self, secret: str) -> Credential:
        """Whose key or token this is; raises `UnauthorizedError`, which never quotes it."""
        finding = self.find(secret)
        if isinstance(finding, Credential):
            return finding
        raise self._refused(*finding)

    def find(self, secret: str) -> Credential | tuple[str, str]:
        """Whose key or token this is, or why it is nobody's; nothing is counted."""
        if not secret.isascii():
            return "unknown", "it is neither a key nor a token"
        if self._supervisor and hmac.compare_digest(secret.encode(), self._supervisor.encode()):
            return SUPERVISOR
        if secret.startswith(START):
            finding = self._book.find(secret, self._clock.now_us())
            return finding if isinstance(finding, Credential) else (finding, _SAID[finding])
        if self._tokens is None:
            return "unknown", "the credential is not a key of this server"
        try:
            return self._tokens.credential(secret)
        except TokenFault as fault:
            return fault.reason, fault.text

    def ticket(self, text: str) -> Credential:
        """Who asked for this ticket, with the right to read the one thing that it opens; raises `UnauthorizedError`."""
        try:
            paper = self.tickets.read(text)
        except TicketFault as fault:
            raise self._refused("ticket", str(fault)) from None
        credential = paper.credential()
        if credential.is_anonymous and not self.is_open:
            raise self._refused("ticket", "the ticket is of a time when this server had no key")
        if (why := self._over(credential)) is not None:
            raise self._refused("ticket", why.detail or "")
        if credential.id.startswith(PREFIX):
            return self._with_limits(credential)
        return credential

    def _with_limits(self, credential: Credential) -> Credential:
        """A ticket does not say how much its key may ask: the book does, also of a key that it no longer knows."""
        record = self._book.get(credential.id.removeprefix(PREFIX))
        if record is None:
            raise self._refused("ticket", "the key behind the ticket is unknown")
        owner = record.credential()
        return replace(credential, rate=owner.rate, connections=owner.connections)

    def nobody(self) -> Credential:
        """Somebody without a credential; raises `UnauthorizedError` unless the server is open."""
        if self.is_open:
            return ANONYMOUS
        raise self._refused("missing", "the request has no credential")

    def still(self, credential: Credential) -> None:
        """Raises `UnauthorizedError` when the credential has ended since it was shown."""
        if (why := self._over(credential)) is not None:
            raise why

    def _refused(self, reason: str, detail: str) -> UnauthorizedError:
        self._signals(AccessRefused(reason))
        return _unauthorized(detail)

    # Until when

    def watch(self, credential: Credential) -> Ended:
        """A future that is done, with the error to tell, when the credential was revoked or its time is up.

        Cancel it when nobody is interested any more. The error is its result, not its exception.
        """
        ended: Ended = asyncio.get_running_loop().create_future()
        if (why := self._over(credential)) is not None:
            ended.set_result(why)
            return ended
        if credential.id.startswith(PREFIX):
            self._watched.setdefault(credential.id, set()).add(ended)
            ended.add_done_callback(lambda _: self._unwatch(credential.id, ended))
        if credential.expires_us is not None:
            heappush(self._ends, (credential.expires_us, next(self._numbers), credential, ended))
            self._forget_left()
        return ended

    def _forget_left(self) -> None:
        """Let go of those who left long before their time, whenever twice as many are held as after the last look."""
        if len(self._ends) > self._many:
            self._ends = [entry for entry in self._ends if not entry[3].done()]
            heapify(self._ends)
            self._many = 2 * len(self._ends) + FEW

    def _unwatch(self, id: str, ended: Ended) -> None:
        waiting = self._watched.get(id, set())
        waiting.discard(ended)
        if not waiting:
            self._watched.pop(id, None)

    def _over(self, credential: Credential) -> UnauthorizedError | None:
        if credential.expires_us is not None and self._clock.now_us() >= credential.expires_us:
            return _unauthorized(f"the credential '{credential.name}' has expired")
        record = self._book.get(credential.id.removeprefix(PREFIX)) if credential.id.startswith(PREFIX) else None
        if record is not None and record.revoked_us is not None:
            return _unauthorized(f"the key '{credential.name}' was revoked")
        return None

    # Changes

    async def start(self) -> None:
        """Take what waits in the inbox, then look at it now and then; and follow what another edge writes."""
        self._memory.watch(control_keys.key, partial(self._heard, asyncio.get_running_loop()))
        await self.tick()
        if not self.is_open:
            await self.tickets.prepare()
        self._task = asyncio.create_task(self._keep_looking(), name="rights")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def tick(self) -> None:
        """Take instructions over and end what has ended."""
        for path, instruction in self._inbox.waiting() if self._inbox else ():
            assert self._inbox is not None
            if isinstance(instruction, Exception):
                self._inbox.refuse(path)
                self._signals(InstructionRefused(path.name, type(instruction).__name__))
            else:
                await self.obey(instruction)
                await asyncio.to_thread(self._inbox.taken, path)
        await self._note_first_key()
        while self._ends and (self._ends[0][0] <= self._clock.now_us() or self._ends[0][3].done()):
            _, _, credential, ended = heappop(self._ends)
            if not ended.done():
                ended.set_result(_unauthorized(f"the credential '{credential.name}' has expired"))

    async def obey(self, instruction: Instruction) -> None:
        """Durable on return. What was obeyed before changes nothing."""
        record = self._book.get(instruction.id)
        if instruction.do == "create":
            if record is None and instruction.key is not None:
                await self._put(instruction.key)
                self._signals(KeyCreated(instruction.key.id, instruction.key.name))
        elif record is not None and record.revoked_us is None:
            revoked = msgspec.structs.replace(record, revoked_us=instruction.at_us)
            await self._put(revoked)
            self._signals(KeyRevoked(revoked.id, revoked.name))
            self._end([revoked.id])

    def _heard(self, loop: asyncio.AbstractEventLoop, changed: Changes) -> None:
        """Whichever edge has written them."""
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(self._end, [control_keys.key.rest(key) for key in changed])

    def _end(self, ids: Sequence[str]) -> None:
        """Let everybody know who goes on under one of these keys that was revoked."""
        for record in filter(None, map(self._book.get, ids)):
            if record.revoked_us is not None:
                why = _unauthorized(f"the key '{record.name}' was revoked")
                for ended in [each for each in self._watched.get(PREFIX + record.id, ()) if not each.done()]:
                    ended.set_result(why)

    async def _put(self, record: KeyRecord) -> None:
        await self._remember(stored(record)) if self._remember else self._memory.apply(stored(record))
        await self._note_first_key()

    async def _note_first_key(self) -> None:
        """Also of one that was written though nobody knew whether it would be."""
        if self._was_open and not self.is_open:
            self._was_open = False
            await self.tickets.prepare()
            if self.on_first_key is not None:
                await self.on_first_key()

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(POLL_S)
            with suppress(PenstockError, OSError):  # a full disk: the instruction waits until there is room
                await self.tick()


def _unauthorized(detail: str) -> UnauthorizedError:
    return UnauthorizedError(
        "this needs a credential that is valid",
        detail=detail,
        hint="send Authorization: Bearer <key> (on the command line: PENSTOCK_KEY or --key); "
        "make a key with: penstock keys create APP --scope ...",
    )
