"""The app of the slow readers: one view, whose changelog the test writes itself, so that no Spark is needed."""

from __future__ import annotations

from typing import Any

from penstock import App, Event

app = App("slow")


class Tick(Event):
    n: int


app.stream("ticks", Tick)


@app.view(key="k")
def board(ticks: Any) -> Any:
    """A few wide rows; in each batch all have the same `n`, so that half a batch would show."""
