"""What a processor reads from: the batches of a view behind a position, and the columns of its key.

`ClientFeed` reads them through `AsyncClient`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from penstock.client.assembly import ViewAssembly, is_newer
from penstock.client.read_request import ReadRequest
from penstock.client.view_rows import Changes


class Batches(Protocol):
    """Batches one after the other, until `aclose`."""

    def __aiter__(self) -> AsyncIterator[Changes]: ...

    async def aclose(self) -> None: ...


class ChangeFeed(Protocol):
    """One view under one question. Reconnecting, resuming and `reset` are the feed's own affair."""

    view: str

    async def key(self) -> tuple[str, ...]:
        """The columns of the view's key. Called first, and after each `reset`. Raises `TransientFailure`: try again."""

    def watch(self, since: str | None) -> Batches:
        """Every batch behind a position, without end; a snapshot first if there is none, or if it leads nowhere."""

    def level(self, since: str | None) -> Batches:
        """The same, ending when there is nothing newer."""


Get = Callable[[str, Mapping[str, str], float], Awaitable[Mapping[str, Any]]]
_POLL_S = 1.0


class ClientFeed:
    """A `ChangeFeed`. The request has no limit: a row beyond it would be taken for a deleted one."""

    def __init__(
        self,
        request: ReadRequest,
        key: Callable[[], Awaitable[Sequence[str]]],
        watch: Callable[[str | None], Batches],
        get: Get,
    ) -> None:
        self.view = request.name
        self._request, self._key, self._watch, self._get = request, key, watch, get

    async def key(self) -> tuple[str, ...]:
        return tuple(await self._key())

    def watch(self, since: str | None) -> Batches:
        return self._watch(since)

    async def level(self, since: str | None) -> AsyncGenerator[Changes, None]:
        """Up to the view's present position, by long polls: their positions also move past batches without changes."""
        path, parameters = self._request.path, self._request.parameters()
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
