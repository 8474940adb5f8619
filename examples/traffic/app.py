"""The traffic example: a jam is three ever slower reports of one road; it is raised once, and cleared once.

penstock run examples/traffic/app.py         # everything
python examples/traffic/vehicles.py          # vehicles on 40 roads
"""

from typing import Any

from penstock import App, Event, Struct
from penstock.patterns import Pattern, begin

app = App("traffic")


class Report(Event):
    road: str
    vehicle: str
    speed: float  # km/h
    at: int  # milliseconds since 1970


reports = app.stream("reports", Report, key="road", time="at", late_after="10 seconds", idle_after="10 seconds")


@app.pattern(key="road", within="5 minutes")
def jam(reports: Any) -> Pattern:
    """Three ever slower reports below 20 km/h within 5 minutes."""
    slow = begin("first", "speed < 20").followed_by("second", "speed < first.speed")
    return slow.followed_by("third", "speed < second.speed")


@app.stateful(reads=[reports, jam], key="road", order="time", state=True, keep="1 day")
class roads:
    """Whether a road is jammed: from the third slow report on, until a vehicle passes at 40 km/h."""

    class State(Struct):
        jammed: bool = False
        speed: float | None = None

    def on_event(self, state: Any, event: Any, out: Any) -> None:
        if event.stream == "jam":
            state.jammed = True
        else:
            state.speed = event.speed
            state.jammed = state.jammed and event.speed < 40


app.alert("jammed", "roads_state", when="jammed", doc="Roads on which nothing moves.")
