"""Whom messages go to: what a group asks of each of its subscribers, and those at the end of a connection."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

from penstock.serve.fanout.messages import Message
from penstock.sockets.pipe import Pipe


class Receiver(Protocol):
    """The way to one subscriber, as a group uses it on the edge's loop. `offer` and `send` keep the order."""

    transport: str
    policy: str
    """What it gets when it cannot keep up, as metrics name it; set by whom it follows."""
    deflates: bool
    """It takes compressed frames."""
    joins: bool
    """It takes several messages as one piece (`Joined`)."""
    pace_s: float | None
    """At least so long from one message to the next, the batches between merged; None: as they come."""
    on_pace: Callable[[], None]
    """Set by the group that it is in; called when `pace_s` has changed."""

    def offer(self, message: Message) -> bool | None:
        """Take it without waiting. False: enough waits on this connection now. None: enough waited before, and the
        message was not taken. In both cases: do not offer more until `drained`."""
        ...

    async def send(self, message: Message) -> None:
        """Wait until everything before it is written, then write it. Raises `ConnectionError` when it is gone."""
        ...

    async def drained(self) -> None:
        """Return when everything is written. Raises `ConnectionError` when the subscriber is gone."""
        ...

    @property
    def is_level(self) -> bool:
        """Nothing waits for it."""
        ...

    @property
    def turn(self) -> asyncio.Lock:
        """Held by one of the subscriptions on a connection while it catches up."""
        ...

    @property
    def unsent_bytes(self) -> int: ...

    def stall(self, made: Callable[[], Message]) -> None:
        """Say that it is behind; `made` is called when the subscriber gets to read it."""
        ...

    def cut(self, policy: str, last: Message) -> None:
        """End the connection, saying this last."""
        ...


def _nobody() -> None:
    """Nobody is told."""


class PipeReceiver(ABC):
    """A subscriber at the end of a connection; how a message looks there is its transport's to say."""

    __slots__ = ("_pipe", "on_pace", "pace_s")
    transport = ""
    deflates = False
    joins = True

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self.pace_s: float | None = None
        self.on_pace: Callable[[], None] = _nobody

    @property
    def policy(self) -> str:
        return self._pipe.policy

    @policy.setter
    def policy(self, policy: str) -> None:
        self._pipe.policy = policy

    @abstractmethod
    def frame(self, message: Message) -> bytes:
        """The bytes of a message on this transport."""

    def offer(self, message: Message) -> bool | None:
        return self._pipe.offer(self.frame(message))

    async def send(self, message: Message) -> None:
        await self._pipe.send(self.frame(message))

    async def drained(self) -> None:
        await self._pipe.drained()

    @property
    def is_level(self) -> bool:
        return self._pipe.is_idle

    @property
    def turn(self) -> asyncio.Lock:
        return self._pipe.turn

    @property
    def unsent_bytes(self) -> int:
        return self._pipe.unsent_bytes

    def stall(self, made: Callable[[], Message]) -> None:
        self._pipe.put(lambda: self.frame(made()))

    def cut(self, policy: str, last: Message) -> None:
        self._pipe.cut(policy, self.frame(last))
