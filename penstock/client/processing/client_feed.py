"""A view as a processor reads it through `AsyncClient`: the whole of it under its question, from a position on."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any

from penstock.client.asking import Asking
from penstock.client.assembly import ViewAssembly, is_newer
from penstock.client.changes import Changes
from penstock.client.processing.feed import Batches

Get = Callable[[str, Mapping[str, str], float], Awaitable[Mapping[str, Any]]]
_POLL_S = 1.0


class ClientFeed:
    """A `Feed`. What is asked has no limit: a row beyond it would be taken for a deleted one."""

    def __init__(
        self,
        asked: Asking,
        key: Callable[[], Awaitable[Sequence[str]]],
        watch: Callable[[str | None], Batches],
        get: Get,
    ) -> None:
        self.view = asked.name
        self._asked, self._key, self._watch, self._get = asked, key, watch, get

    async def key(self) -> tuple[str, ...]:
        return tuple(await self._key())

    def watch(self, since: str | None) -> Batches:
        return self._watch(since)

    async def level(self, since: str | None) -> AsyncGenerator[Changes, None]:
        """Up to where the view is when this begins, by long polls: their positions move also where nothing is told."""
        path, parameters = self._asked.path, self._asked.parameters()
        now = await self._get(path, parameters, 0.0)
        if since is None:
            yield Changes(self.view, now["position"], tuple(now["rows"]), (), snapshot=True)
            return
        assembly = ViewAssembly(self.view, since)
        while is_newer(now["position"], since):
            body = await self._get(path, parameters | {"since": since, "wait": f"{_POLL_S:g}"}, _POLL_S)
            for message in body.get("messages", ()):
                for position, item in assembly.take(message):
                    since = position
                    if item is not None:
                        yield item
                        if item.snapshot:
                            return
