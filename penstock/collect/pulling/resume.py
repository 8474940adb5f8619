"""Knows where a pull stands: its source's own position, and the largest value of the field that `resume=` names.

Both are written in the commit of the events that they cover, so they are never ahead of what is durable. In the
control stream `pull/<stream>/<source>` holds the field's value and the count of events, and one key for each part of
the position stands below it, so that a commit writes only what moved. A rejected event does not move the field's
value: one wrong clock must not skip what follows.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

from penstock.collect.judging.incoming_events import DecodedEvents
from penstock.collect.judging.rejection import Rejection
from penstock.collect.pulling.pull_source import PositionParts, SourceRequest
from penstock.declaration import PullDef
from penstock.log import control_keys
from penstock.log.control import ControlMap
from penstock.log.log import KeyIs

Value = int | float | str
_PART = "#"
_SHOWN_PARTS = 20


class ResumePoint:
    """Where one pull stands; lives on the edge's loop."""

    def __init__(self, pull: PullDef, memory: ControlMap) -> None:
        self.key = control_keys.pull(pull.stream, pull.url)
        self._memory = memory
        self._parameter, _, field = (pull.origin.resume or "").partition("=")
        self._get = attrgetter(field) if field else None
        self.since: Value | None = None
        self.events = 0
        self.parts: dict[str, Any] = {}
        self._stored: dict[str, Any] | None = None
        self.load()

    def load(self) -> None:
        """What the log says: at the start, and after another edge had this pull."""
        self._stored = self._memory.get(self.key)
        stored = self._stored or {}
        self.since, self.events = stored.get("since"), stored.get("events", 0)
        below, every = self.key + _PART, self._memory.family(control_keys.pull)
        self.parts = {key.removeprefix(below): value for key, value in every.items() if key.startswith(below)}

    def unmoved(self) -> KeyIs:
        """The condition that nothing was written since `load` but what `move` was told of."""
        return KeyIs(self.key, self._stored)

    def ask(self) -> SourceRequest:
        """What to open the source with."""
        return SourceRequest(dict(self.parts), self._parameters)

    def _parameters(self) -> dict[str, str]:
        return {} if self.since is None or not self._parameter else {self._parameter: str(self.since)}

    def shown(self) -> Any:
        """For people: the field's value, else the source's position; of many files only how many."""
        if self.since is not None or not self.parts:
            return self.since
        return dict(self.parts) if len(self.parts) <= _SHOWN_PARTS else {"parts": len(self.parts)}

    def next(
        self, decoded: DecodedEvents, rejections: Sequence[Rejection], position: PositionParts | None
    ) -> dict[str, Any]:
        """The keys behind these events, as the control stream takes them."""
        since = self.since
        if self._get is not None:
            rejected = {rejection.index for rejection in rejections}
            since = _largest(
                since, [e for row, e in enumerate(decoded.events) if decoded.place(row) not in rejected], self._get
            )
        keys: dict[str, Any] = {self.key: {"since": since, "events": self.events + decoded.received}}
        return keys | {f"{self.key}{_PART}{part}": value for part, value in (position or {}).items()}

    def restarted(self, position: PositionParts | None) -> dict[str, Any]:
        """The keys that set parts of the source's own position anew; without any, all of it goes."""
        parts: PositionParts = dict.fromkeys(self.parts) if position is None else position
        return {f"{self.key}{_PART}{part}": value for part, value in parts.items()}

    def move(self, keys: Mapping[str, Any]) -> None:
        """The commit with these keys is durable."""
        for key, value in keys.items():
            part = key.removeprefix(self.key)
            if not part:
                self._stored, self.since, self.events = value, value["since"], value["events"]
            elif value is None:
                self.parts.pop(part[1:], None)
            else:
                self.parts[part[1:]] = value


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
