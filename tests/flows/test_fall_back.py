"""Parts that do not fit the Spark that is there give up, each with one line, and flows run all the same."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.parts import about

pytestmark = [
    about("launch", "files", "notes", "sink"),
    pytest.mark.skipif(shutil.which("javac") is None, reason="this Java has no compiler: no classes of ours"),
]

PROGRAM = """
import json, logging, sys
from pathlib import Path

from py4j.protocol import Py4JError

from penstock import App, Event, plain
from penstock.flows.engine import batch_sink, hadoop_notes, java_classes
from penstock.flows.session import open_session
from pyspark.sql import functions as F
from tests.flows.world import World

class Reading(Event):
    n: int
    at: int = 1_700_000_000_000

app = App("misfits")
app.stream("readings", Reading, time="at")

@app.view(key=["odd"])
def sums(readings):
    return readings.groupBy((F.col("n") % 2).alias("odd")).agg(F.sum("n").alias("sum"))

class Renamed(batch_sink.Handed):
    def __init__(self, jvm, file):
        super().__init__(jvm, file)
        self._write = jvm.org.apache.spark.api.python.PythonRDD.writeRenamed

if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    folder = Path(sys.argv[1])
    java_classes.jar = lambda: folder / "other.jar"
    hadoop_notes._NOTES = "renamedResource"
    batch_sink.Handed = Renamed
    there = World(open_session("misfits"), folder / "data", app)
    there.send("readings", [[Reading(n=n) for n in range(5)]])
    there.run()
    there.run()
    rows = {row["odd"]: row["sum"] for row in there.rows("sums")}
    print(json.dumps([plain.given_up(), rows, there.memory()["flow/sums"]["restarts"]]))
"""


def _jar_for_another_spark(folder: Path) -> None:
    """Its file system extends a class that this Spark does not have; nothing else is in it."""
    (folder / "Gone.java").write_text("package penstock; public class Gone {}")
    (folder / "PlainFiles.java").write_text("package penstock; public class PlainFiles extends Gone {}")
    subprocess.run(["javac", "-d", folder, folder / "Gone.java", folder / "PlainFiles.java"], check=True)
    with zipfile.ZipFile(folder / "other.jar", "w") as jar:
        jar.write(folder / "penstock" / "PlainFiles.class", "penstock/PlainFiles.class")


def test_parts_that_do_not_fit_give_up_with_one_line_each_and_flows_run(tmp_path: Path) -> None:
    _jar_for_another_spark(tmp_path)
    (tmp_path / "misfits.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, tmp_path / "misfits.py", tmp_path],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    given_up, rows, restarts = json.loads(done.stdout.splitlines()[-1])
    assert rows == {"0": 6, "1": 4}
    assert restarts == 0
    assert {"files", "one_task", "notes", "sink"} <= set(given_up)
    assert "Gone" in given_up["files"]
    assert "renamedResource" in given_up["notes"]
    assert "writeRenamed" in given_up["sink"]
    lines = [line for line in done.stderr.splitlines() if "its plain way serves" in line]
    assert len(lines) == len(given_up)
