"""Shows what one commit of the flows has changed in several views in one turn of the edge's loop.

Each view is followed by its own task, which reads and prepares at its own pace. A step of regrouped views is one commit
of several changelogs, and says which. A task that has prepared its part of one waits here for the others, and
whoever comes last shows all of them. So whoever looks at two views sees both before a step, or both behind it.

1. Only views that follow their changelog are waited for: not one that loads, failed, or is past the step already.
2. Nobody waits for longer than `PATIENCE_S`: then what is here is shown, and the rest when it comes.
3. All parts are applied before anybody is woken.

Belongs to the edge's loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

PATIENCE_S = 5.0
"""As long as a view has for a step."""

Place = tuple[str, int]
"""Epoch and offset of a changelog, behind a commit."""
Step = Mapping[str, Place]
"""Where each view stands that a commit has moved."""


@dataclass(frozen=True)
class _Part:
    apply: Callable[[], None]
    wake: Callable[[], None]
    shown: asyncio.Future[None]


class SharedTurn:
    """The steps that some views have reached and others have not."""

    def __init__(self, follows: Callable[[str, Place], bool]) -> None:
        """`follows` says whether a view is on its way to a place."""
        self._follows = follows
        self._steps: dict[tuple[tuple[str, Place], ...], dict[str, _Part]] = {}

    async def show(self, name: str, step: Step | None, apply: Callable[[], None], wake: Callable[[], None]) -> None:
        """Make a view's part visible, together with those of the others; returns when that has happened. What `apply`
        or `wake` raises is raised here, for this view alone."""
        if not step or len(step) == 1:
            apply()
            wake()
            return
        key = tuple(sorted(step.items()))
        part = _Part(apply, wake, asyncio.get_running_loop().create_future())
        self._steps.setdefault(key, {})[name] = part
        self.look()
        try:
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.shield(part.shown)
        except TimeoutError:
            self._show(key)
            await part.shown
        except asyncio.CancelledError:
            self._leave(key, name, part)
            raise

    def look(self) -> None:
        """Show what nobody is waited for any more; called whenever a view may have ceased to follow."""
        for key in [key for key, parts in self._steps.items() if not self._missing(key, parts)]:
            self._show(key)

    def _missing(self, key: tuple[tuple[str, Place], ...], parts: Mapping[str, _Part]) -> bool:
        return any(name not in parts and self._follows(name, place) for name, place in key)

    def _show(self, key: tuple[tuple[str, Place], ...]) -> None:
        parts = self._steps.pop(key, {}).values()
        applied = [part for part in parts if _succeeds(part.apply, part.shown)]
        for part in applied:
            if _succeeds(part.wake, part.shown):
                part.shown.set_result(None)

    def _leave(self, key: tuple[tuple[str, Place], ...], name: str, part: _Part) -> None:
        """A task that is ended shows nothing any more."""
        parts = self._steps.get(key, {})
        if parts.get(name) is part:
            del parts[name]


def _succeeds(call: Callable[[], None], shown: asyncio.Future[None]) -> bool:
    try:
        call()
    except Exception as error:
        shown.set_exception(error)
        return False
    return True
