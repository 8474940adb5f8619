"""Starts Spark's JVM before anything needs it, so that it boots while Python still imports.

Importing nothing of PySpark, it can be the first thing that a process does: `begun()` returns at once, and `connect()`
waits until the JVM listens. The JVM ends with this process: it reads our end of a pipe.

Where `make setup` has left the options that Spark's launcher would give to Java, Java is started with them at once;
else, or where somebody has a Spark of their own, by `spark-submit`, which starts two shells and another JVM first.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from penstock.errors import JavaError
from penstock.flows.engine import class_archive, java_classes
from penstock.flows.engine.nursery import Nursery
from penstock.flows.engine.scratch import Scratch, scratch
from penstock.flows.project import is_installed

_OPTIONS = (
    # Spark matches a recursive regular expression against the text of every failure; a long Python traceback
    # overflows the default stack, and then the query's thread dies without a word.
    "-Xss64m",
    # Small batches run more code than they repeat: without the optimising compiler the first rows came after 19 s
    # instead of 25, p50 freshness was 541 ms instead of 658, and catching up lost 13 % (415,000 events/s of 479,000).
    "-XX:TieredStopAtLevel=1",
    # Below this, classes are no reason for a collection: Spark has loaded as much when its first batch runs.
    "-XX:MetaspaceSize=192m",
    # As with that compiler; without it Java takes 48 MiB for compiled code. Spark fills them, and a thread looks
    # through them again and again for what could go: 6 % of the CPU of small batches.
    "-XX:ReservedCodeCacheSize=240m",
    # Else a file for each JVM in /tmp, which one that is killed leaves there.
    "-XX:-UsePerfData",
)
_MEMORY = "2g"
_GATEWAY = "org.apache.spark.api.python.PythonGatewayServer"
_OF_A_SPARK = ("SPARK_HOME", "SPARK_CONF_DIR", "SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS")
"""Who sets one of these has files or options that only `spark-submit` reads."""
_POLL_S = 0.02
_LONGEST_S = 120.0


class Jvm:
    """One that was started; `connect` lets PySpark use it."""

    def __init__(self, process: subprocess.Popen[bytes], told: Path) -> None:
        self._process = process
        self._told = told

    @staticmethod
    def begin(options: Sequence[str]) -> Jvm:
        """Start it with these options besides those that it always has."""
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = nursery().python
        os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*own_folders(), *_given_folders()]))
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        place = scratch()
        told = place.path / "told"
        process = subprocess.Popen(
            _command([*_OPTIONS, f"-Djava.io.tmpdir={place.inside('java')}", *options], _settings(place)),
            stdin=subprocess.PIPE,
            pass_fds=[place.held],
            env=os.environ | _locale() | {"SPARK_CONNECT_MODE": "0", "_PYSPARK_DRIVER_CONN_INFO_PATH": str(told)},
            preexec_fn=_leave_ctrl_c_to_us,  # one thread runs when this is called
        )
        return Jvm(process, told)

    def connect(self) -> None:
        """Wait until it listens, and make PySpark use it. Raises `JavaError` when it ended instead."""
        import pandas  # noqa: F401  Arrow imports it with the first value that it converts: the first batch would wait
        from pyspark import SparkContext

        port, secret = self._address()
        os.environ |= {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
        try:
            SparkContext._ensure_initialized()
        finally:
            del os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"]

    def end(self) -> None:
        """Let it end, and wait for what it does last."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(_LONGEST_S)

    def kill(self) -> None:
        """End it where it stands. What it has written is the system's, and as whole as after any `kill -9`."""
        self._process.kill()
        self._process.wait(_LONGEST_S)

    def _address(self) -> tuple[int, str]:
        """As it wrote them into a file that appears whole: a port, and the length and text of a secret."""
        deadline = time.monotonic() + _LONGEST_S
        while not self._told.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._process.kill()
                self.end()
                raise JavaError(
                    "Spark's JVM ended before it was ready",
                    detail=f"its exit code is {self._process.returncode}",
                    hint="look at what it wrote above, or in logs/flows.log of the data folder",
                )
            time.sleep(_POLL_S)
        told = self._told.read_bytes()
        return int.from_bytes(told[:4], "big"), told[8:].decode()


@cache
def begun(*options: str) -> Jvm:
    """The JVM of this process: started at the first call, with these options besides those that it always has."""
    return Jvm.begin([*class_archive.used(), *options])


@cache
def nursery() -> Nursery:
    """One for as long as this process lives."""
    return Nursery.open(scratch())


def own_folders() -> list[str]:
    """Spark's Python workers find the project's own modules where this process does: beside the app file, for one."""
    return [path for path in sys.path if Path(path).is_dir() and not is_installed(Path(path).resolve())]


def _given_folders() -> list[str]:
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]


def _locale() -> dict[str, str]:
    """Under LC_ALL=C Java cannot name a folder with other letters than ASCII, and dies when it is started in one."""
    return {"LC_ALL": "C.UTF-8"} if os.environ.get("LC_ALL") in ("C", "POSIX") else {}


def _settings(place: Scratch) -> dict[str, str]:
    return {"spark.local.dir": str(place.inside("spark")), **(java_classes.SETTINGS if added() else {})}


def plain() -> bool:
    """Whether what is started is Spark as it came, by our own command; else it may have anything on its class path."""
    return class_archive.launch_options() is not None and not any(name in os.environ for name in _OF_A_SPARK)


def added() -> bool:
    """Whether it has our own classes, too."""
    return plain() and java_classes.jar().exists()


def _command(options: Sequence[str], settings: Mapping[str, str]) -> list[str]:
    """Java itself, with the gateway that PySpark talks to; or what leads to the same on any other Spark."""
    if not plain():
        return _submitted(options, settings)
    before = [str(jar) for jar in (java_classes.jar(), class_archive.compiler()) if jar.exists()]
    return [
        _java(),
        "-cp",
        os.pathsep.join([*before, f"{spark_home()}/jars/*"]),
        f"-Xmx{_MEMORY}",
        *(class_archive.launch_options() or ()),
        *options,
        *(f"-D{key}={value}" for key, value in settings.items()),
        _GATEWAY,
    ]


def _submitted(options: Sequence[str], settings: Mapping[str, str]) -> list[str]:
    said = {
        **settings,
        "spark.driver.memory": _MEMORY,
        "spark.driver.extraJavaOptions": _joined(options),
    }
    words = [word for key, value in said.items() for word in ("--conf", f"{key}={value}")]
    return [str(spark_home() / "bin" / "spark-submit"), *words, "pyspark-shell"]


def _joined(options: Sequence[str]) -> str:
    """As Spark's launcher takes them apart again."""
    return " ".join(f'"{option}"' if " " in option else option for option in options)


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else "java"


def spark_home() -> Path:
    """Without importing it."""
    found = find_spec("pyspark")
    assert found is not None
    assert found.submodule_search_locations is not None
    return Path(os.environ.get("SPARK_HOME") or found.submodule_search_locations[0])


def _leave_ctrl_c_to_us() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
