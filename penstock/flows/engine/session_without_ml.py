"""Lets a session begin without Spark's functions for machine learning, which few flows use and every start waits for.

Spark registers three of them with each new session, and reads Scala's own reflection for it: a twelfth of the CPU that
the JVM takes from its start to the first batch. Here that happens when `pyspark.ml` is imported, by whichever module of
the app, and at once where it has been.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from penstock import plain

_MODULE = "pyspark.ml"
_REGISTERS = "org.apache.spark.sql.ml.InternalFunctionRegistration$"


def begin_session(settings: Mapping[str, str]) -> None:
    """Begin the first session of this process, which PySpark's builder finds then, as Spark's own constructor does, but
    without looking for extensions: PySpark brings none but that of machine learning. Nothing is begun of another Spark.
    """
    if SparkContext._active_spark_context is not None or not plain.uses("ml") or not plain.uses("launch"):
        return
    context = SparkContext.getOrCreate(SparkConf().setAll(list(settings.items())))
    java: Any = context._jvm
    none, nothing = java.scala.Option.empty(), java.PythonUtils.toScalaMap({})
    try:
        extensions = java.org.apache.spark.sql.SparkSessionExtensions()
        session = java.org.apache.spark.sql.classic.SparkSession(
            context._jsc.sc(), none, none, extensions, nothing, nothing
        )
    except (Py4JError, TypeError) as error:  # a Spark whose session is made otherwise: PySpark's builder makes it
        plain.give_up("ml", error)
        return
    SparkSession(context, session)
    if _MODULE in sys.modules:
        _register()
    elif not any(isinstance(finder, _Noticed) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Noticed())


def _register() -> None:
    """What Spark does with each new session; done again it does nothing."""
    if (context := SparkContext._active_spark_context) is not None:
        java: Any = context._jvm
        java.java.lang.Class.forName(_REGISTERS)


class _Noticed(MetaPathFinder):
    """Sees that `pyspark.ml` is about to be imported, and leaves finding it to others."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == _MODULE:
            _register()
        return None
