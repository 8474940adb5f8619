"""The Java classes of our own, under `java/` beside this file, which take work out of every batch of Spark.

`PlainFiles` sets a file's permissions by a system call, where Hadoop runs `chmod`: a batch of one flow writes twelve
files, and so waited for twelve processes. `OneTask` lets few events be one task instead of three. And a class that Java
finds before Spark's own leaves out what only a Scala shell needs.

`python -m penstock.run.warmup` compiles them, `make setup` calls that; without the jar (a Java without a compiler), or
with another Spark than the one that it was compiled for, Spark works as it always does.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).with_name("java")
SETTINGS = {"spark.hadoop.fs.file.impl": "penstock.PlainFiles"}
"""What Spark must be told to use them."""


def jar() -> Path:
    """Where the jar lies: in the environment that it belongs to."""
    return Path(sys.prefix) / "share" / "penstock" / f"additions-{version('pyspark')}.jar"


def add_rules(session: Any, jvm: Any) -> None:
    """Let every query of a session be planned with ours, too."""
    rules = jvm.PythonUtils.toSeq([jvm.penstock.OneTask()])
    getattr(session.experimental(), "extraOptimizations_$eq")(rules)


def compile_jar(jars: Path) -> None:
    """Compile against Spark's jars. Raises `OSError` or `CalledProcessError` where there is no compiler."""
    with tempfile.TemporaryDirectory() as scratch:
        sources = [str(file) for file in sorted(SOURCES.glob("*.java"))]
        command = ["javac", "--release", "17", "-nowarn", "-cp", f"{jars}/*", "-d", scratch, *sources]
        subprocess.run(command, check=True, capture_output=True)
        jar().parent.mkdir(parents=True, exist_ok=True)
        made = Path(scratch) / "made.jar"
        with zipfile.ZipFile(made, "w") as archive:
            for file in sorted(Path(scratch).rglob("*.class")):
                archive.write(file, file.relative_to(scratch))
        jar().write_bytes(made.read_bytes())
