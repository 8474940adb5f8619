"""The app whose events are counted: one stream for each way in, and one whose view never gets anywhere."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from penstock import App, Event
from penstock.change import OP, Column
from penstock.config import Folder
from penstock.log.builds import Build, FlowState
from penstock.log.log import StreamSpec
from penstock.log.opening import open_log

app = App("counting")


class Step(Event):
    n: int


post = app.stream("post", Step, id="n")
publish = app.stream("publish", Step, id="n")
udp = app.stream("udp", Step, id="n")
pull = app.stream("pull", Step, id="n")
shedding = app.stream("shedding", Step, id="n", overload="shed", shed="random")
limited = app.stream("limited", Step, id="n", rate="50/s", burst=20)
for name in ("beacon", "csv", "quick", "once", "arrow", "cloudevents", "mended", "pixel"):
    app.stream(name, Step, id="n")
app.udp(udp, port=int(os.environ.get("COUNTING_UDP", "0")))
app.pull(pull, os.environ.get("COUNTING_FEED", "ws://127.0.0.1:9/feed"), resume="since=n")


@app.view(key="n", max_lag=20)
def stuck(shedding: Any) -> Any:
    """Is served and said to run, but nothing of its stream is ever absorbed."""
    return shedding


def pretend(folder: Folder) -> None:
    """Write what a flow would have that has just begun to run, so that the lag of `stuck` counts without Spark."""
    folder.root.mkdir(parents=True, exist_ok=True)
    with closing(open_log(folder.flows_log, app="counting")) as log:
        if "live/stuck" in log.memory():
            return
        changelog = pa.schema([pa.field("n", pa.int64()), pa.field(OP, pa.int8())])
        made = log.create(StreamSpec("stuck", changelog, counts="commits", compact_by=("n",), epoch="stuck"))
        columns = (Column("n", "bigint"),)
        build = Build(epoch=made.epoch, fingerprint="f", kind="view", columns=columns, proof="exact", started_us=0)
        state = FlowState(state="running")
        told = {"build/stuck": msgspec.to_builtins(build), "flow/stuck": msgspec.to_builtins(state)}
        log.append([], told | {"live/stuck": made.epoch})


if "--data" in sys.argv:
    pretend(Folder(Path(sys.argv[sys.argv.index("--data") + 1])))
