"""Knows since when the app shows a view as it does now, so that nobody resumes into rows that were chosen otherwise.

The default order and limit of a view, its `visible_where` and its channels decide which rows a subscriber holds, and an
edit of them builds nothing anew: the epoch stays. A digest of them is kept in the log. The first edge that finds
another one notes where the view was then, and a resume from there or before is a `reset`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from hashlib import blake2b
from typing import Any

from penstock.declaration import Application
from penstock.errors import PenstockError
from penstock.views.store import Content

Remember = Callable[[Mapping[str, Any]], Awaitable[Any]]


class ReadingTerms:
    """For all views of an app; lives on the edge's loop."""

    def __init__(self, application: Application, memory: Mapping[str, Any], remember: Remember) -> None:
        """`memory` is that of the edge's own log, to which `remember` writes."""
        self._digests = {view.name: _digest(application, view.name) for view in application.views}
        self._known = {name: memory.get(_key(name)) for name in self._digests}
        self._remember = remember

    async def since(self, content: Content) -> int:
        """The offset behind which positions of this build were given on these terms."""
        known = self._known[content.name]
        digest = self._digests[content.name]
        if known is None or known["digest"] != digest:
            before = -1 if known is None else content.offset
            known = {"digest": digest, "epoch": content.epoch, "offset": before}
            self._known[content.name] = known
            with suppress(PenstockError):  # a full disk keeps nobody from reading; the next edge notes it again
                await self._remember({_key(content.name): known})
        return int(known["offset"]) if known["epoch"] == content.epoch else -1


def _key(view: str) -> str:
    return f"terms/{view}"


def _digest(application: Application, name: str) -> str:
    view = application.view(name)
    assert view is not None
    channels = [(c.name, c.where, c.select) for c in application.channels if c.target == name]
    told = repr((view.order_by, view.limit, view.visible_where, sorted(channels, key=lambda c: c[0])))
    return blake2b(told.encode(), digest_size=12).hexdigest()
