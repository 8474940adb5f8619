"""Tells how old events were when a pull got them: the lag that any source shows whose events have a time."""

from __future__ import annotations

import datetime as dt
from typing import Any

from penstock.collect.judging.incoming_events import Decoded
from penstock.declaration import StreamDef


class EventAge:
    """Of the newest event of one pull, by the field that the stream's `time=` names."""

    def __init__(self, stream: StreamDef) -> None:
        self._time = stream.time
        self._age_s: float | None = None

    def note(self, decoded: Decoded, received_us: int) -> None:
        if self._time is not None and decoded.events:
            time_us = _microseconds(getattr(decoded.events[-1], self._time))
            self._age_s = self._age_s if time_us is None else max(0.0, (received_us - time_us) / 1e6)

    def lag(self) -> dict[str, float]:
        return {} if self._age_s is None else {"seconds": round(self._age_s, 3)}


def _microseconds(value: Any) -> int | None:
    if isinstance(value, dt.datetime):
        moment = value if value.tzinfo is not None else value.replace(tzinfo=dt.UTC)
        return round(moment.timestamp() * 1_000_000)
    return value * 1000 if isinstance(value, int) else None
