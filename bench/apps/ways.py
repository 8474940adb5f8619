"""One stream with a UDP port beside the door, for the benchmarks of the ways in."""

from penstock import App, Event

app = App("bench_ways")


class Reading(Event):
    id: int
    sensor: str
    value: float


readings = app.stream("readings", Reading, key="sensor")
app.udp(readings, port=0)
