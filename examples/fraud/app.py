"""The fraud example: each card transaction is approved or blocked, by three opinions or after 300 milliseconds.

penstock run examples/fraud/app.py           # everything
python examples/fraud/cards.py               # people who pay, and some who should not
"""

import math
from datetime import datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock import App, Event, Struct

app = App("fraud")

ANALYSERS = ("ticket", "travel", "velocity")
DEADLINE = "300 ms"
FASTEST_KM_H = 900
MOST = 5
WINDOW = timedelta(minutes=10)


class Transaction(Event):
    id: int
    card: str
    amount: float
    lat: float
    lon: float
    at: int  # milliseconds since 1970


transactions = app.stream("transactions", Transaction, key="card", id="id", time="at", late_after="1 minute")


class Opinion(Struct):
    id: int
    card: str
    bad: bool


def km(lat: float, lon: float, other_lat: float, other_lon: float) -> float:
    """The way between two places, over the globe."""
    a, b = math.radians(lat), math.radians(other_lat)
    half = math.sin((b - a) / 2) ** 2
    half += math.cos(a) * math.cos(b) * math.sin(math.radians(other_lon - lon) / 2) ** 2
    return 12_742 * math.asin(math.sqrt(half))


@app.stateful(reads=transactions, key="card", keep="90 days")
class ticket:
    """A transaction of more than 5 times the mean of its card, from its 10th on."""

    Output = Opinion

    class State(Struct):
        n: int = 0
        mean: float = 0.0

    def on_event(self, state: Any, event: Any, out: Any) -> None:
        state.n += 1
        out.emit(id=event.id, bad=state.n >= 10 and event.amount > 5 * state.mean)
        state.mean += (event.amount - state.mean) / state.n


@app.stateful(reads=transactions, key="card", keep="90 days")
class travel:
    """A transaction that nobody could reach in time from where the card was last."""

    Output = Opinion

    class State(Struct):
        at: int | None = None
        lat: float = 0.0
        lon: float = 0.0

    def on_event(self, state: Any, event: Any, out: Any) -> None:
        bad = False
        if state.at is not None:
            hours = abs(event.at - state.at) / 3_600_000
            bad = km(state.lat, state.lon, event.lat, event.lon) > FASTEST_KM_H * hours
        out.emit(id=event.id, bad=bad)
        state.at, state.lat, state.lon = event.at, event.lat, event.lon


@app.stateful(reads=transactions, key="card", keep="90 days")
class velocity:
    """A transaction that is more than the fifth of its card in 10 minutes."""

    Output = Opinion

    class State(Struct):
        recent: list[datetime] = []

    def on_event(self, state: Any, event: Any, out: Any) -> None:
        state.recent = [at for at in state.recent if at > event._time - WINDOW] + [event._time]
        out.emit(id=event.id, bad=len(state.recent) > MOST)


@app.stateful(reads=[ticket, travel, velocity], key="id", state=True, keep="1 hour")
class decisions:
    """Approve or block: when all three have spoken, or when 300 milliseconds have passed, and who was missing then."""

    class State(Struct):
        card: str | None = None
        heard: list[str] = []
        bad: list[str] = []
        decision: str | None = None

    class Output(Struct):
        id: int
        card: str
        decision: str
        reasons: list[str]
        missing: list[str]

    def on_event(self, state: Any, event: Any, out: Any) -> None:
        if not state.heard:
            state.card = event.card
            out.clock("deadline", after=DEADLINE)
        state.heard.append(event.stream)
        if event.bad:
            state.bad.append(event.stream)
        if len(state.heard) == len(ANALYSERS) and state.decision is None:
            out.clock("deadline", after=None)
            self.decide(state, out)

    def on_timer(self, state: Any, timer: Any, out: Any) -> None:
        if state.decision is None:
            self.decide(state, out)

    def decide(self, state: Any, out: Any) -> None:
        state.decision = "block" if state.bad else "approve"
        missing = [name for name in ANALYSERS if name not in state.heard]
        out.emit(card=state.card, decision=state.decision, reasons=sorted(state.bad), missing=missing)


@app.view(key=["decision", "reason"], order_by="-decisions")
def reasons(decisions: DataFrame) -> DataFrame:
    """How many were approved, and how many blocked for which reasons."""
    told = decisions.select("decision", F.array_join("reasons", " and ").alias("reason"))
    return told.groupBy("decision", "reason").agg(F.count("*").alias("decisions"))
