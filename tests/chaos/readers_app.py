"""The app whose views the readers of `tests.chaos.readers` follow; their changelogs are written by the test."""

from __future__ import annotations

from typing import Any

from penstock import App, Event


class Tick(Event):
    n: int = 0


app = App("small")
app.stream("ticks", Tick)


@app.view(key="topic")
def topics(ticks: Any) -> Any:
    """Rows of many types under one key."""


@app.view(key="topic", order_by="-rsvps", limit=4)
def top(ticks: Any) -> Any:
    """The same, of which a reader sees the first four unless it asks for more."""


@app.view(key=["window", "topic"], order_by="-window")
def windows(ticks: Any) -> Any:
    """A key of two columns, one of them a struct."""
