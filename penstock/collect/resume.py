"""Knows where a pull stands in its source: the largest value of the field that the source can be asked from.

It is written in the commit of the events that it covers, under `pull/<stream>/<url>` in the control stream, so it is
never ahead of what is durable. A rejected event does not move it: one wrong clock must not skip what follows.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

from penstock.collect.arrival import Decoded
from penstock.collect.intake import Outcome
from penstock.declaration import PullDef

Value = int | float | str


class ResumePoint:
    """Where one pull stands. `next_keys` runs in the writer's thread, the rest on the edge's loop."""

    def __init__(self, pull: PullDef, memory: Mapping[str, Any]) -> None:
        self.key = f"pull/{pull.stream}/{pull.url}"
        self._parameter, _, field = (pull.resume or "").partition("=")
        self._get = attrgetter(field) if field else None
        stored = memory.get(self.key) or {}
        self.since: Value | None = stored.get("since")
        self.events: int = stored.get("events", 0)

    def ask(self) -> dict[str, str]:
        """The parameters to open the source with."""
        return {} if self.since is None or not self._parameter else {self._parameter: str(self.since)}

    def next(self, decoded: Decoded, outcome: Outcome) -> dict[str, Any]:
        """Where the pull stands behind these events."""
        since = self.since
        if self._get is not None:
            rejected = {rejection.index for rejection in outcome.rejections}
            since = _largest(
                since, [e for row, e in enumerate(decoded.events) if decoded.place(row) not in rejected], self._get
            )
        return {"since": since, "events": self.events + decoded.received}

    def move(self, stands: Mapping[str, Any]) -> None:
        """The commit is durable."""
        self.since, self.events = stands["since"], stands["events"]


def _largest(since: Value | None, events: Sequence[Any], get: attrgetter[Any]) -> Value | None:
    for event in events:
        value = _plain(get(event))
        if value is not None and (since is None or isinstance(value, str) != isinstance(since, str) or value > since):  # type: ignore[operator]
            since = value
    return since


def _plain(value: Any) -> Value | None:
    """As JSON, in such a way that later is larger."""
    if isinstance(value, dt.datetime):
        moment = value if value.tzinfo is None else value.astimezone(dt.UTC).replace(tzinfo=None)
        return moment.isoformat(timespec="microseconds") + "Z"
    return value if isinstance(value, int | float | str) else None
