"""`penstock tail`: the events of a stream, or of the ledgers `dead` and `late`, as lines of JSON."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from penstock.cli.remote import Remote, path_of
from penstock.errors import PositionGoneError, UnreachableError
from penstock.position import Position

NEWEST = 10
"""Events per partition that are shown before new ones, as `tail` does with lines."""
PAGE = 1000
WAIT_S = 20
"""How long one request waits for news: less than any proxy's patience."""

Events = Iterator[dict[str, Any]]


class TailReader:
    """A reader of one stream that resumes by position when the server goes away and comes back."""

    def __init__(
        self,
        remote: Remote,
        stream: str,
        where: str | None,
        note: Callable[[str], None],
        params: str | None = None,
    ) -> None:
        self._remote = remote
        self._path = path_of("streams", stream)
        self._where, self._params = where, params
        self._note = note

    def events(self, since: str | None, limit: int | None, follow: bool) -> Events:
        """Events from `since` (a position, `start`, `end`; None: the newest few), then those that come."""
        after = since or self._newest()
        left = limit
        while left is None or left > 0:
            page = self._page(after, min(PAGE, left or PAGE), follow)
            yield from page["events"]
            left = None if left is None else left - len(page["events"])
            if not follow and page["next"] == after:
                return
            after = page["next"]

    def _page(self, after: str, limit: int, follow: bool) -> dict[str, Any]:
        params: dict[str, str | int | float | None] = {
            "after": after,
            "limit": limit,
            "where": self._where,
            "params": self._params,
            "wait": WAIT_S if follow else None,
        }
        while True:
            try:
                return self._remote.get(self._path, params)
            except UnreachableError as error:
                if not follow:
                    raise
                self._note(f"{error.message}; trying again")
                time.sleep(1.0)

    def _newest(self) -> str:
        """The position of the newest few events: the end, and so many offsets back in each partition."""
        end = Position.parse(self._remote.get(self._path, {"after": "end", "limit": 1})["next"])
        back = tuple(max(0, offset - NEWEST) for offset in end.offsets)
        position = Position(end.kind, end.name, end.epoch, back).token()
        try:
            self._remote.get(self._path, {"after": position, "limit": 1})
        except PositionGoneError:
            return "start"
        return position
