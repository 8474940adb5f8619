"""Plans that Spark accepts and that would still give wrong views: refused here, each with what to write instead.

Update mode never emits deletes: a row that a filter above an aggregation lets go of stays in the view for ever. So
what stands above an aggregation may only compute columns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from penstock.change import OP
from penstock.declaration import FlowDef, How, Node, Problem, ViewDef
from penstock.flows import plan_tree
from penstock.flows.plan_expressions import OF_THE_MOMENT
from penstock.flows.plan_nodes import NODES, TOP, TWICE, node_kind

Mode = Literal["update", "append"]
NOT_FOLDED = ("above_aggregation", "unsupported_plan", "needs_within")
"""Codes of what Spark cannot fold, though a batch query could compute it."""

_PYTHON = ("Python", "MapIn", "FlatMap", "TransformWithState", "BatchEvalPython", "ArrowEvalPython")

Uses = dict[str, set[int]]
"""Of which columns of a plan, by their ids, columns of the view are made."""

_PER_BATCH = {
    "FlatMapGroupsInPandas": "applyInPandas",
    "FlatMapGroupsInArrow": "applyInArrow",
    "FlatMapCoGroupsInPandas": "cogroup",
    "FlatMapCoGroupsInArrow": "cogroup",
}
"""Functions of whole groups, which Spark calls with what one batch holds of each."""
_INSTEAD = {
    "Distinct aggregations": "count what is left of dropDuplicates(['user', 'page']), or use approx_count_distinct",
    "Sorting": NODES["Sort"].instead,
    "Window function": TOP,
    "LeftAnti": "use a left join with a bound on both times, and keep the rows whose right side is null",
    "'correctness'": TWICE,
}
"""What to do where Spark refuses a plan, by a word of what it says."""
_CLOSED = "an aggregation in a @app.flow needs a window over a stream with late_after=, so that it can close"
_NO_STREAM = "Spark cannot keep this current while events come: see 'What a function may do' in the docs"


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
        checker.checkForStreaming(plan_tree.analyzed(frame), getattr(modes, mode.capitalize())())
    except Exception as error:
        return str(error).split(";")[0].split("\n")[0]
    return ""


def unsupported(node: Node, said: str) -> Problem:
    """What Spark refuses to run as a stream, with its words and what to write instead."""
    hint = next((hint for word, hint in _INSTEAD.items() if word in said), None)
    if "'correctness'" in said:
        said = "it aggregates what another aggregation, or a join, may still change"
    hint = hint or (_CLOSED if isinstance(node, FlowDef) else _NO_STREAM)
    return _error("unsupported_plan", f"'{node.name}': {said}", node, hint)


def needs_within(node: ViewDef, streams: Sequence[str]) -> Problem:
    """Events that are computed with again and again, and of which nothing says how long they count."""
    names = " and ".join(f"'{name}'" for name in streams)
    text = f"'{node.name}' computes with events of {names} again when something changes, and would hold them for ever"
    hint = 'say how far behind the newest an event counts: within="30 days" on @app.view; or read a view of the stream'
    return _error("needs_within", text, node, hint)


def other_way(node: ViewDef, how: How) -> Problem:
    """A view that insists on one way to be kept current, and can only be kept in another."""
    text = f"'{node.name}' says how='{node.how}', and its plan makes it {how}"
    return _error("other_way", text, node, "leave out how=, or write the function so that it can be kept so")


def repeatable_problems(node: ViewDef, frame: DataFrame) -> Iterator[Problem]:
    """What may give other rows when a view is computed again: chance, the clock, and Python functions."""
    plan = plan_tree.analyzed(frame)
    kinds = plan_tree.kinds(plan)
    if not plan.deterministic() or kinds & {"Sample", *OF_THE_MOMENT} - {"CurrentRow"}:
        text = f"'{node.name}' depends on chance or on the clock, and is computed again whenever something changes"
        hint = "leave out rand(), sample() and current_timestamp(), or compute them in a view of a stream"
        yield _error("not_repeatable", text, node, hint)
    elif not node.deterministic and any(kind.startswith(_PYTHON) for kind in kinds):
        text = f"'{node.name}' calls a Python function, and is computed again whenever something changes"
        yield _error("not_repeatable", text, node, "say deterministic=True if it always gives the same for the same")


def refused(node: Node, frame: DataFrame, delays_us: set[int], mode: Mode | None) -> Iterator[Problem]:
    """What is wrong with a plan. In append mode rows are final, so that anything may be done with them.

    A watermark of ours stands directly above the log with one of `delays_us`; any other one is the user's.
    """
    plan = plan_tree.analyzed(frame)
    marks = [n for n in plan_tree.nodes(plan) if plan_tree.kind(n) == "EventTimeWatermark"]
    if any(not (plan_tree.is_log(mark.child()) and plan_tree.delay_us(mark) in delays_us) for mark in marks):
        yield _error(
            "own_watermark",
            f"'{node.name}' calls withWatermark",
            node,
            "remove it and declare late_after= on the stream: lateness is decided in the log, the same for every flow",
        )
    yield from _batch_problems(node, plan)
    if isinstance(node, ViewDef) and mode != "append":
        yield from _key_problems(node, plan)
        yield from _above_problems(node, plan, mode)


def _above_problems(node: ViewDef, plan: plan_tree.Plan, mode: Mode | None) -> Iterator[Problem]:
    """What stands above an aggregation and is not known to give the rows that it gets."""
    for name in sorted({n.replace("LocalLimit", "GlobalLimit") for n in _above_aggregation(plan)}):
        kind = node_kind(name)
        if kind.rows == "same" or (name == "Aggregate" and mode is None):  # Spark itself says what is wrong with it
            continue
        what = f"{'an' if name[0] in 'AEIOU' else 'a'} {name.removeprefix('Global')}"
        text = f"'{node.name}' has {what} above an aggregation, and Spark would leave stale rows in the view"
        yield _error("above_aggregation", text, node, kind.instead)


def _batch_problems(node: Node, plan: plan_tree.Plan) -> Iterator[Problem]:
    """What means another thing in each batch than over all events, or nothing at all in a batch query."""
    streaming = [n for n in plan_tree.nodes(plan) if n.isStreaming()]
    if not all(plan_tree.children(n) or plan_tree.is_log(n) for n in streaming):
        yield _error(
            "unsupported_plan",
            f"'{node.name}' reads a stream that is not in the log: nobody could rebuild or verify what it gives",
            node,
            "bring it in with app.pull, or POST it to a stream, and name that stream as a parameter",
        )
    kinds = {plan_tree.kind(part) for n in streaming for part in (n, *plan_tree.expressions(n))}
    for called in sorted({_PER_BATCH[name] for name in kinds if name in _PER_BATCH}):
        yield _error(
            "per_batch",
            f"'{node.name}' calls {called}, and Spark would give it the rows of each batch alone, not of all events",
            node,
            "use built-in aggregates, or transformWithState, which remembers",
        )
    if "PythonUDAF" in kinds:
        yield _error(
            "unsupported_plan",
            f"'{node.name}' aggregates with a Python function, which Spark does only in batch queries",
            node,
            "use built-in aggregates, or transformWithState",
        )
    if any(plan_tree.sessions_alone(n) for n in streaming):
        yield _error(
            "unsupported_plan",
            f"'{node.name}' groups by sessions alone, of all events together, which Spark does only in batch queries",
            node,
            "group by what has the sessions too, such as a user, or by F.lit('all').alias('of')",
        )
    if "DeduplicateWithinWatermark" in kinds:
        yield _error(
            "unsupported_plan",
            f"'{node.name}' calls dropDuplicatesWithinWatermark, which no batch query has: nothing could verify it",
            node,
            "let the stream take each event once with id=, or use dropDuplicates",
        )


def _key_problems(node: ViewDef, plan: plan_tree.Plan) -> Iterator[Problem]:
    """A view keeps one row per key and Spark one per group. So each group must have one key for ever, its own."""
    columns = {column.name(): {column.exprId().id()} for column in plan_tree.items(plan.output())}
    if set(node.key) <= columns.keys():
        yield from _group_problems(node, plan, {name: columns[name] for name in node.key})


def _group_problems(node: ViewDef, plan: plan_tree.Plan, key: Uses) -> Iterator[Problem]:
    plan, key, lossy = _beneath(plan, key)
    if plan_tree.kind(plan) == "Union":
        yield from _union_problems(node, plan, key)
    if plan_tree.kind(plan) != "Aggregate" or not plan.isStreaming():
        return
    columns = {e.exprId().id(): e for e in plan_tree.items(plan.aggregateExpressions())}
    used = {name: [columns[i] for i in ids if i in columns] for name, ids in key.items()}
    for name, parts in used.items():
        if any(plan_tree.kind(e) == "AggregateExpression" for part in parts for e in plan_tree.inside(part)):
            text = (
                f"key='{name}' of '{node.name}' is a result of the aggregation: when it changes, the old row would stay"
            )
            yield _error("key_of_groups", text, node, "the key is what the rows are grouped by")
            return
    groups = list(plan_tree.items(plan.groupingExpressions()))
    texts = {group.sql() for group in groups}
    held: dict[bool, set[int]] = {True: set(), False: set()}
    for name, parts in used.items():
        for part in parts:
            telling = name not in lossy and _tells(part, texts)
            held[telling] |= _attributes(part) | {part.exprId().id()}
    for group in groups:
        inside = _attributes(group)
        if inside and not inside & held[True] and group.sql() != "spark_grouping_id":
            text = f"'{node.name}' groups by {group.sql()}, which is not in its key: groups would replace each other"
            hint = "put it into key=, or aggregate it: max(name) instead of grouping by name"
            if inside & held[False]:
                text = (
                    f"'{node.name}' computes its key from {group.sql()}, by which it groups: two groups may get one key"
                )
                hint = "put what it groups by into key= too, or compute the key before and group by it"
            yield _error("key_of_groups", text, node, hint)


_TELLING = {
    "AttributeReference", "Literal", "Alias", "Cast", "GetStructField", "Concat", "ConcatWs", "CreateNamedStruct",
    "CreateArray", "StructsToJson", "Md5", "Sha1", "Sha2", "XxHash64", "Hex", "Base64", "UnixMicros", "UnixMillis",
    "UnixSeconds",
}  # fmt: skip
"""Expressions whose result tells what went in, for groups at least: what `_tells` says of casts and fields."""


def _tells(expression: plan_tree.Expression, groups: Collection[str] = ()) -> bool:
    """Whether two groups cannot get the same value of an expression that is made of them."""
    name = plan_tree.kind(expression)
    if expression.sql() in groups:
        return True
    if name not in _TELLING:
        return False
    if name == "Cast" and not _widens(expression):
        return False
    if name == "GetStructField":
        return str(expression.child().dataType().simpleString()) == WINDOW
    return all(_tells(child, groups) for child in plan_tree.children(expression))


def _widens(cast: plan_tree.Expression) -> bool:
    to, of = cast.dataType().simpleString(), cast.child().dataType().simpleString()
    return to == "string" or (to == "bigint" and of in ("tinyint", "smallint", "int"))


def _beneath(plan: plan_tree.Plan, uses: Uses) -> tuple[plan_tree.Plan, Uses, set[str]]:
    """The first node that does more than compute columns, the same in its columns, and of which one cannot say from
    what value they were made."""
    lossy: set[str] = set()
    while _rows_given(plan) == "same":
        if plan_tree.kind(plan) == "Project":
            columns = {e.exprId().id(): e for e in plan_tree.items(plan.projectList())}
            lossy |= {name for name, used in uses.items() if not all(_tells(columns[u]) for u in used if u in columns)}
            uses = {
                name: {i for u in used if u in columns for i in _attributes(columns[u])} for name, used in uses.items()
            }
        plan = plan.child()
    return plan, uses, lossy


def _union_problems(node: ViewDef, union: plan_tree.Plan, key: Uses) -> Iterator[Problem]:
    """Two parts of a union may each have a group of one key, unless a constant in the key tells the parts apart."""
    if not any(plan_tree.kind(n) == "Aggregate" and n.isStreaming() for n in plan_tree.nodes(union)):
        return
    places = {column.exprId().id(): place for place, column in enumerate(plan_tree.items(union.output()))}
    held = {name: {places[used] for used in ids if used in places} for name, ids in key.items()}
    for part in plan_tree.children(union):
        own = [column.exprId().id() for column in plan_tree.items(part.output())]
        yield from _group_problems(node, part, {name: {own[place] for place in at} for name, at in held.items()})
    for place in {place for at in held.values() for place in at}:
        constants = list(_constants(union, place))
        if None not in constants and len(set(constants)) == len(constants):
            return
    text = f"'{node.name}' unites groups, and those of one key would replace each other"
    yield _error(
        "key_of_groups", text, node, "unite first and group then, or put into key= a constant of each part, F.lit(...)"
    )


def _constants(plan: plan_tree.Plan, place: int) -> Iterator[str | None]:
    """For each part of a union the constant that its column of this number is; None: it is none."""
    if plan_tree.kind(plan) == "Union":
        for child in plan_tree.children(plan):
            yield from _constants(child, place)
    else:
        yield _constant(plan, list(plan_tree.items(plan.output()))[place].exprId().id())


def _constant(plan: plan_tree.Plan, wanted: int) -> str | None:
    """Its value, after the cast by which Spark gives the parts of a union one type."""
    cast: plan_tree.Expression | None = None
    while plan_tree.kind(plan) == "Aggregate" or _rows_given(plan) in ("same", "fewer"):
        if plan_tree.kind(plan) in ("Project", "Aggregate"):
            columns = plan.projectList() if plan_tree.kind(plan) == "Project" else plan.aggregateExpressions()
            column = next(e for e in plan_tree.items(columns) if e.exprId().id() == wanted)
            if plan_tree.kind(column) == "Alias" and column.child().foldable():
                return _value(column.child() if cast is None else cast.withNewChildren(column.children()))
            source = column.child() if plan_tree.kind(column) == "Alias" else column
            if plan_tree.kind(source) == "Cast" and cast is None:
                cast, source = source, source.child()
            if plan_tree.kind(source) != "AttributeReference":
                return None
            wanted = source.exprId().id()
        plan = plan.child()
    return None


def _value(constant: plan_tree.Expression) -> str | None:
    try:
        return str(constant.eval(None))
    except Py4JJavaError:  # it can be computed in a query only, or not at all
        return None


def _rows_given(plan: plan_tree.Plan) -> str:
    """What a node gives of the rows of its one child; a union has several."""
    return "other" if plan_tree.kind(plan) == "Union" else node_kind(plan_tree.kind(plan)).rows


def _attributes(expression: plan_tree.Expression) -> set[int]:
    """The columns that an expression uses."""
    return {attribute.exprId().id() for attribute in plan_tree.items(expression.references())}


def _above_aggregation(plan: plan_tree.Plan) -> Iterator[str]:
    """Kinds of the nodes that have a streaming aggregation somewhere below them."""
    for node in plan_tree.nodes(plan):
        below = [n for child in plan_tree.children(node) for n in plan_tree.nodes(child)]
        if any(plan_tree.kind(n) == "Aggregate" and n.isStreaming() for n in below):
            yield plan_tree.kind(node)


def column_problems(node: Node, frame: DataFrame) -> Iterator[Problem]:
    """Columns that are no JSON; a key, time or order that is not a column; a time of the wrong type; keep without a
    time."""
    yield from _type_problems(node, frame.schema)
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
        if name.removeprefix("-").split(".")[0] not in types:
            yield _error("unknown_column", f"order_by='{name}' of '{node.name}' is not a column", node, has)
    if node.keep_us is not None and row_time(types) is None:
        yield _error(
            "keep_without_time",
            f"'{node.name}' has keep=, but its rows have no time",
            node,
            "give it a column from F.window(...) or F.session_window(...), or a timestamp column '_time'",
        )


def no_correction(node: ViewDef, why: str) -> Problem:
    return _error(
        "bad_correct",
        f"'{node.name}' has correct=, but {why}",
        node,
        "correct= is for a view of a stream grouped by a window over _time, and longer than the stream's late_after=",
    )


def not_final(node: ViewDef, why: str) -> Problem:
    return _error(
        "bad_final",
        f"'{node.name}' has final=, but {why}",
        node,
        "final= is for a view that groups by a window over the _time of streams with late_after=",
    )


def correct_problems(node: ViewDef, inputs: Mapping[str, Any], frame: DataFrame) -> Iterator[Problem]:
    types = {f.name: f.dataType.simpleString() for f in frame.schema.fields}
    for source in inputs.values():
        closes_us = source.closes_after_us
        if source.derived:
            yield no_correction(node, f"'{source.name}' is made by a flow, which leaves late events out")
        elif closes_us is None or node.correct_us is None or closes_us >= node.correct_us:
            yield no_correction(node, f"the stream '{source.name}' has no shorter late_after=")
    if window_column(types) is None or not plan_tree.event_time_state(plan_tree.analyzed(frame)):
        yield no_correction(node, "its rows have no window over _time")


def final_problems(node: ViewDef, inputs: Mapping[str, Any], frame: DataFrame) -> Iterator[Problem]:
    types = {f.name: f.dataType.simpleString() for f in frame.schema.fields}
    if window_column(types) is None or not plan_tree.event_time_state(plan_tree.analyzed(frame)):
        yield not_final(node, "its rows have no window over _time that closes")
    for source in inputs.values():
        if source.late_after_us is None:
            yield not_final(node, f"'{source.name}' has no late_after=")


_JSON = (
    T.StringType, T.BooleanType, T.IntegralType, T.FractionalType, T.BinaryType, T.DateType, T.TimestampType,
    T.TimestampNTZType, T.NullType, T.DayTimeIntervalType,
)  # fmt: skip


def _type_problems(node: Node, schema: T.StructType) -> Iterator[Problem]:
    """Columns that a row of JSON cannot have, and keys that cannot be compared."""
    for name in sorted({n for n in schema.names if schema.names.count(n) > 1}):
        yield _error("column_twice", f"'{node.name}' has two columns '{name}'", node, "give one of them an alias")
    if isinstance(node, ViewDef) and OP in schema.names:
        yield _error("name_reserved", f"'{node.name}' has a column '{OP}'", node, "give it an alias: that one is ours")
    for field in schema.fields:
        bad = next((kind for kind in _kinds(field.dataType) if not _is_json(kind)), None)
        if bad is not None:
            text = f"the column '{field.name}' of '{node.name}' holds {bad.simpleString()}, which JSON cannot"
            yield _error("bad_type", text, node, "cast it to a string or number; the keys of a map are strings")
        elif field.name in node.key and any(isinstance(kind, T.MapType) for kind in _kinds(field.dataType)):
            text = f"key='{field.name}' of '{node.name}' is a map, which has no order"
            yield _error("bad_type", text, node, "use a column of the map, or to_json(map_entries(...))")


def _kinds(kind: T.DataType) -> Iterator[T.DataType]:
    """A type and all inside it."""
    yield kind
    if isinstance(kind, T.StructType):
        inside = [field.dataType for field in kind.fields]
    elif isinstance(kind, T.MapType):
        inside = [kind.valueType]
    else:
        inside = [kind.elementType] if isinstance(kind, T.ArrayType) else []
    for part in inside:
        yield from _kinds(part)


def _is_json(kind: T.DataType) -> bool:
    if isinstance(kind, T.MapType):
        return isinstance(kind.keyType, T.StringType | T.IntegralType | T.DateType)
    return isinstance(kind, (*_JSON, T.StructType, T.ArrayType))


WINDOW = "struct<start:timestamp,end:timestamp>"


def row_time(types: dict[str, str]) -> str | None:
    """The column that tells how old a row is: its window, whose end it is, else its `_time`."""
    return window_column(types) or ("_time" if types.get("_time") == "timestamp" else None)


def window_column(types: dict[str, str]) -> str | None:
    """The column that F.window or F.session_window gives, whatever its name is; of several the one named `window`."""
    windows = [name for name, kind in types.items() if kind == WINDOW]
    return "window" if "window" in windows else next(iter(windows), None)


def _error(code: str, message: str, node: Node, hint: str) -> Problem:
    return Problem("error", code, message, node.place, hint)
