"""The app whose edge is killed while requests with an Idempotency-Key are under way."""

from penstock import App, Event

app = App("keys")


class Step(Event):
    request: int
    n: int


steps = app.stream("steps", Step, key="request", partitions=3)
