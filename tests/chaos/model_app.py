"""The app of the model: one view, whose changelog the test writes itself, so that no Spark is needed."""

from __future__ import annotations

from typing import Any

from penstock import App, Event

app = App("model")


class Move(Event):
    k: int


app.stream("moves", Move)


@app.view(key="k", order_by=["-n"])
def things(moves: Any) -> Any:
    """A few rows that come, change and go."""
