"""Aggregations that are kept by adding: rows that came are added to the sums of their group, rows that went are taken
from them.

A count or a sum over a million rows need not be computed again because one of them changed. The function's own
aggregation is run over the rows that came and over those that went, as sums that can be added, and these are put to
what is held of each group. From the new sums Spark computes the row by the function's own expressions, so that types,
rounding and errors are its own.

1. What stands below the aggregation treats each row by itself, so that the sum over two sets of rows is the sum of
   their sums. What stands above it computes columns and leaves rows out.
2. Sums are exact and cannot overflow: integers of 64 bits are added up as decimals. Sums of floats depend on their
   order and are not kept so.
3. Beside each sum stands how many values it has, and beside all how many rows there are: a group without rows goes,
   and a sum of nothing is null.
4. Sums follow the rows that they are made of in the transaction that moves those, whether the view is computed then
   or not. Where that fails, those of some units are *lost*, and computed from the rows that are held.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JNetworkError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from penstock.flows import plan_tree
from penstock.flows.engine.prepared import PreparedQuery
from penstock.flows.regroup.cells import values_of
from penstock.flows.regroup.held import HeldFile, HeldRows, Shape, Table
from penstock.flows.regroup.regrouping import Delta, Regrouping, frame_of
from penstock.flows.regroup.units import Units, relation

_ABOVE = ("Project", "Filter", "SubqueryAlias", "View")
"""What may stand above: it computes columns, and leaves rows out."""
_BELOW = (*_ABOVE, "Expand", "Union")
"""What may stand below: it makes rows of each row by itself."""
_COUNTS = ("Count", "CountIf")
_INTEGERS = ("tinyint", "smallint", "int", "bigint")
_MOST_DIGITS = 28
"""Of a decimal whose sum has ten more: 38 are all that Spark has."""
_WIDE = "decimal(20,0)"
_ROWS, _SIGN, _ALL = "n", "sign", "g0"
_SUFFIX = "@sums"
_KEY_OF_ALL = values_of([pa.array([0])])[0]
_PIECE_ROWS = 50_000
_SLICE_UNITS = 20_000
"""What is computed by one query."""
_log = logging.getLogger(__name__)

UnitSet = set[bytes] | None
Query = Callable[[], AbstractContextManager[None]]


def sums_name(view: str) -> str:
    """What the sums of a view are called in `held.db`."""
    return f"{view}{_SUFFIX}"


# Plans


def is_addable(frame: DataFrame, inputs: Mapping[str, DataFrame], units: Units | None) -> bool:
    """Whether a view can be kept by adding: its plan is one aggregation of sums and counts over rows of its inputs,
    and its groups are its units, or it has no groups."""
    plan = plan_tree.analyzed(frame)
    if any(plan_tree.subqueries(node) for node in plan_tree.nodes(plan)):
        return False
    aggregate = _aggregate(plan)
    if aggregate is None or not _is_row_by_row(aggregate.child(), inputs):
        return False
    if not all(_is_summed(function) for function in _functions(aggregate)):
        return False
    groups = _group_columns(plan)
    if not groups:
        return groups is not None
    return units is not None and set(units.columns) == set(groups)


def _aggregate(plan: plan_tree.Plan) -> plan_tree.Plan | None:
    while plan_tree.kind(plan) in _ABOVE:
        plan = plan_tree.children(plan)[0]
    return plan if plan_tree.kind(plan) == "Aggregate" else None


def _is_row_by_row(plan: plan_tree.Plan, inputs: Mapping[str, DataFrame]) -> bool:
    relations = {plan_tree.analyzed(shape).rdd().id() for shape in inputs.values()}
    for node in plan_tree.nodes(plan):
        if plan_tree.children(node):
            if plan_tree.kind(node) not in _BELOW:
                return False
        elif plan_tree.kind(node) != "LogicalRDD" or node.rdd().id() not in relations:
            return False  # a row from a constant would be added again with every change
    return True


def _functions(aggregate: plan_tree.Plan) -> list[Any]:
    """The aggregate expressions of its columns, each once."""
    found: list[Any] = []
    for column in plan_tree.items(aggregate.aggregateExpressions()):
        for part in plan_tree.inside(column):
            if plan_tree.kind(part) == "AggregateExpression" and not any(part.semanticEquals(f) for f in found):
                found.append(part)
    return found


def _is_summed(expression: Any) -> bool:
    function = expression.aggregateFunction()
    kind = plan_tree.kind(function)
    if expression.isDistinct():
        return False
    if kind in _COUNTS:
        return True
    if kind not in ("Sum", "Average") or _mode(function) != "ANSI":
        return False
    type_ = function.child().dataType()
    return type_.simpleString() in _INTEGERS or (_is_decimal(type_) and type_.precision() <= _MOST_DIGITS)


def _mode(function: Any) -> str:
    """What it does where a number has no room: only where that is an error, two ways to add give the same."""
    context = function if plan_tree.kind(function) == "Average" else function.evalContext()
    return str(context.evalMode().toString())


def _is_decimal(type_: Any) -> bool:
    return str(type_.simpleString()).startswith("decimal")


def _group_columns(plan: plan_tree.Plan) -> list[str] | None:
    """The column of the result that each grouping expression is; None: one of them is none."""
    above = []
    while plan_tree.kind(plan) != "Aggregate":
        above.append(plan)
        plan = plan_tree.children(plan)[0]
    columns = list(plan_tree.items(plan.aggregateExpressions()))
    groups = list(plan_tree.items(plan.groupingExpressions()))
    found = [next((c.exprId().id() for c in columns if _value(c).semanticEquals(group)), None) for group in groups]
    for node in reversed(above):
        if plan_tree.kind(node) == "Project":
            names = {_value(c).exprId().id(): c.exprId().id() for c in _plain(node)}
            found = [names.get(number) for number in found]
    top = (above or [plan])[0]
    shown = {column.exprId().id(): column.name() for column in plan_tree.items(top.output())}
    named = [shown.get(number) for number in found]
    return None if None in named else [str(name) for name in named]


def _value(column: Any) -> Any:
    return column.child() if plan_tree.kind(column) == "Alias" else column


def _plain(project: plan_tree.Plan) -> Iterator[Any]:
    """Columns of a projection that hand one on."""
    for column in plan_tree.items(project.projectList()):
        if plan_tree.kind(_value(column)) == "AttributeReference":
            yield column


@dataclass(frozen=True)
class _Summed:
    """One aggregate expression: the columns of the sums that stand for it."""

    expression: Any
    columns: tuple[str, ...]
    """Of a count, itself; of a sum or average, the sum and how many values it has."""

    @property
    def function(self) -> Any:
        return self.expression.aggregateFunction()

    @property
    def counts(self) -> bool:
        return len(self.columns) == 1


def _summed(aggregate: plan_tree.Plan) -> list[_Summed]:
    counts = [plan_tree.kind(e.aggregateFunction()) in _COUNTS for e in _functions(aggregate)]
    names = [(f"c{i}",) if is_count else (f"s{i}", f"c{i}") for i, is_count in enumerate(counts)]
    return [_Summed(e, columns) for e, columns in zip(_functions(aggregate), names, strict=True)]


def _sums_frame(spark: SparkSession, frame: DataFrame, columns: Sequence[str]) -> DataFrame:
    """The aggregation of a function as sums that can be added; groups in the order of `columns` of the result."""
    jvm: Any = spark._jvm
    expressions = jvm.org.apache.spark.sql.catalyst.expressions
    seq, none = jvm.PythonUtils.toSeq, jvm.scala.Option.empty()
    plan = plan_tree.analyzed(frame)
    aggregate = _aggregate(plan)
    assert aggregate is not None

    def aggregated(function: Any, of: Any) -> Any:
        return function.toAggregateExpression(False, of.filter())

    def sums(part: _Summed) -> Iterator[Any]:
        if part.counts:
            yield part.expression
            return
        child = part.function.child()
        wide = expressions.Cast(child, _type(jvm, _WIDE), none)
        value = wide if child.dataType().simpleString() == "bigint" else child
        yield aggregated(expressions.aggregate.Sum(value), part.expression)
        yield aggregated(expressions.aggregate.Count(seq([child])), part.expression)

    by_column = dict(zip(_group_columns(plan) or (), plan_tree.items(aggregate.groupingExpressions()), strict=False))
    named = [plan_tree.alias(jvm, by_column[column], f"g{i}") for i, column in enumerate(columns)]
    rows = expressions.aggregate.Count(seq([expressions.Literal.create(1, _type(jvm, "int"))]))
    named.append(plan_tree.alias(jvm, rows.toAggregateExpression(False, none), _ROWS))
    for part in _summed(aggregate):
        named += [plan_tree.alias(jvm, e, name) for e, name in zip(sums(part), part.columns, strict=True)]
    lower = aggregate.copy(aggregate.groupingExpressions(), seq(named), aggregate.child(), aggregate.hint())
    found = plan_tree.frame(spark, lower)
    return found if columns else found.select(F.lit(0).alias(_ALL), "*")


def _rows_frame(spark: SparkSession, frame: DataFrame, sums: DataFrame, columns: Sequence[str]) -> DataFrame:
    """What a function gives where its aggregation has come to these sums."""
    jvm: Any = spark._jvm
    seq = jvm.PythonUtils.toSeq
    plan = plan_tree.analyzed(frame)
    aggregate = _aggregate(plan)
    assert aggregate is not None
    parts, buffers = _summed(aggregate), list[str]()
    places: list[list[str]] = []
    for number, part in enumerate(parts):
        found = list(_buffers(part))
        places.append([f"b{number}_{i}" for i, _ in enumerate(found)])
        buffers += [f"{sql} AS {name}" for sql, name in zip(found, places[-1], strict=True)]
    below = plan_tree.analyzed(sums.selectExpr("*", *buffers))
    attributes = {attribute.name(): attribute for attribute in plan_tree.items(below.output())}
    by_column = dict(zip(_group_columns(plan) or (), plan_tree.items(aggregate.groupingExpressions()), strict=False))
    groups = [(by_column[column], attributes[f"g{i}"]) for i, column in enumerate(columns)]
    values = [
        (part.expression, _final(seq, part, [attributes[name] for name in names]))
        for part, names in zip(parts, places, strict=True)
    ]
    named = [
        plan_tree.alias(jvm, _replaced(seq, _value(column), [*values, *groups]), column.name(), column.exprId())
        for column in plan_tree.items(aggregate.aggregateExpressions())
    ]
    lower = jvm.org.apache.spark.sql.catalyst.plans.logical.Project(seq(named), below)
    return plan_tree.frame(spark, _put_in(seq, plan, lower))


def _buffers(part: _Summed) -> Iterator[str]:
    """SQL of what Spark's own function would have in its buffers after all rows."""
    if part.counts:
        yield part.columns[0]
        return
    total, count = part.columns
    first, *others = plan_tree.items(part.function.aggBufferAttributes())
    value = f"CAST({total} AS {first.dataType().sql()})"
    if plan_tree.kind(part.function) == "Average":
        yield value
        yield count
        return
    yield f"IF({count} = 0, NULL, {value})"
    if others:  # a sum of decimals tells nothing from null by a word of its own
        yield f"{count} = 0"


def _final(seq: Any, part: _Summed, attributes: Sequence[Any]) -> Any:
    if part.counts:
        return attributes[0]
    own = list(plan_tree.items(part.function.aggBufferAttributes()))
    return _replaced(seq, part.function.evaluateExpression(), list(zip(own, attributes, strict=True)))


def _replaced(seq: Any, expression: Any, pairs: Sequence[tuple[Any, Any]]) -> Any:
    """An expression with others in the places of parts of it."""
    for old, new in pairs:
        if expression.semanticEquals(old):
            return new
    inside = plan_tree.children(expression)
    if not inside:
        return expression
    return expression.withNewChildren(seq([_replaced(seq, part, pairs) for part in inside]))


def _put_in(seq: Any, plan: plan_tree.Plan, lower: plan_tree.Plan) -> plan_tree.Plan:
    if plan_tree.kind(plan) == "Aggregate":
        return lower
    return plan.withNewChildren(seq([_put_in(seq, plan_tree.children(plan)[0], lower)]))


def _type(jvm: Any, name: str) -> Any:
    return jvm.org.apache.spark.sql.types.DataType.fromDDL(name)


# Sums that are held


@dataclass(frozen=True)
class FromRows:
    """Sums that were computed from rows."""

    units: UnitSet
    """Of these units; None: of all that there are."""
    sums: pa.Table


class RunningSums:
    """The sums of one view. Used by one thread."""

    def __init__(self, grouping: Regrouping) -> None:
        self.grouping = grouping
        self._spark = grouping.spark
        self._columns = grouping.units.columns
        self._follows, self._reads = self._query(), self._query()
        """Those of the steps and those of a job, which may run at the same time."""

    def shape(self, inputs: Mapping[str, pa.Schema]) -> Shape:
        """Of the table of its sums, when its inputs' rows have these columns."""
        frame = self._sums(_relations(self._spark, inputs))
        schema = to_arrow_schema(frame.schema, timezone="UTC")
        plain = pa.schema([field.remove_metadata().with_nullable(True) for field in schema])
        key = tuple(name for name in plain.names if name.startswith("g"))
        return Shape(self.name, plain, key)

    def _sums(self, frames: Mapping[str, DataFrame]) -> DataFrame:
        return _sums_frame(self._spark, self.grouping.frame(frames), self._columns)

    def _query(self) -> PreparedQuery:
        """For the sums of rows that came and of rows that went, these with the sign -1."""
        return PreparedQuery(self._spark, self._moved_frame, self._moved_anew)

    def _moved_frame(self, frames: Mapping[str, DataFrame]) -> DataFrame:
        parts = []
        for word, sign in (("came ", 1), ("went ", -1)):
            some = {name.removeprefix(word): frame for name, frame in frames.items() if name.startswith(word)}
            parts.append(self._sums(some).select("*", F.lit(sign).alias(_SIGN)))
        return parts[0].unionAll(parts[1])

    def _moved_anew(self, rows: Mapping[str, pa.Table]) -> pa.Table:
        return self._moved_frame({name: frame_of(self._spark, table) for name, table in rows.items()}).toArrow()

    def rows(self, sums: pa.Table, inputs: Mapping[str, pa.Schema]) -> pa.Table:
        """The view's rows of groups that have these sums."""
        if self._rows_query is None:
            self._rows_query = PreparedQuery(self._spark, lambda frames: self._rows(frames, inputs), self._rows_anew)
            self._inputs = inputs
        return self._rows_query.run({_SUFFIX: sums}).cast(self.grouping.schema)

    _rows_query: PreparedQuery | None = None
    _inputs: Mapping[str, pa.Schema]

    def _rows(self, frames: Mapping[str, DataFrame], inputs: Mapping[str, pa.Schema]) -> DataFrame:
        frame = self.grouping.frame(_relations(self._spark, inputs))
        return _rows_frame(self._spark, frame, frames[_SUFFIX], self._columns)

    def _rows_anew(self, rows: Mapping[str, pa.Table]) -> pa.Table:
        return self._rows({_SUFFIX: frame_of(self._spark, rows[_SUFFIX])}, self._inputs).toArrow()

    def slices(self, units: set[bytes]) -> Iterator[set[bytes]]:
        """The units in pieces of bounded size; of how many rows one is makes no difference."""
        waiting = iter(sorted(units))
        while some := set(islice(waiting, _SLICE_UNITS)):
            yield some

    # What is held

    def lost(self, held: HeldFile, epoch: str) -> UnitSet:
        """The units whose sums do not hold, and must be computed from rows; None: those of all."""
        reached = held.reached(self.name)
        return held.dirty(self.name) if reached is not None and reached[0] == epoch else None

    def follow(self, held: HeldFile, epoch: str, deltas: Mapping[str, Delta], query: Query) -> list[pa.Table] | None:
        """Add what came to the sums that are held, and take away what went; gives what was added. None: that failed,
        and the units of these rows are lost."""
        try:
            with query():
                moved = self._moved(deltas, held.tables)
        except (sqlite3.DatabaseError, Py4JNetworkError):
            raise
        except Exception as error:
            _log.warning("sums of '%s' are computed from rows again: %s", self.grouping.view.name, error)
            held.mark(self.name, self.grouping.touched(deltas, held.tables))
            return None
        lost = self.lost(held, epoch)
        if lost is not None:
            table = held.tables[self.name]
            keys = {key for part in moved for key in table.keys_of(part)} - set(map(self._key, lost))
            sums = self._added([_signed(table.by_key(keys).table), *moved], keys, table)
            table.remove(keys)
            table.put(HeldRows(sums, ()))
        return moved

    def settle(
        self, held: HeldFile, epoch: str, found: FromRows, moved: Sequence[pa.Table], failed: set[bytes]
    ) -> None:
        """Hold sums that were computed from rows, with what was `moved` since; those of units that failed are lost."""
        if found.units is not None and not found.units:
            return
        table = held.tables[self.name]
        keys = None if found.units is None else set(map(self._key, found.units))
        sums = self._added([_signed(found.sums), *moved], keys, table)
        table.clear() if keys is None else table.remove(keys)
        table.put(HeldRows(sums, ()))
        held.clean(self.name, held.dirty(self.name) if found.units is None else found.units)
        held.mark(self.name, failed)
        held.remember({f"reached/{self.name}": [epoch, []]})

    def _key(self, unit: bytes) -> bytes:
        """Under which a unit's sums are held: where there are no groups, they have a column for it."""
        return unit if self._columns else _KEY_OF_ALL

    @property
    def name(self) -> str:
        return sums_name(self.grouping.view.name)

    # Adding

    def computed(self, units: set[bytes], lost: UnitSet, tables: Mapping[str, Table]) -> tuple[pa.Table, pa.Table]:
        """The rows of these units, and the sums of those of them that are lost, from their rows."""
        table = tables[self.name]
        missing = units if lost is None else units & lost
        found = self._added(self._from_rows(missing, tables) if missing else (), set(map(self._key, missing)), table)
        held = table.by_key(map(self._key, units - missing)).table
        sums = pa.concat_tables([held, found])
        return self.rows(sums, {name: tables[name].shape.schema for name in self._names}), found

    @cached_property
    def _names(self) -> list[str]:
        return sorted({leaf.input for leaf in self.grouping.units.leaves})

    def _moved(self, deltas: Mapping[str, Delta], tables: Mapping[str, Table]) -> list[pa.Table]:
        """The sums of all that came and went."""
        nothing = {name: tables[name].shape.schema.empty_table() for name in self._names}
        if sum(delta.old.table.num_rows + delta.new.table.num_rows for delta in deltas.values()) <= _PIECE_ROWS:
            came = {name: delta.new.table for name, delta in deltas.items()}
            went = {name: delta.old.table for name, delta in deltas.items()}
            return [_moved(self._follows, nothing | came, nothing | went)]
        sides = [(name, rows.table, sign) for name, d in deltas.items() for rows, sign in ((d.new, 1), (d.old, -1))]
        return [
            _piece(self._follows, name, table.slice(start, _PIECE_ROWS), nothing, sign)
            for name, table, sign in sides
            for start in range(0, table.num_rows, _PIECE_ROWS)
        ]

    def _from_rows(self, units: set[bytes], tables: Mapping[str, Table]) -> Iterator[pa.Table]:
        """The sums of units, from all of their rows, a piece at a time."""
        nothing = {name: tables[name].shape.schema.empty_table() for name in self._names}
        for name in self._names:
            table, leaves = tables[name], self.grouping.units.leaves
            homes = {home for leaf, home in self.grouping.units.homes.items() if leaves[leaf].input == name}
            wanted = None if () in homes else [(table.index(home), units) for home in sorted(homes)]
            for rows in table.pieces(wanted, _PIECE_ROWS):
                yield _piece(self._reads, name, rows.table, nothing, 1)

    def _added(self, parts: Iterable[pa.Table], wanted: set[bytes] | None, table: Table) -> pa.Table:
        """Sums of one group added up, of these keys alone, or of all; groups without rows are gone."""
        schema, key = table.shape.schema, list(table.shape.key)
        numbers = [name for name in schema.names if name not in key]
        places: dict[bytes, int] = {}
        groups: list[pa.Table] = []
        totals: list[list[Any]] = []
        for part in parts:
            keys, signs = table.keys_of(part), part.column(_SIGN).to_pylist()
            columns = [part.column(name).to_pylist() for name in numbers]
            first: list[int] = []
            for place, (value, sign) in enumerate(zip(keys, signs, strict=True)):
                if wanted is not None and value not in wanted:
                    continue
                if value not in places:
                    places[value] = len(totals)
                    totals.append([0] * len(numbers))
                    first.append(place)
                total = totals[places[value]]
                for number, column in enumerate(columns):
                    if (cell := column[place]) is not None:
                        total[number] += cell if sign > 0 else -cell
            groups.append(part.select(key).take(pa.array(first, pa.int64())))
        if not totals:
            return schema.empty_table()
        self._refuse_negative(totals, numbers)
        arrays = [pa.array([total[i] for total in totals], schema.field(n).type) for i, n in enumerate(numbers)]
        plain = pa.schema([schema.field(name) for name in key])
        found = pa.concat_tables([group.cast(plain) for group in groups]).combine_chunks()
        sums = pa.table([*found.columns, *arrays], schema=schema)
        return sums.filter(pa.array([total[0] > 0 for total in totals], pa.bool_())) if self._columns else sums

    def _refuse_negative(self, totals: Sequence[Sequence[Any]], numbers: Sequence[str]) -> None:
        counts = [place for place, name in enumerate(numbers) if not name.startswith("s")]
        if any(total[place] < 0 for total in totals for place in counts):
            raise sqlite3.DatabaseError(f"sums of '{self.grouping.view.name}' do not go with the rows")


def _moved(query: PreparedQuery, came: Mapping[str, pa.Table], went: Mapping[str, pa.Table]) -> pa.Table:
    rows = {f"came {name}": table for name, table in came.items()}
    return query.run(rows | {f"went {name}": table for name, table in went.items()})


def _piece(query: PreparedQuery, name: str, rows: pa.Table, nothing: Mapping[str, pa.Table], sign: int) -> pa.Table:
    some = {**nothing, name: rows}
    return _moved(query, some, nothing) if sign == 1 else _moved(query, nothing, some)


def _signed(sums: pa.Table) -> pa.Table:
    return sums.append_column(_SIGN, pa.array([1] * sums.num_rows, pa.int32()))


def _relations(spark: SparkSession, inputs: Mapping[str, pa.Schema]) -> dict[str, DataFrame]:
    return {name: relation(spark, from_arrow_schema(schema)) for name, schema in inputs.items()}
