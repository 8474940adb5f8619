"""Lets Hadoop forget which file each of its settings is from: every batch would send these notes with its states."""

from __future__ import annotations

from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from penstock import plain

_READERS_OF_SETTINGS = ("org.apache.hadoop.mapred.JobConf", "org.apache.hadoop.hdfs.HdfsConfiguration")
"""Classes that add files of settings when they are loaded, which makes Hadoop read all of them anew."""
_NOTES = "updatingResource"
"""A private field of Hadoop's `Configuration`."""


def forget_where_settings_came_from(spark: SparkSession) -> None:
    """Hadoop has 1,100 settings and notes of each which file it is from. Every batch sends all of them for each of its
    states, and Hadoop compresses every note by itself."""
    if not plain.uses("notes"):
        return
    find: Any = spark._jvm.java.lang.Class.forName
    settings = spark.sparkContext._jsc.hadoopConfiguration()
    try:
        for reader in _READERS_OF_SETTINGS:
            find(reader)
        settings.size()  # they are read, and noted, when somebody asks
        notes = find("org.apache.hadoop.conf.Configuration").getDeclaredField(_NOTES)
        notes.setAccessible(True)
        # Another map: to py4j this one is a dict of Python's, which clears itself by a thousand removals.
        notes.set(settings, spark._jvm.java.util.concurrent.ConcurrentHashMap())
    except Py4JJavaError as error:  # another Hadoop: it works, with more to do in each batch
        plain.give_up("notes", error.java_exception)
