"""Keeps Spark from starting a process for every file of a checkpoint: Hadoop sets permissions by running `chmod`.

A batch of one flow writes twelve files, and so waited for twelve processes. `PlainFiles.java` beside this file sets
permissions by a system call. `python -m penstock.cli.warm` compiles it, `make setup` calls that; without the jar (a
Java without a compiler) Spark works as it always does.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from importlib.metadata import version
from pathlib import Path

SOURCE = Path(__file__).with_name("PlainFiles.java")


def jar() -> Path:
    """Where the jar lies: in the environment that it belongs to."""
    return Path(sys.prefix) / "share" / "penstock" / f"plain-files-{version('pyspark')}.jar"


def settings() -> dict[str, str]:
    """What Spark must be told to use it, if it is there and on the class path."""
    return {"spark.hadoop.fs.file.impl": "penstock.PlainFiles"} if jar().exists() else {}


def compile_jar(jars: Path) -> None:
    """Compile against Spark's jars. Raises `OSError` or `CalledProcessError` where there is no compiler."""
    with tempfile.TemporaryDirectory() as scratch:
        command = ["javac", "--release", "17", "-nowarn", "-cp", f"{jars}/*", "-d", scratch, str(SOURCE)]
        subprocess.run(command, check=True, capture_output=True)
        jar().parent.mkdir(parents=True, exist_ok=True)
        made = Path(scratch) / "made.jar"
        with zipfile.ZipFile(made, "w") as archive:
            for file in sorted(Path(scratch).rglob("*.class")):
                archive.write(file, file.relative_to(scratch))
        jar().write_bytes(made.read_bytes())
