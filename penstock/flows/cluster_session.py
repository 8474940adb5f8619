"""A session on a Spark cluster: what it needs of the workers is looked at first, and told in one paragraph.

The driver is this process. Executors read Kafka themselves, by what each split says of its blocks (`source.py`), and
keep their state under the checkpoint, which driver and workers see under one path. Installed packages (Penstock,
PyArrow, confluent-kafka) must be on the workers; the project's own modules are sent to them.
"""

from __future__ import annotations

import importlib
import re
import socket
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyspark
from py4j.protocol import Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from penstock import spark_master
from penstock.declaration import Application
from penstock.errors import ClusterError, WorkerError
from penstock.flows.engine.scratch import scratch
from penstock.flows.project import project_sources

_MASTER_S = 30.0
_EXECUTOR_S = 120.0
_POLL_S = 0.1
_NEEDED = ("penstock.flows.source", "penstock.log.logs.kafka_cluster")
"""What a worker imports, with all that these import."""
_YOURS = (
    "spark.ui.enabled",
    "spark.scheduler.mode",
    "spark.buffer.pageSize",
    "spark.sql.shuffle.partitions",
)
"""Settings of ours that `spark-defaults.conf` overrides; all that we do not set stand there anyway."""
_INSTALL = "pip install 'penstock[kafka]=={version}' for the Python that PYSPARK_PYTHON names, on every worker"


def _version() -> str:
    return str(importlib.import_module("penstock").__version__)


class Worker(NamedTuple):
    """What an executor says of itself."""

    host: str
    python: str
    missing: str
    penstock: str
    spark: str
    sees: bool


def open_cluster_session(master: str, name: str, settings: Mapping[str, str]) -> SparkSession:
    """Raises `ClusterError` when the master does not answer."""
    _reach(master)
    given = dict(SparkConf().getAll())
    ours = {"spark.sql.shuffle.partitions": "8", **settings}
    yours = {key: given[key] for key in _YOURS if key in given}
    try:
        return SparkSession.builder.config(
            map={**ours, **yours, "spark.app.name": name, "spark.master": master}
        ).getOrCreate()
    except Py4JJavaError as error:
        raise ClusterError(
            f"the master '{master}' takes no application",
            detail=str(error.java_exception).split("\n")[0],
            hint=f"see its log; it must run Spark {pyspark.__version__}, as this process does",
        ) from error


def _reach(master: str) -> None:
    """A standalone master that is not there costs Spark a minute and a stopped context."""
    addresses = re.findall(r"([^/,]+):(\d+)", master) if master.startswith("spark://") else []
    deadline = time.monotonic() + _MASTER_S
    while addresses:
        for host, port in addresses:
            try:
                socket.create_connection((host, int(port)), 5).close()
                return
            except OSError as error:
                why = error
        if time.monotonic() > deadline:
            raise ClusterError(
                f"the master '{master}' does not answer", detail=str(why), hint="start it, or name another: --master"
            )
        time.sleep(_POLL_S)


# The workers


def check_workers(spark: SparkSession, master: str, checkpoints: Path) -> None:
    """See that executors are given, and that each has what flows need. Raises `ClusterError` or `WorkerError`."""
    context = spark.sparkContext
    _await_executor(context, master)
    checkpoints.mkdir(parents=True, exist_ok=True)
    tasks = 2 * context.defaultParallelism
    try:
        seen = context.parallelize(range(tasks), tasks).mapPartitions(_look(str(checkpoints))).collect()
    except Py4JJavaError as error:
        raise unfit(str(error)) or ClusterError(
            f"the workers of '{master}' cannot run Python",
            detail=str(error.java_exception).split("\n")[0],
            hint="see the executors' logs on the workers",
        ) from error
    for worker in set(seen):
        _judge(worker, checkpoints)


def look_at_cluster(spark: SparkSession) -> None:
    """Raises `ClusterError` when the cluster has ended this application, so that the next driver asks for another."""
    master = spark_master.cluster()
    if master and spark.sparkContext._jsc.sc().isStopped():
        raise ClusterError(
            f"'{master}' has ended the application",
            detail="no worker could keep an executor, or somebody stopped it",
            hint="see the master's page and the executors' logs",
        )


def _await_executor(context: SparkContext, master: str) -> None:
    """The driver is counted among them."""
    deadline = time.monotonic() + _EXECUTOR_S
    tracker = context._jsc.sc().statusTracker()
    while len(tracker.getExecutorInfos()) < 2:
        if time.monotonic() > deadline:
            raise ClusterError(
                f"'{master}' has given no executor within {_EXECUTOR_S:g} s",
                detail="no worker has the cores and the memory that are asked for, or none can reach this machine",
                hint="see the master's page; set spark.executor.memory and spark.cores.max in spark-defaults.conf, and"
                " SPARK_LOCAL_IP to an address of this machine that workers reach",
            )
        time.sleep(_POLL_S)


def _look(checkpoints: str) -> Callable[[Iterable[Any]], Iterator[Worker]]:
    """What runs on a worker is sent whole, and so must be no function of this module: it may not be there."""
    needed, kind = _NEEDED, tuple

    def look(_: Iterable[Any]) -> Iterator[Any]:
        import importlib
        import os
        import platform

        import pyspark as spark

        missing, version = "", ""
        try:
            for name in needed:
                importlib.import_module(name)
            version = importlib.import_module("penstock").__version__
        except Exception as error:
            missing = f"{type(error).__name__}: {error}"
        sees = os.access(checkpoints, os.R_OK | os.W_OK)
        yield kind((platform.node(), platform.python_version(), missing, version, spark.__version__, sees))

    return look


def _judge(facts: Iterable[Any], checkpoints: Path) -> None:
    worker, version = Worker(*facts), _version()
    if worker.missing:
        raise WorkerError(
            f"the worker '{worker.host}' cannot import what flows need",
            detail=f"Python {worker.python} there says {worker.missing}",
            hint=_INSTALL.format(version=version),
        )
    if (worker.penstock, worker.spark) != (version, pyspark.__version__):
        raise WorkerError(
            f"the worker '{worker.host}' has other versions than this machine",
            detail=f"there: Penstock {worker.penstock}, Spark {worker.spark};"
            f" here: Penstock {version}, Spark {pyspark.__version__}",
            hint=_INSTALL.format(version=version),
        )
    if not worker.sees:
        raise WorkerError(
            f"the worker '{worker.host}' cannot write to '{checkpoints}'",
            detail="driver and workers keep the state of flows there",
            hint="name a folder that is mounted on all of them under the same path: --checkpoint PATH",
        )


_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '([^']+)'")
_OTHER_PYTHON = re.compile(r"PYTHON_VERSION_MISMATCH\][^\n]*")
_NO_PYTHON = re.compile(r'Cannot run program "([^"]+)"')


def unfit(text: str) -> WorkerError | None:
    """What Spark's account of a failure says of the Python on a worker, if that is what it is about."""
    if match := _NO_PYTHON.search(text):
        return WorkerError(
            f"a worker has no Python '{match[1]}'",
            detail="Spark starts the Python of this process there, by its path",
            hint="install it there, or name one that driver and workers have under the same path: PYSPARK_PYTHON",
        )
    if match := _OTHER_PYTHON.search(text):
        return WorkerError(
            "a worker has another Python than this machine",
            detail=match[0].removeprefix("PYTHON_VERSION_MISMATCH]").strip(),
            hint="install the same minor version there, and name it for driver and workers: PYSPARK_PYTHON",
        )
    if match := _NO_MODULE.search(text):
        return WorkerError(
            f"a worker cannot import '{match[1]}'",
            detail="modules of your own project are sent to workers; what pip installs is not",
            hint=_INSTALL.format(version=_version()) + ", with what else the app imports",
        )
    return None


# The project


def send_modules(application: Application) -> None:
    """Let executors import the modules that lie beside the app file. The app file itself goes with its functions."""
    context = SparkContext._active_spark_context
    sources = {entry for node in application.nodes for entry in project_sources(node.function) if entry[0]}
    if context is None or not sources:
        return
    context.addPyFile(str(write_modules(sources, scratch().inside("modules") / f"{application.name}.zip")))


def write_modules(sources: Iterable[tuple[str, Path]], archive: Path) -> Path:
    """Modules by their names as an archive that Python imports from."""
    with zipfile.ZipFile(archive, "w") as made:
        for name, path in sorted(sources):
            if path.suffix == ".py":
                made.write(path, _inside(name, path))
        folders = {str(p) for inside in made.namelist() for p in Path(inside).parents if str(p) != "."}
        for folder in sorted(folders):
            made.mkdir(folder)
    return archive


def _inside(name: str, path: Path) -> str:
    parts = name.split(".")
    return "/".join([*parts, "__init__.py"] if path.name == "__init__.py" else [*parts[:-1], f"{parts[-1]}.py"])
