"""Does once, beside planning, what the first batch of every flow would wait for: a job, code, native libraries.

A JVM is slow where it is for the first time. Planning keeps one core busy, and this another.
"""

from __future__ import annotations

import logging
import threading

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from penstock import plain
from penstock.flows.engine.small_batches import suit

_log = logging.getLogger(__name__)


def run_first_job(spark: SparkSession) -> None:
    """Return at once. What goes wrong is told to the log alone: the first batch meets it too, and has words for it."""
    if plain.uses("first_job"):
        threading.Thread(target=_run, args=(spark,), name="first-job", daemon=True).start()


def _run(spark: SparkSession) -> None:
    try:
        spark._jvm.org.rocksdb.RocksDB.loadLibrary()
        apart = spark.newSession()  # what a flow sets for its own query does not reach it
        suit(apart.conf, few=True)
        counted = apart.range(8).groupBy((F.col("id") % 3).alias("k")).agg(F.count("*").alias("c"))
        counted._jdf.toArrowBatchRdd().toJavaRDD().collect()  # as the sink does it
    except Exception as error:
        _log.debug("the first job failed: %s", error)
