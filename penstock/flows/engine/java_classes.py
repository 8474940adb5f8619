"""The Java classes of our own, under `java/` beside this file, which take work out of every batch of Spark.

`PlainFiles` sets a file's permissions by a system call, where Hadoop runs `chmod`: a batch of one flow writes twelve
files, and so waited for twelve processes. `OneTask` lets few events be one task instead of three. `Eviction` spares
most batches the look through all groups of an aggregation. `Prepared` keeps the plans of regrouped views. And a class
that Java finds before Spark's own leaves out what only a Scala shell needs.

`python -m penstock.run.warmup` compiles them, `make setup` calls that. Without the jar (a Java without a compiler),
with another Spark than it was compiled for, or where a class cannot be loaded, Spark works as it always does.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from penstock import plain

SOURCES = Path(__file__).with_name("java")
CLASSES = {
    "closures": "org.apache.spark.util.SparkClosureCleaner$",
    "files": "penstock.PlainFiles",
    "one_task": "penstock.OneTask",
    "eviction": "penstock.Eviction",
    "prepared": "penstock.Prepared",
}
"""By the part that each is."""


def jar() -> Path:
    """Where the jar lies: in the environment that it belongs to."""
    return Path(sys.prefix) / "share" / "penstock" / f"additions-{version('pyspark')}.jar"


def class_path(spark: list[str]) -> list[str]:
    """Ours before Spark's, so that Java finds our class before the one of the same name."""
    if not jar().exists() or not any(map(plain.uses, CLASSES)):
        return spark
    return [str(jar()), *spark] if plain.uses("closures") else [*spark, str(jar())]


def load(jvm: Any) -> list[str]:
    """The parts that the JVM has, and that fit its Spark. The others give up."""
    loaded = []
    for part, name in CLASSES.items():
        if not plain.uses(part):
            continue
        if not plain.uses("launch"):
            plain.give_up(part, "it needs 'launch'")
        elif not jar().exists():
            plain.give_up(part, f"there is no {jar()}: `python -m penstock.run.warmup` compiles it")
        elif (why := _misfit(jvm, name)) is not None:
            plain.give_up(part, why)
        else:
            loaded.append(part)
    return loaded


def _misfit(jvm: Any, name: str) -> str | None:
    """Java looks for what a class needs when it is asked for its methods."""
    from py4j.protocol import Py4JJavaError

    try:
        jvm.java.lang.Class.forName(name).getMethods()
    except Py4JJavaError as error:
        return str(error.java_exception)
    return None


def add_rules(session: Any, jvm: Any) -> None:
    """Let every query of a session be planned with ours, too."""
    rules = jvm.PythonUtils.toSeq([jvm.penstock.OneTask()])
    getattr(session.experimental(), "extraOptimizations_$eq")(rules)


def add_eviction(session: Any, jvm: Any) -> None:
    """Let the queries of a session that are started from now on be planned with `Eviction`."""
    session.extensions().injectColumnar(jvm.penstock.Eviction())


def compile_jar(spark_jars: Path) -> None:
    """Compile against Spark's jars. Raises `OSError` or `CalledProcessError` where there is no compiler."""
    with tempfile.TemporaryDirectory() as scratch:
        sources = [str(file) for file in sorted(SOURCES.glob("*.java"))]
        command = ["javac", "--release", "17", "-nowarn", "-cp", f"{spark_jars}/*", "-d", scratch, *sources]
        subprocess.run(command, check=True, capture_output=True)
        jar().parent.mkdir(parents=True, exist_ok=True)
        jar().unlink(missing_ok=True)
        with zipfile.ZipFile(jar(), "w") as archive:
            for file in sorted(Path(scratch).rglob("*.class")):
                archive.write(file, file.relative_to(scratch))
