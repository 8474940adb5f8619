"""Plans that Spark accepts and that would still give wrong views: refused here, each with what to write instead.

Update mode never emits deletes: a row that a filter above an aggregation lets go of stays in the view for ever. So
what stands above an aggregation may only compute columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pyspark.sql import DataFrame, SparkSession

from penstock.declaration import FlowDef, Node, Problem, ViewDef
from penstock.flows import tree

Mode = Literal["update", "append"]
ABOVE = "above_aggregation"

_ABOVE = {
    "Filter": "use where= on @app.view: a row that fails it is deleted from the view",
    "GlobalLimit": "use limit= on @app.view: it is a default of each read",
    "LocalLimit": "use limit= on @app.view: it is a default of each read",
    "Sort": "use order_by= on @app.view: it is a default of each read",
    "Join": "join before the aggregation, or in a @app.flow before this one",
    "Generate": "explode before the aggregation; the top n inside a row is max_by(x, y, n)",
}


def output_mode(spark: SparkSession, node: Node, frame: DataFrame) -> tuple[Mode | None, str]:
    """The mode a query runs in (a view: update, else append; a flow: append), or None and what Spark says."""
    modes: tuple[Mode, ...] = ("update", "append") if isinstance(node, ViewDef) else ("append",)
    said = {mode: _spark_refuses(spark, frame, mode) for mode in modes}
    mode = next((mode for mode in modes if not said[mode]), None)
    return mode, said[modes[0]]


def _spark_refuses(spark: SparkSession, frame: DataFrame, mode: str) -> str:
    jvm: Any = spark._jvm
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    try:
        checker.checkForStreaming(tree.analyzed(frame), getattr(modes, mode.capitalize())())
    except Exception as error:
        return str(error).split(";")[0].split("\n")[0]
    return ""


def refused(node: Node, frame: DataFrame, delays_us: set[int]) -> Iterator[Problem]:
    """What is wrong with a plan. In append mode rows are final, and what `ABOVE` names is allowed.

    A watermark of ours stands directly above the log with one of `delays_us`; any other one is the user's.
    """
    plan = tree.analyzed(frame)
    marks = [n for n in tree.nodes(plan) if tree.kind(n) == "EventTimeWatermark"]
    if any(not (tree.is_log(mark.child()) and tree.delay_us(mark) in delays_us) for mark in marks):
        yield Problem(
            "error",
            "own_watermark",
            f"'{node.name}' calls withWatermark",
            node.place,
            "remove it and declare late_after= on the stream: lateness is decided in the log, the same for every flow",
        )
    if isinstance(node, ViewDef):
        for name in sorted({n for n in _above_aggregation(plan) if n in _ABOVE}):
            what = "Limit" if name.endswith("Limit") else name
            yield Problem(
                "error",
                ABOVE,
                f"'{node.name}' has a {what} above an aggregation, and Spark would leave stale rows in the view",
                node.place,
                _ABOVE[name],
            )


def _above_aggregation(plan: tree.Plan) -> Iterator[str]:
    """Kinds of the nodes that have a streaming aggregation somewhere below them."""
    for node in tree.nodes(plan):
        below = [n for child in tree.items(node.children()) for n in tree.nodes(child)]
        if any(tree.kind(n) == "Aggregate" and n.isStreaming() for n in below):
            yield tree.kind(node)


def column_problems(node: Node, frame: DataFrame) -> Iterator[Problem]:
    """A key, time or order that is not a column; a time of the wrong type; keep without a time."""
    types = {f.name: f.dataType.simpleString() for f in frame.schema.fields}
    has = f"its columns are {', '.join(types)}"
    for name in node.key:
        if name not in types:
            yield _error("unknown_column", f"key='{name}' of '{node.name}' is not a column", node, has)
    if isinstance(node, FlowDef):
        if node.time is not None and node.time not in types:
            yield _error("unknown_column", f"time='{node.time}' of '{node.name}' is not a column", node, has)
        elif node.time is not None and types[node.time] not in ("timestamp", "bigint"):
            yield _error(
                "bad_time",
                f"time='{node.time}' of '{node.name}' is {types[node.time]}",
                node,
                "a time is a timestamp, or a bigint of milliseconds since 1970",
            )
        return
    for name in node.order_by:
        if name.lstrip("-").split(".")[0] not in types:
            yield _error("unknown_column", f"order_by='{name}' of '{node.name}' is not a column", node, has)
    if node.keep_us is not None and row_time(types) is None:
        yield _error(
            "keep_without_time",
            f"'{node.name}' has keep=, but its rows have no time",
            node,
            "give it a column 'window' from F.window(...), or a timestamp column '_time'",
        )


def row_time(types: dict[str, str]) -> str | None:
    """The column that tells how old a row is: the end of its window, else its `_time`."""
    if types.get("window") == "struct<start:timestamp,end:timestamp>":
        return "window"
    return "_time" if types.get("_time") == "timestamp" else None


def _error(code: str, message: str, node: Node, hint: str) -> Problem:
    return Problem("error", code, message, node.place, hint)
