"""Runs a small app once, so that the JVM notes which classes a real one will need, for `class_archive.py`."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyspark
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock.app import App
from penstock.clock import SystemClock
from penstock.config import Folder
from penstock.declaration import StreamDef
from penstock.event import Event
from penstock.flows.engine import class_archive, java_classes
from penstock.flows.engine.jvm import Jvm
from penstock.flows.engine.small_batches import FEW_EVENTS
from penstock.flows.plan import Planner
from penstock.flows.runner import Runner
from penstock.flows.session import open_session
from penstock.log.group_commit import GroupCommit
from penstock.log.log import Append, Log, StreamSpec
from penstock.log.opening import open_log
from penstock.run.preflight import check_java

_LONGEST_S = 90.0
_COMMITS = 4


class Step(Event):
    n: int
    kind: str


def _app() -> App:
    app = App("warm")
    app.stream("steps", Step, late_after="1 minute")

    @app.view(key=["window", "kind"], keep="1 hour")
    def windows(steps: DataFrame) -> DataFrame:
        exploded = steps.where("n >= 0").select("_time", F.explode(F.array("kind")).alias("kind"))
        return exploded.groupBy(F.window("_time", "1 minute"), "kind").agg(F.count("*").alias("c"))

    return app


def _steps(stream: StreamDef, number: int, count: int = 1) -> pa.RecordBatch:
    now = pa.array([SystemClock().now_us()] * count, pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    none = pa.nulls(count, pa.string())
    columns = [*stream.events.columns([Step(n=number, kind="a")] * count), now, now, none, none]
    return pa.RecordBatch.from_arrays(columns, schema=stream.stored)


def main() -> int:
    home = Path(pyspark.__file__).parent
    with suppress(OSError, subprocess.CalledProcessError):  # a Java without a compiler
        java_classes.compile_jar(home / "jars")
    class_archive.copy_compiler(home / "jars")
    class_archive.ask_launcher(home, check_java())
    path = class_archive.archive()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    jvm = Jvm.begin(record=path)
    jvm.connect()
    spark = open_session("warm")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        folder, application = Folder(Path(scratch)), _app().declared()
        stream, stop = application.streams[0], threading.Event()
        edge, flows = (open_log(db, app="warm") for db in (folder.edge_log, folder.flows_log))
        group = GroupCommit(flows)
        target = edge.create(StreamSpec(stream.name, stream.stored))
        runner = Runner(Planner(spark, application, folder), flows, group, edge, SystemClock(), stop)
        work = threading.Thread(target=runner.run)
        edge.append([Append(target, _steps(stream, 0, FEW_EVENTS + 1))])  # waits for the start, and so is compiled
        work.start()
        deadline = time.monotonic() + _LONGEST_S
        for number in range(_COMMITS):
            if number > 0:
                edge.append([Append(target, _steps(stream, number))])
            while not _committed(flows, number) and time.monotonic() < deadline:
                time.sleep(0.05)
        stop.set()
        work.join()
        group.close()
    spark.stop()
    jvm.end()  # it writes the archive last, and takes a few seconds for it
    return 0


def _committed(flows: Log, number: int) -> bool:
    output = flows.find("windows")
    return output is not None and flows.bounds(output).next_commit > number


if __name__ == "__main__":
    sys.exit(main())
