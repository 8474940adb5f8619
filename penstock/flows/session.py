"""The one Spark session of an app, with the settings that were measured, and the lock that its JVM holds."""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext, cloudpickle
from pyspark.sql import SparkSession

from penstock import plain, spark_master
from penstock.declaration import Application
from penstock.errors import FolderHeldError
from penstock.flows.cluster_session import open_cluster_session, send_modules
from penstock.flows.engine import java_classes, jvm
from penstock.flows.engine.hadoop_notes import forget_where_settings_came_from
from penstock.flows.engine.scratch import scratch
from penstock.flows.engine.session_without_ml import begin_session

_LOCK_POLL_S = 0.05
_SOCKET_FOLDER_LONGEST = 61
"""In characters: what Spark allows, because a socket's whole path has 104 at most."""

_SETTINGS = {
    # Nobody looks at Spark's own page here, and it costs start-up time and a port.
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # Flows share the cores evenly instead of the first query starving the rest.
    "spark.scheduler.mode": "FAIR",
    # A row that cannot be computed is an error with a name, never a silent null.
    "spark.sql.ansi.enabled": "true",
    "spark.sql.join.asofJoin.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
    # Spark describes the plan of every batch to a page that nobody looks at. Where a plan's text matters
    # (fingerprint.py) it is asked for whole.
    "spark.sql.ui.explainMode": "simple",
    "spark.sql.maxPlanStringLength": "1000",
    # Between two looks for new data; Spark's default is 10.
    "spark.sql.streaming.pollingDelay": "5ms",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
    # Version 1 can load the state of a failed attempt.
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
    # A second checksum beside Hadoop's own, in a file of its own for each file of a checkpoint.
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    # What each aggregation takes before its first row; the default here is 64 MiB, five times in a small batch. From
    # 512 KiB on the garbage collector takes them for humongous, and looks through the whole heap at every batch.
    "spark.buffer.pageSize": "256k",
    # Adaptive planning has nothing to gain in small batches and costs a planning round each.
    "spark.sql.adaptive.enabled": "false",
}


_AT_HOME = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
"""Where all of Spark is on this machine."""
_CHECKPOINT_FILES = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
"""Spark's default forks about 80 processes per batch. The rename of this one is not exclusive: hence `hold`. On a
shared path, where that lock means nothing, the default stays: it makes a file only if nobody else has made it."""


def open_session(name: str, *, cores: int | None = None, optimised: bool = False) -> SparkSession:
    """Join the session of this process, or begin one; `optimised`: for few large queries instead of many small ones."""
    if SparkContext._gateway is None:
        jvm.begun(optimised=optimised).connect()
    if master := spark_master.cluster():
        return _quiet(open_cluster_session(master, name, _SETTINGS))
    classes = java_classes.load(SparkContext._jvm)
    folders = jvm.own_folders()
    jvm.nursery().search(folders)
    cores = cores or spark_master.local_cores() or os.cpu_count() or 2
    settings = {
        "spark.app.name": name,
        # One more than there are cores: views beside the steps may hang, and take no core then.
        "spark.master": f"local[{cores + 1}]",
        "spark.default.parallelism": str(cores),
        # The default of 200 costs seconds per batch; `query.py` has its own for what keeps state.
        "spark.sql.shuffle.partitions": str(min(cores, 8)),
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(folders),
        "spark.local.dir": str(scratch().inside("spark")),
        **_SETTINGS,
        **_AT_HOME,
        **({} if spark_master.shares_checkpoint() else _CHECKPOINT_FILES),
        **_sockets(),
        **({"spark.hadoop.fs.file.impl": java_classes.CLASSES["files"]} if "files" in classes else {}),
    }
    begin_session(settings)
    spark = SparkSession.builder.config(map=settings).getOrCreate()
    forget_where_settings_came_from(spark)
    for part, add in {"one_task": java_classes.add_rules, "eviction": java_classes.add_eviction}.items():
        if part in classes:
            try:
                add(spark._jsparkSession, spark._jvm)
            except (Py4JError, TypeError) as error:  # a Spark that takes rules otherwise
                plain.give_up(part, error)
    return _quiet(spark)


def _quiet(spark: SparkSession) -> SparkSession:
    spark.sparkContext.setLogLevel("ERROR")
    # PySpark prints tens of kB of JSON for each error that it raises; the error itself is enough.
    logging.getLogger("DataFrameQueryContextLogger").disabled = True
    logging.getLogger("SQLQueryContextLogger").disabled = True
    return spark


def _sockets() -> dict[str, str]:
    """Let Spark talk to its Python workers over unix sockets: over TCP an answer of two writes waits 40 ms for an
    acknowledgement that is delayed."""
    if not plain.uses("unix_sockets"):
        return {}
    folder = scratch().inside("sockets")
    if len(str(folder)) > _SOCKET_FOLDER_LONGEST:
        plain.give_up("unix_sockets", f"the path {folder} is too long for one")
        return {}
    named = "spark.python.unix.domain.socket"
    return {f"{named}.enabled": "true", f"{named}.dir": str(folder)}


def ship(application: Application) -> None:
    """Send the app file's own functions to Spark's workers by value: a worker that imported the file would declare
    the app once more, without a session."""
    for node in application.nodes:
        module = sys.modules.get(node.function.__module__)
        if module is not None and module.__name__ != "__main__" and not module.__name__.startswith("penstock."):
            cloudpickle.register_pickle_by_value(module)
    if spark_master.cluster() and application.nodes:
        send_modules(application)


def hold(spark: SparkSession, path: Path, *, timeout_s: float = 15.0) -> Any:
    """Lock the checkpoints from inside the JVM, and keep what this returns for as long as flows run.

    After a `kill -9` of the Python driver its JVM lives for a moment and may still write: only a lock that the JVM
    itself holds keeps a new driver out until it is gone.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    channel = spark._jvm.java.io.RandomAccessFile(str(path), "rw").getChannel()
    deadline = time.monotonic() + timeout_s
    while (lock := channel.tryLock()) is None:
        if time.monotonic() > deadline:
            raise FolderHeldError(
                "another process runs the flows of this data folder",
                detail=f"the lock {path} is held",
                hint="end that process, or choose another --data",
            )
        time.sleep(_LOCK_POLL_S)
    return lock
