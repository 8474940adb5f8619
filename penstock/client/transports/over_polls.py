"""Follows with plain requests that wait for news, for whatever lets nothing stay open."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any

from penstock.client.asking import Asking
from penstock.client.http_calls import HttpCalls
from penstock.client.refusing import told
from penstock.protocol import Message

WAIT_S = 20
"""How long one request waits for news: less than any proxy's patience."""


class OverPolls:
    """The transport `poll`."""

    def __init__(self, calls: HttpCalls) -> None:
        self._calls = calls

    async def messages(self, asking: Asking, since: str | None) -> AsyncGenerator[Message, None]:
        follow = self._events if asking.kind == "stream" else self._changes
        async for message in follow(asking, since):
            if message.get("type") == "error":
                raise told(message.get("error") or {})
            yield message

    async def _changes(self, asking: Asking, since: str | None) -> AsyncGenerator[Message, None]:
        if since is None:
            reply = await self._get(asking, {})
            since = reply["position"]
            yield {"type": "snapshot", "view": asking.name, "position": since, "rows": reply["rows"]}
        while True:
            reply = await self._get(asking, {"since": since})
            for message in reply.get("messages", ()):
                yield message
            since = reply.get("position", since)

    async def _events(self, asking: Asking, since: str | None) -> AsyncGenerator[Message, None]:
        while True:
            reply = await self._get(asking, {"after": since or "start"})
            since = reply["next"]
            yield {"type": "events", "stream": asking.name, "position": since, "events": reply["events"]}

    async def _get(self, asking: Asking, more: dict[str, str]) -> Mapping[str, Any]:
        """A reply; an empty one when nothing came in time."""
        parameters = asking.parameters() | more | {"wait": str(WAIT_S)}
        return await self._calls.get(asking.path, parameters, WAIT_S) or {}
