"""What a processor reads from: the batches of a view behind a position, and the columns of its key."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from penstock.client.changes import Changes


class Batches(Protocol):
    """Batches one after the other, until `aclose`."""

    def __aiter__(self) -> AsyncIterator[Changes]: ...

    async def aclose(self) -> None: ...


class Feed(Protocol):
    """One view under one question. Reconnecting, resuming and `reset` are the feed's own affair."""

    view: str

    async def key(self) -> tuple[str, ...]:
        """The columns of the view's key. Called first, and after each `reset`. Raises `Passing`: try again."""

    def watch(self, since: str | None) -> Batches:
        """Every batch behind a position, without end; a snapshot first if there is none, or if it leads nowhere."""

    def level(self, since: str | None) -> Batches:
        """The same, ending when there is nothing newer."""
