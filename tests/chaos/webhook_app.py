"""The app whose edge is killed while webhooks are on their way."""

from typing import Any

from penstock import App, Event

app = App("small")


class Rsvp(Event):
    topic: str
    n: int = 1


app.stream("rsvps", Rsvp)


@app.view(key="topic")
def topics(rsvps: Any) -> Any:
    """Written by the harness, in the place of Spark."""
