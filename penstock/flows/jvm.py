"""Starts Spark's JVM before anything needs it, so that it boots while Python still imports.

Importing nothing of PySpark, it can be the first thing that a process does: `begun()` returns at once, and `connect()`
waits until the JVM listens. The JVM ends with this process: it reads our end of a pipe.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from penstock.errors import JavaError
from penstock.flows import classes, plain_files
from penstock.flows.nursery import Nursery
from penstock.flows.project import is_installed

_OPTIONS = (
    # Spark matches a recursive regular expression against the text of every failure; a long Python traceback
    # overflows the default stack, and then the query's thread dies without a word.
    "-Xss64m",
    # Small batches run more code than they repeat: without the optimising compiler the first rows came after 19 s
    # instead of 25, p50 freshness was 541 ms instead of 658, and catching up lost 13 % (415,000 events/s of 479,000).
    "-XX:TieredStopAtLevel=1",
)
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
        told = Path(tempfile.mkdtemp(prefix="penstock-jvm-")) / "told"
        atexit.register(shutil.rmtree, told.parent, ignore_errors=True)
        settings = {
            "spark.driver.memory": "2g",
            "spark.driver.extraJavaOptions": " ".join([*_OPTIONS, *options]),
            **plain_files.settings(),
        }
        process = subprocess.Popen(
            [str(_spark_home() / "bin" / "spark-submit"), *_words(settings), "pyspark-shell"],
            stdin=subprocess.PIPE,
            env=os.environ | {"SPARK_CONNECT_MODE": "0", "_PYSPARK_DRIVER_CONN_INFO_PATH": str(told)},
            preexec_fn=_leave_ctrl_c_to_us,  # one thread runs when this is called
        )
        return Jvm(process, told)

    def connect(self) -> None:
        """Wait until it listens, and make PySpark use it. Raises `JavaError` when it ended instead."""
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
    return Jvm.begin([*classes.used(), *options])


@cache
def nursery() -> Nursery:
    """One for as long as this process lives."""
    return Nursery.open()


def own_folders() -> list[str]:
    """Spark's Python workers find the project's own modules where this process does: beside the app file, for one."""
    return [path for path in sys.path if Path(path).is_dir() and not is_installed(Path(path).resolve())]


def _given_folders() -> list[str]:
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]


def _spark_home() -> Path:
    """Without importing it."""
    found = find_spec("pyspark")
    assert found is not None
    assert found.submodule_search_locations is not None
    return Path(os.environ.get("SPARK_HOME") or found.submodule_search_locations[0])


def _words(settings: Mapping[str, str]) -> list[str]:
    return [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]


def _leave_ctrl_c_to_us() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
