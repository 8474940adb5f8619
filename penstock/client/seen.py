"""Remembers the newest position of each view that this client has seen, so that its reads never go back."""

from __future__ import annotations

from threading import Lock

from penstock.client.assembly import is_newer


class Seen:
    """For any thread."""

    def __init__(self) -> None:
        self._newest: dict[str, str] = {}
        self._lock = Lock()

    def at(self, view: str) -> str | None:
        return self._newest.get(view)

    def note(self, view: str, position: str) -> None:
        """Of another build is newer than what was known: builds replace each other and never come back."""
        with self._lock:
            known = self._newest.get(view)
            if known is None or is_newer(position, known):
                self._newest[view] = position

    def forget(self, view: str) -> None:
        """What was known is of a build that is gone."""
        with self._lock:
            self._newest.pop(view, None)
