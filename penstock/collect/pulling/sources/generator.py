"""Reads an async generator function of the user's: it yields events, or pairs of a position and an event.

It is called with the last stored position (None at first) and runs on the edge's loop, so it must not block.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import msgspec

from penstock.collect.pulling.pull_source import SourceEvents, SourceLag, SourceRequest
from penstock.pull_origin import Origin

AT = "at"


class GeneratorSource:
    """The position has one part, `at`: what the function yielded with its last stored event, as JSON."""

    def __init__(self, origin: Origin) -> None:
        assert origin.function is not None
        self._function: Callable[..., Any] = origin.function
        self._takes_position = bool(inspect.signature(origin.function).parameters)

    @asynccontextmanager
    async def open(self, request: SourceRequest) -> AsyncIterator[AsyncIterator[SourceEvents]]:
        arguments = (request.position.get(AT),) if self._takes_position else ()
        async with aclosing(self._function(*arguments)) as yielded:
            yield _events(yielded)

    def lag(self) -> SourceLag:
        return {}


async def _events(yielded: Any) -> AsyncIterator[SourceEvents]:
    async for item in yielded:
        if isinstance(item, tuple):
            position, event = item
            yield SourceEvents([_raw(event)], {AT: msgspec.to_builtins(position)})
        else:
            yield SourceEvents([_raw(item)])


def _raw(event: Any) -> bytes:
    if isinstance(event, str):
        return event.encode()
    return bytes(event) if isinstance(event, bytes | bytearray) else msgspec.json.encode(event)
