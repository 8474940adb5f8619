"""The app whose events are counted: one stream for each way in, and one whose view never gets anywhere."""

from __future__ import annotations

import os
from typing import Any

from penstock import App, Event

app = App("counting")


class Step(Event):
    n: int


post = app.stream("post", Step, id="n")
publish = app.stream("publish", Step, id="n")
udp = app.stream("udp", Step, id="n")
pull = app.stream("pull", Step, id="n")
shedding = app.stream("shedding", Step, id="n", overload="shed", shed="random")
limited = app.stream("limited", Step, id="n", rate="50/s", burst=20)
for name in ("beacon", "csv", "quick", "once"):
    app.stream(name, Step, id="n")
app.udp(udp, port=int(os.environ.get("COUNTING_UDP", "0")))
app.pull(pull, os.environ.get("COUNTING_FEED", "ws://127.0.0.1:9/feed"), resume="since=n")


@app.view(key="n", max_lag=20)
def stuck(shedding: Any) -> Any:
    """Has no flow in this round, so that its lag is all there is."""
    return shedding
