"""Remembers how far named subscriptions have come, so that a client without storage of its own can resume.

A name belongs to one credential and stands for one view or stream and one query. What is remembered is a key of the
log's control stream, `subscriber/<credential>/<name>`.

1. `acked` is said only of a position that is durable.
2. However often a client acknowledges, a name is written about once a second at most; a newer position replaces one
   that waits, and an older one is not taken.
3. A name that nobody has used for `Limits.subscriber_keep_s` is forgotten, and a credential has at most
   `Limits.subscriber_names` of them.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from penstock.clock import Clock, rfc3339
from penstock.config import Limits
from penstock.errors import BadRequestError, NameTakenError, PenstockError, TooManyError, UnknownNameError
from penstock.log import control_keys
from penstock.log.control import ControlMap
from penstock.observe.metrics import Observer
from penstock.observe.signals import AckRemembered, NamesForgotten
from penstock.position import Position
from penstock.protocol import encode
from penstock.rights.credential import Credential

WRITE_S = 1.0
"""At least so long from one write of a name to the next."""
SWEEP_S = 3_600.0
"""How often names that nobody uses are looked for."""
TOUCH_US = 86_400 * 1_000_000
"""A name that is used without an ack is noted as used once a day."""
_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")

Remember = Callable[[Mapping[str, Any]], Awaitable[Any]]


class Remembered(msgspec.Struct, frozen=True):
    """What the log holds of a name."""

    of: str
    """The view or stream and the query, as JSON: a name stands for these for as long as it is remembered."""
    position: str | None
    used_us: int


def nothing_is_remembered() -> PenstockError:
    return BadRequestError("this server remembers nothing", hint="keep the position yourself, and pass since")


class Subscribers:
    """All named subscriptions of an edge. Belongs to its loop."""

    def __init__(
        self,
        memory: ControlMap,
        remember: Remember | None,
        limits: Limits,
        clock: Clock,
        observer: Observer,
        refusal: Callable[[], PenstockError] = nothing_is_remembered,
    ) -> None:
        """`memory` is the log's, `remember` writes to it; without it nothing can be named, which `refusal` says."""
        self._memory, self._remember, self._refusal = memory, remember, refusal
        self._limits, self._clock, self._observer = limits, clock, observer
        self._sweeping: asyncio.Task[None] | None = None

    async def open(self, credential: Credential, name: Any, of: Mapping[str, Any]) -> Named:
        """The subscription of this name, which is now in use.

        Raises `NameTakenError` when the name stands for another view, stream or query.
        """
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise BadRequestError("a name has up to 100 letters, digits, dots and dashes", hint='{"name": "phone-7"}')
        if self._remember is None:
            raise self._refusal()
        key, told = control_keys.subscriber(credential.id, name), encode(dict(of)).decode()
        known = self._get(key)
        if known is not None and known.of != told:
            raise NameTakenError(
                f"the name '{name}' stands for another subscription",
                detail=f"it is {known.of}",
                hint=f"choose another name, or DELETE /subscribers/{name} first",
            )
        if known is None and len(self._of(credential)) >= self._limits.subscriber_names:
            raise TooManyError(
                f"there are {self._limits.subscriber_names} names already", hint="DELETE /subscribers/{name} frees one"
            )
        named = Named(self, key, name, known or Remembered(told, None, 0))
        if self._clock.now_us() - named.record.used_us > TOUCH_US:
            await self.write(named, named.record.position)
        return named

    async def write(self, named: Named, position: str | None) -> None:
        """Durable on return."""
        assert self._remember is not None
        record = Remembered(named.record.of, position, self._clock.now_us())
        await self._remember({named.key: msgspec.to_builtins(record)})
        named.record = record

    # What there is

    def listed(self, credential: Credential) -> list[dict[str, Any]]:
        """The names of this credential; of all, for an administrator."""
        admin = credential.may("admin")
        names = self._all() if admin else self._of(credential)
        return [_described(key, record, admin) for key, record in names.items()]

    async def forget(self, credential: Credential, name: str, of: str | None = None) -> None:
        """Forget a name of this credential, or of another one (an administrator may). Raises `UnknownNameError`."""
        if of not in (None, credential.id):
            credential.require("admin")
        key = control_keys.subscriber(of or credential.id, name)
        if self._remember is None or key not in self._memory:
            raise UnknownNameError(f"no subscription is named '{name}'", hint="GET /subscribers lists them")
        await self._remember({key: None})

    def _get(self, key: str) -> Remembered | None:
        stored = self._memory.get(key)
        return None if stored is None else msgspec.convert(stored, Remembered)

    def _all(self) -> dict[str, Remembered]:
        stored = self._memory.family(control_keys.subscriber)
        return {key: msgspec.convert(value, Remembered) for key, value in stored.items()}

    def _of(self, credential: Credential) -> dict[str, Remembered]:
        mine = control_keys.subscriber(credential.id, "")
        names = self._all().items()
        return {key: record for key, record in names if key.startswith(mine) and "/" not in key[len(mine) :]}

    # Forgetting

    async def start(self) -> None:
        if self._remember is not None:
            self._sweeping = asyncio.create_task(self._keep_sweeping(), name="names")

    async def stop(self) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.wait([self._sweeping])

    async def sweep(self) -> None:
        """Forget the names that nobody has used for long."""
        assert self._remember is not None
        oldest = self._clock.now_us() - self._limits.subscriber_keep_s * 1e6
        old = [key for key, record in self._all().items() if record.used_us < oldest]
        if old:
            await self._remember(dict.fromkeys(old))
            self._observer.emit(NamesForgotten(len(old)))

    async def _keep_sweeping(self) -> None:
        while True:
            with suppress(PenstockError):  # a full disk: the next time
                await self.sweep()
            await asyncio.sleep(SWEEP_S)

    def acked(self, name: str) -> None:
        self._observer.emit(AckRemembered(name))


def _described(key: str, record: Remembered, admin: bool) -> dict[str, Any]:
    who, _, name = control_keys.subscriber.rest(key).rpartition("/")
    facts = {"name": name, **msgspec.json.decode(record.of), "position": record.position}
    return facts | {"used": rfc3339(record.used_us)} | ({"credential": who} if admin else {})


class Named:
    """One named subscription in use."""

    def __init__(self, subscribers: Subscribers, key: str, name: str, record: Remembered) -> None:
        self.key, self.name, self.record = key, name, record
        self._subscribers = subscribers
        self._wanted: Position | None = None
        self._writing: asyncio.Task[None] | None = None

    @property
    def position(self) -> str | None:
        """Where to resume; None: from the beginning."""
        return self.record.position

    def ack(self, position: Position, told: Callable[[str], None], failed: Callable[[PenstockError], None]) -> None:
        """Remember this position; `told` is called with what is durable then, once for all that came meanwhile."""
        known = Position.parse(self.record.position) if self.record.position else None
        for older in (self._wanted, known):
            if older is not None and older.covers(position):
                position = older
        self._wanted = position
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write(told, failed), name=f"ack {self.name}")

    async def _write(self, told: Callable[[str], None], failed: Callable[[PenstockError], None]) -> None:
        while (position := self._wanted) is not None:
            try:
                await self._subscribers.write(self, position.token())
            except PenstockError as failure:
                failed(failure)
            else:
                self._subscribers.acked(self.name)
                told(position.token())
            if self._wanted is position:
                self._wanted = None
            await asyncio.sleep(WRITE_S)

    async def close(self) -> None:
        """Write what waits; whoever said `ack` last and then left is remembered there."""
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.wait([self._writing])
        if self._wanted is not None:
            with suppress(PenstockError):
                await self._subscribers.write(self, self._wanted.token())
