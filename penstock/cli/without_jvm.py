"""Lets an app file be imported where there is no JVM, though it calls Spark at import: `@F.udf("int")`, `F.col("x")`.

Declaring runs nothing, but PySpark asks a running JVM about types and columns as soon as they are written down. The
edge and the supervisor need only the declarations, so there everything that PySpark asks for is this stand-in. The
flows import the same file with a real session.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

_NEEDS_SESSION = ("SESSION_OR_CONTEXT_NOT_EXISTS", "AssertionError")
"""What PySpark raises without a session: an error with a name, or a bare assertion."""


def needs_spark(error: BaseException) -> bool:
    """Whether an import may have failed only because no Spark session is there."""
    return "pyspark" in sys.modules and any(word in str(error) for word in _NEEDS_SESSION)


def spark_started() -> bool:
    """Whether this process has a Spark session."""
    pyspark = sys.modules.get("pyspark")
    return pyspark is not None and pyspark.SparkContext._active_spark_context is not None


class StandIn:
    """Whatever is asked of it, it answers with itself; only the text of a type becomes a type."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self

    def _parse_ddl(self, text: str) -> Any:
        types = import_module("pyspark.sql.types")
        return types.StructType() if {" ", ":"} & set(text.strip()) else types.StringType()


@contextmanager
def stand_in() -> Iterator[None]:
    """Within this block PySpark believes in a session."""
    context = import_module("pyspark").SparkContext
    context._active_spark_context = StandIn()
    try:
        yield
    finally:
        context._active_spark_context = None
