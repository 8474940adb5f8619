"""The JVM of this process. We start Java ourselves, before anything is imported; the plain way is PySpark's launcher.

Importing nothing of PySpark, this can be the first thing that a process does: `begun()` returns at once, and
`connect()` waits until the JVM listens. The JVM ends with this process: it reads our end of a pipe.

PySpark runs `spark-submit`, which starts two shells and another JVM first, to ask for Java's options. Where they are
known from `make setup`, Java is started with them at once. Who has a Spark of their own gets PySpark's launcher.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from penstock import plain, spark_master
from penstock.errors import JavaError
from penstock.flows.engine import class_archive, java_classes
from penstock.flows.engine.nursery import Nursery
from penstock.flows.engine.scratch import Scratch, scratch
from penstock.flows.project import is_installed

_STACK = "-Xss64m"
"""Spark matches a recursive regular expression against the text of every failure; a long Python traceback overflows the
default stack, and then the query's thread dies without a word."""
_SMALL_BATCHES = "-XX:TieredStopAtLevel=1"
"""Small batches run more code than they repeat: without the optimising compiler the first rows came after 19 s instead
of 25, p50 freshness was 541 ms instead of 658, and catching up lost 13 % (415,000 events/s of 479,000)."""
_OPTIONS = (
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
    """One that was started by us, or that `connect` has PySpark start; then PySpark uses it."""

    def __init__(self, options: list[str], place: Scratch, process: subprocess.Popen[bytes] | None) -> None:
        self._options = options
        self._place = place
        self._process = process

    @staticmethod
    def begin(*, optimised: bool = False, record: Path | None = None) -> Jvm:
        """Start it, if it is ours to start.

        `optimised`: with Java's optimising compiler, which halves the CPU of each row of a large query. `record`: let
        it write the archive of its classes there when it ends.
        """
        if spark_master.cluster():  # which Python is on its workers is for its owner to say
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        else:
            os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = nursery().python
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*own_folders(), *_given_folders()]))
        place = scratch()
        options = [_STACK, f"-Djava.io.tmpdir={place.inside('java')}"]
        if plain.uses("options"):
            options += [*_OPTIONS, *(() if optimised else (_SMALL_BATCHES,))]
        if not plain.uses("launch") or misfit() is not None:
            return Jvm(options, place, None)
        archive = class_archive.recorded(record) if record else class_archive.used()
        return Jvm(options, place, _start([*options, *archive], place))

    @property
    def ours(self) -> bool:
        """Whether it has the class path that we gave it."""
        return plain.uses("launch") and self._process is not None

    def connect(self) -> None:
        """Wait until it listens, and make PySpark use it. Raises `JavaError` when none can be had."""
        import pandas  # noqa: F401  Arrow imports it with the first value that it converts: the first batch would wait
        from pyspark import SparkContext

        if self._process is None:
            plain.give_up("launch", misfit())
            return self._submit()
        try:
            port, secret = self._address(self._process)
        except JavaError as error:
            plain.give_up("launch", f"{error}: {error.detail}")
            return self._submit()
        os.environ |= {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
        try:
            SparkContext._ensure_initialized()
        finally:
            del os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"]
        return None

    def _submit(self) -> None:
        """PySpark's own way, which tells it by the way that it has started it."""
        from pyspark import SparkConf, SparkContext
        from pyspark.errors import PySparkRuntimeError
        from pyspark.java_gateway import launch_gateway

        settings = SparkConf(loadDefaults=False)
        settings.set("spark.driver.memory", _MEMORY)
        if master := spark_master.cluster():
            settings.set("spark.master", master)
        settings.set("spark.driver.extraJavaOptions", " ".join(map(_quoted, self._options)))
        try:
            with _locale(), _temporary(self._place):
                gateway = launch_gateway(settings, {"pass_fds": [self._place.held]})
        except (PySparkRuntimeError, OSError) as error:
            raise _not_ready(str(error)) from error
        self._process = gateway.proc
        SparkContext._ensure_initialized(gateway=gateway)

    def end(self) -> None:
        """Let it end, and wait for what it does last."""
        if self._process is not None:
            if self._process.stdin is not None:
                self._process.stdin.close()
            self._process.wait(_LONGEST_S)

    def kill(self) -> None:
        """End it where it stands. What it has written is the system's, and as whole as after any `kill -9`."""
        if self._process is not None:
            self._process.kill()
            self.end()

    def _address(self, process: subprocess.Popen[bytes]) -> tuple[int, str]:
        """As it wrote them into a file that appears whole: a port, and the length and text of a secret."""
        told = _told(self._place)
        deadline = time.monotonic() + _LONGEST_S
        while not told.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise _not_ready(f"its exit code is {process.returncode}")
            time.sleep(_POLL_S)
        words = told.read_bytes()
        return int.from_bytes(words[:4], "big"), words[8:].decode()


@cache
def begun(*, optimised: bool = False) -> Jvm:
    """The JVM of this process: started at the first call."""
    return Jvm.begin(optimised=optimised)


@cache
def nursery() -> Nursery:
    """One for as long as this process lives."""
    return Nursery.open(scratch())


def misfit() -> str | None:
    """Why Java is not ours to start, if it is not."""
    if given := [name for name in _OF_A_SPARK if name in os.environ]:
        return f"{given[0]} is set, so this may be another Spark than ours"
    if class_archive.launch_options() is None:
        return "Java's options for this pyspark are not known: `python -m penstock.run.warmup` asks for them"
    return None


def own_folders() -> list[str]:
    """Spark's Python workers find the project's own modules where this process does: beside the app file, for one."""
    return [path for path in sys.path if Path(path).is_dir() and not is_installed(Path(path).resolve())]


def _given_folders() -> list[str]:
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]


def _start(options: list[str], place: Scratch) -> subprocess.Popen[bytes]:
    """Java itself, with the gateway that PySpark talks to."""
    class_path = java_classes.class_path([*class_archive.compiler_jars(), f"{spark_home()}/jars/*"])
    launcher = class_archive.launch_options() or ()
    with _locale():
        return subprocess.Popen(
            [_java(), "-cp", os.pathsep.join(class_path), f"-Xmx{_MEMORY}", *launcher, *options, _GATEWAY],
            stdin=subprocess.PIPE,
            pass_fds=[place.held],
            env=os.environ | {"SPARK_CONNECT_MODE": "0", "_PYSPARK_DRIVER_CONN_INFO_PATH": str(_told(place))},
            preexec_fn=_leave_ctrl_c_to_us,  # one thread runs when this is called
        )


def _told(place: Scratch) -> Path:
    """Where the JVM says how it can be reached."""
    return place.path / "told"


def _not_ready(detail: str) -> JavaError:
    return JavaError(
        "Spark's JVM ended before it was ready",
        detail=detail,
        hint="look at what it wrote above, or in logs/flows.log of the data folder",
    )


@contextmanager
def _locale() -> Iterator[None]:
    """Under LC_ALL=C Java cannot name a folder with other letters than ASCII, and dies when it is started in one."""
    given = os.environ.get("LC_ALL")
    if given not in ("C", "POSIX"):
        yield
        return
    os.environ["LC_ALL"] = "C.UTF-8"
    try:
        yield
    finally:
        os.environ["LC_ALL"] = given


@contextmanager
def _temporary(place: Scratch) -> Iterator[None]:
    """What is made here for a moment is gone with the scratch folder, however this process ends."""
    before, tempfile.tempdir = tempfile.tempdir, str(place.path)
    try:
        yield
    finally:
        tempfile.tempdir = before


def _quoted(option: str) -> str:
    """As Spark's launcher takes options apart again."""
    return f'"{option}"' if " " in option else option


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else "java"


def spark_home() -> Path:
    """Without importing it."""
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(os.environ.get("SPARK_HOME") or spec.submodule_search_locations[0])


def _leave_ctrl_c_to_us() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
