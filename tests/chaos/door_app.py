"""A stream without ids: whatever is in it once is so because its producer's numbers were right."""

from __future__ import annotations

from penstock import App, Event

app = App("door")


class Step(Event):
    n: int


steps = app.stream("steps", Step)
