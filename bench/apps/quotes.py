"""A view that only a benchmark writes to: its changelog comes from `bench/changelog.py` and not from Spark.

The stream is followed as it is, in a case of its own; `accepted` says when an event was made.
"""

from typing import Any

from penstock import App, Event

app = App("bench_quotes")


class Quote(Event):
    symbol: str
    market: str
    price: float
    volume: int
    accepted: str


ticks = app.stream("ticks", Quote, key="symbol")


@app.view(key="symbol")
def quotes(ticks: Any) -> Any:
    """The last price of each symbol."""
    return ticks
