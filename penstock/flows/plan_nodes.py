"""What is known of each kind of node that Spark's plans are made of, in one table.

The rules, the order of rows, the fingerprint and the proof are all read from it. A kind that is not in the table is
not known, and everybody takes the safe side: it is refused above an aggregation, its rows are in no order, its code
is part of the fingerprint, and no view that holds it is proved.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

_BEFORE = "compute only columns above an aggregation, and do this before it, or in a @app.flow before this one"
_JOIN = "join before the aggregation, or in a @app.flow before this one"
_LIMIT = "use limit= on @app.view: it is a default of each read"
_DISTINCT = "leave it out, a group is one row; or call dropDuplicates before the aggregation"
TWICE = (
    "aggregate once, or with a window in both over a stream with late_after=, so that the second aggregates what the "
    "first has closed; in place of pivot write sum(when(kind = 'buy', amount)) for each value"
)
TOP = "the newest or largest n of each key are max_by(x, y, n); order_by= and limit= are for readers"


@dataclass(frozen=True)
class NodeKind:
    """One kind of node. The defaults are what holds of a kind that nobody has looked at."""

    rows: Literal["same", "fewer", "other"] = "other"
    """What it gives for the rows that it gets: the same with other columns, some of them, or other ones."""
    in_order: bool = False
    """It hands rows on in the order in which they came."""
    exact: bool = False
    """What it gives depends on the events alone: not on their order, their batches, the time of day or chance."""
    beside: Literal["nothing", "rows", "files", "options", "source"] = "source"
    """What says, beside the text of the plan, what it gives. Of a leaf that is not known, its rows say it too."""
    evicts: bool = True
    """It may hold state that event time evicts."""
    instead: str = _BEFORE
    """What to write instead where it stands above an aggregation and does not give the same rows."""


UNKNOWN = NodeKind()
_COLUMNS = NodeKind("same", in_order=True, exact=True, beside="nothing", evicts=False)
_MOVED = replace(_COLUMNS, in_order=False)
_OTHER = NodeKind(beside="nothing", evicts=False)
_SETS = NodeKind(beside="nothing")
_FEWER = replace(_OTHER, rows="fewer")
_LEAF = replace(_OTHER, exact=True)
_PYTHON = NodeKind(evicts=False)

NODES: dict[str, NodeKind] = {
    # What computes columns, or nothing at all
    "Project": _COLUMNS,
    "SubqueryAlias": _COLUMNS,
    "View": _COLUMNS,
    "SQLFunctionNode": _COLUMNS,
    "PipeOperator": _COLUMNS,
    "LimitAll": _COLUMNS,
    "ResolvedHint": _COLUMNS,
    "CollectMetrics": _COLUMNS,
    "EventTimeWatermark": _COLUMNS,
    "UpdateEventTimeWatermarkColumn": _COLUMNS,
    "Repartition": _MOVED,
    "RepartitionByExpression": _MOVED,
    "RebalancePartitions": _MOVED,
    "Union": _MOVED,
    # What leaves rows out
    "Filter": replace(
        _FEWER,
        in_order=True,
        exact=True,
        instead="use where= on @app.view: a row that fails it is deleted from the view",
    ),
    "GlobalLimit": replace(_FEWER, instead=_LIMIT),
    "LocalLimit": replace(_FEWER, instead=_LIMIT),
    "Offset": replace(_FEWER, instead=_LIMIT),
    "Sample": replace(_FEWER, instead="sample the events, before the aggregation: where(pmod(hash(id), 10) = 0)"),
    "Deduplicate": replace(_FEWER, exact=True, evicts=True, instead=_DISTINCT),
    "DeduplicateWithinWatermark": replace(_FEWER, evicts=True, instead=_DISTINCT),
    "Distinct": replace(_FEWER, exact=True, evicts=True, instead=_DISTINCT),
    # What gives other rows
    "Aggregate": NodeKind(exact=True, beside="nothing", instead=TWICE),
    "Join": NodeKind(exact=True, beside="nothing", instead=_JOIN),
    "AsOfJoin": replace(_SETS, instead=_JOIN),
    "NearestByJoin": replace(_SETS, instead=_JOIN),
    "LateralJoin": replace(_OTHER, instead="use LATERAL before the aggregation, or in a @app.flow before this one"),
    "Generate": replace(
        _OTHER,
        in_order=True,
        exact=True,
        instead="explode before the aggregation; the top n inside a row is max_by(x, y, n)",
    ),
    "Expand": replace(
        _OTHER, exact=True, instead="unpivot before the aggregation, and group by the column of the names too"
    ),
    "Sort": replace(_OTHER, instead="use order_by= on @app.view: it is a default of each read"),
    "Window": replace(_OTHER, instead=TOP),
    "Except": _SETS,
    "Intersect": _SETS,
    "SequentialStreamingUnion": _SETS,
    "UnionLoop": _SETS,
    "WithCTE": _SETS,
    "CTERelationDef": _SETS,
    "Zip": _SETS,
    "BinBy": _SETS,
    # What the user's own code computes
    "MapInPandas": replace(
        _PYTHON,
        in_order=True,
        instead="compute columns with a pandas_udf, and say with where= on @app.view which rows stay",
    ),
    "MapInArrow": replace(
        _PYTHON,
        in_order=True,
        instead="compute columns with an arrow_udf, and say with where= on @app.view which rows stay",
    ),
    "FlatMapGroupsInPandas": _PYTHON,
    "FlatMapGroupsInArrow": _PYTHON,
    "FlatMapCoGroupsInPandas": _PYTHON,
    "FlatMapCoGroupsInArrow": _PYTHON,
    "FlatMapGroupsInPandasWithState": UNKNOWN,
    "TransformWithStateInPySpark": UNKNOWN,
    "TransformWithStateInPandas": UNKNOWN,
    # Where rows come from: the log or another source (`plan_tree.is_log` tells them apart), the app itself, a table
    "StreamingRelationV2": replace(_LEAF, beside="options"),
    "DataSourceV2Relation": replace(_LEAF, beside="options"),
    "DataSourceV2ScanRelation": replace(_LEAF, beside="options"),
    "LocalRelation": replace(_LEAF, beside="rows"),
    "LogicalRDD": replace(_LEAF, beside="rows"),
    "OneRowRelation": _LEAF,
    "Range": _LEAF,
    "CTERelationRef": _OTHER,
    "UnionLoopRef": _OTHER,
    "CommandResult": replace(_OTHER, beside="rows"),
    "Transpose": replace(_OTHER, beside="rows"),
    "LogicalRelation": replace(_OTHER, beside="files"),
    "HiveTableRelation": _OTHER,
}
"""By the name of the Scala class."""


def node_kind(kind: str) -> NodeKind:
    return NODES.get(kind, UNKNOWN)
