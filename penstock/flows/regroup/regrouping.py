"""One regrouped view: which of its units a change touches, which rows they need, and how they differ from what it
shows.

Nothing here waits or writes to the log; `steps.py` does. Rows are handed to Spark sorted by key and in one piece, so
that computing a unit again gives the same bits, floats too, and an equal row is no change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from penstock.change import DELETE, OP, UPSERT
from penstock.declaration import ViewDef
from penstock.errors import DuplicateKeyError, GroupTooLargeError
from penstock.flows.engine.prepared import PreparedQuery
from penstock.flows.regroup.cells import ALL, cells_of, values_of
from penstock.flows.regroup.held import HeldRows, Index, Order, Table
from penstock.flows.regroup.unit_poison import unit_words
from penstock.flows.regroup.units import Units, carried, is_hidden

Call = Callable[[Mapping[str, DataFrame]], DataFrame]
"""The user's function on frames of its inputs."""
UNIT_ROWS = 500_000
"""From how many rows of its inputs one unit may be computed: a change of any of them computes it again."""
UNKNOWN = b""
"""The unit of a row that is not known by its columns: a view does not show them, and its changelog has none."""
_SLICE_ROWS = 50_000
_SLICE_UNITS = 20_000
"""What is computed by one query: large enough for full speed, small enough for memory."""


@dataclass(frozen=True)
class Delta:
    """What became of the rows of one table: those that went or were replaced, and those that came."""

    old: HeldRows
    new: HeldRows

    @property
    def empty(self) -> bool:
        return not (self.old.table.num_rows or self.new.table.num_rows)


@dataclass(frozen=True)
class Regrouping:
    """A view and the tables that it is computed from; called in the thread of the steps."""

    view: ViewDef
    units: Units
    call: Call
    schema: pa.Schema
    spark: SparkSession = field(repr=False)

    def indexes(self) -> dict[str, set[Index]]:
        """By what rows of each input are looked up."""
        wanted: dict[str, set[Index]] = {leaf.input: set() for leaf in self.units.leaves}
        inputs = {leaf.number: leaf.input for leaf in self.units.leaves}
        for number, expressions in self.units.homes.items():
            if expressions:
                wanted[inputs[number]].add(expressions)
        for link in self.units.links:
            for place in (link.of, link.to):
                wanted[inputs[place.leaf]].add((place.expression,))
        if self.units.first is not None and self.units.first.where is not None:
            wanted[inputs[0]].add((self.units.first.where,))
        return wanted

    def orders(self) -> dict[str, set[Order]]:
        """By which orders first rows of inputs are looked up; their conditions are indexes of `indexes`."""
        first = self.units.first
        return {} if first is None else {self.units.leaves[0].input: {(first.where, first.order)}}

    @property
    def own_index(self) -> Index:
        """By what the view's own rows are looked up: their unit."""
        return tuple(f"`{name}`" for name in self.units.columns)

    def touched(self, deltas: Mapping[str, Delta], held: Mapping[str, Table]) -> set[bytes]:
        """The units that changed rows of inputs can have changed. `held` has the new rows already."""
        units: set[bytes] = set()
        for leaf in self.units.leaves:
            delta = deltas.get(leaf.input)
            if delta is not None:
                for rows in (delta.old, delta.new):
                    units |= self._units_of(leaf.number, rows, held)
        return units

    def _units_of(self, leaf: int, rows: HeldRows, held: Mapping[str, Table]) -> set[bytes]:
        """Back along the links to a home: rows that it does not lead to are no part of any unit."""
        home = self.units.homes.get(leaf)
        if home is not None and not home:
            return {ALL} if rows.table.num_rows else set()
        if home is not None:
            return rows.values(self._table(leaf, held).index(home))
        link = next(link for link in self.units.links if link.to.leaf == leaf)
        values = rows.values(self._table(leaf, held).index((link.to.expression,)))
        of = self._table(link.of.leaf, held)
        return self._units_of(link.of.leaf, of.by_value(of.index((link.of.expression,)), values), held)

    def _table(self, leaf: int, held: Mapping[str, Table]) -> Table:
        return held[self.units.leaves[leaf].input]

    def needed(self, units: set[bytes], held: Mapping[str, Table]) -> dict[str, pa.Table]:
        """The rows of each input from which these units are computed."""
        if (first := self.units.first) is not None:
            return {
                leaf.input: held[leaf.input].first((first.where, first.order), first.count).table
                for leaf in self.units.leaves
            }
        rows: dict[int, HeldRows] = {}
        for leaf, home in self.units.homes.items():
            table = self._table(leaf, held)
            rows[leaf] = table.by_value(table.index(home), units) if home else table.everything()
        for link in self.units.links:
            of, to = self._table(link.of.leaf, held), self._table(link.to.leaf, held)
            values = rows[link.of.leaf].values(of.index((link.of.expression,)))
            rows[link.to.leaf] = to.by_value(to.index((link.to.expression,)), values)
            if len(units) == 1 and (most := rows[link.to.leaf].table.num_rows) > UNIT_ROWS:
                raise _too_large(self.view, unit_words(self.units.columns, next(iter(units))), most)
        return {name: self._of_input(name, rows, held) for name in {leaf.input for leaf in self.units.leaves}}

    def _of_input(self, name: str, rows: Mapping[int, HeldRows], held: Mapping[str, Table]) -> pa.Table:
        """All that its leaves need; more than one of them needs does no harm."""
        parts = [rows[leaf.number].table for leaf in self.units.leaves if leaf.input == name]
        if len(parts) == 1:
            return parts[0]
        keys = {key for part in parts for key in held[name].keys_of(part)}
        return held[name].by_key(keys).table

    def slices(self, units: set[bytes], held: Mapping[str, Table]) -> Iterator[set[bytes]]:
        """The units in pieces of bounded size, so that memory is; one that is too large by itself is refused."""
        sizes = dict.fromkeys(units, 0)
        for leaf, home in self.units.homes.items():
            table = self._table(leaf, held)
            for unit, rows in (table.counts(table.index(home), units) if home else {}).items():
                sizes[unit] += rows
        some, rows = set[bytes](), 0
        for unit in sorted(units):
            if self.units.columns and sizes[unit] > UNIT_ROWS:
                raise _too_large(self.view, unit_words(self.units.columns, unit), sizes[unit])
            if some and (rows + sizes[unit] > _SLICE_ROWS or len(some) == _SLICE_UNITS):
                yield some
                some, rows = set(), 0
            some.add(unit)
            rows += sizes[unit]
        if some:
            yield some

    def computed(self, inputs: Mapping[str, pa.Table], units: set[bytes]) -> pa.Table:
        """The view's rows of these units, by the user's own function, with the columns that lead to their units."""
        result = self._query.run(inputs)
        hidden = [result.schema.field(name) for name in self.units.hidden]
        result = result.cast(pa.schema([*self.schema, *hidden]))
        if not self.units.columns:
            return result if units else result.slice(0, 0)  # a sum over nothing is a row, too
        own = values_of([result.column(name).combine_chunks() for name in self.units.columns])
        return result.filter(pa.array([unit in units for unit in own], pa.bool_()))

    @cached_property
    def _query(self) -> PreparedQuery:
        return PreparedQuery(self.spark, self.frame, self._anew)

    def frame(self, frames: Mapping[str, DataFrame]) -> DataFrame:
        """The function on frames of its inputs, without the rows that fail `where=`."""
        frame = self.call(frames)
        frame = frame if self.view.where is None else frame.where(self.view.where)
        if not self.units.hidden:
            return frame
        more = carried(frame)
        assert more is not None
        return more.select(*(f"`{name}`" for name in (*frame.columns, *self.units.hidden)))

    def _anew(self, inputs: Mapping[str, pa.Table]) -> pa.Table:
        return self.frame({name: frame_of(self.spark, rows) for name, rows in inputs.items()}).toArrow()

    def difference(self, units: set[bytes], result: pa.Table, own: Table) -> Delta:
        """What leads from the rows that are held of these units to the result."""
        (delta,) = self.differences([(units, result)], own)
        return delta

    def differences(self, parts: Sequence[tuple[set[bytes], pa.Table]], own: Table) -> list[Delta]:
        """The same for units that were computed in several parts. A row may have moved from one part to another."""
        units = {unit for some, _ in parts for unit in some}
        if self.units.hidden and parts:  # of rows that a changelog brought the unit is not known: see `values`
            parts = [(units, pa.concat_tables([result for _, result in parts], promote_options="default"))]
        if len(parts) > 1:
            self._refuse_twice(pa.concat_tables([result for _, result in parts]), own)
        deltas = []
        for some, result in parts:
            delta = difference(self.spark, own, own.by_value(own.index(self.own_index), some), result)
            if delta is None:
                raise self._twice_computed(result, own)
            self._refuse_foreign(delta.new, units, own)
            deltas.append(delta)
        return deltas

    def _refuse_twice(self, result: pa.Table, own: Table) -> None:
        keys = own.keys_of(result)
        if len(set(keys)) < len(keys):
            raise self._twice_computed(result, own)

    def _twice_computed(self, result: pa.Table, own: Table) -> DuplicateKeyError:
        keys = own.keys_of(result)
        counts = Counter(keys)
        places = [place for place, key in enumerate(keys) if counts[key] > 1]
        first = keys[places[0]]
        pair = result.take([place for place in places if keys[place] == first][:2])
        return _twice(self.view, pair, self._units_words(pair))

    def _units_words(self, rows: pa.Table) -> list[str]:
        """The unit of each row, in words."""
        columns = [rows.column(name).combine_chunks() for name in self.units.columns]
        return [unit_words(self.units.columns, unit) for unit in (values_of(columns) if columns else [ALL] * 2)]

    def _refuse_foreign(self, new: HeldRows, units: set[bytes], own: Table) -> None:
        """A key that the view holds from a unit outside of this step."""
        index, keys = own.index(self.own_index), own.keys_of(new.table)
        there = own.by_key(keys)
        for place, unit in enumerate(there.found[index]):
            if unit not in units:
                held = there.table.slice(place, 1)
                other = new.found[index][keys.index(own.keys_of(held)[0])]
                raise _twice(self.view, held, [unit_words(self.units.columns, each) for each in (unit, other)])


def frame_of(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """Rows as a frame in one piece, in their order."""
    return spark.createDataFrame(rows).coalesce(1)


def values(spark: SparkSession, rows: pa.Table, index: Index) -> list[bytes]:
    """The value of an index for each row: of columns as they are, of expressions by Spark."""
    if not index:
        return [ALL] * rows.num_rows
    names = [_column(expression, rows.schema) for expression in index]
    if any(name is None and is_hidden(expression) for name, expression in zip(names, index, strict=True)):
        return [UNKNOWN] * rows.num_rows
    if not all(names) and rows.num_rows:
        computed = frame_of(spark, rows).selectExpr(*(f"{e} AS `{i}`" for i, e in enumerate(index))).toArrow()
        return values_of([column.combine_chunks() for column in computed.columns])
    return values_of([rows.column(name).combine_chunks() for name in names if name]) if rows.num_rows else []


def _column(expression: str, schema: pa.Schema) -> str | None:
    name = expression.strip("`")
    return name if name in schema.names else None


def difference(spark: SparkSession, table: Table, old: HeldRows, new: pa.Table) -> Delta | None:
    """The rows that went and came where `new` takes the place of `old`; an equal row did neither. None: two rows of
    `new` have one key."""
    shown, hidden = new.select(table.shape.schema.names), _hidden_index(table)
    before, after = _by_key(old.table, table), _by_key(shown, table)
    if hidden is not None:  # an equal row of another unit is held as that unit's
        before = _by_key(old.table, table, old.found[hidden])
        after = _by_key(shown, table, values(spark, new, table.shape.indexes[hidden]))
    if len(after) < new.num_rows:
        return None
    gone = [place for key, (place, cells) in before.items() if key not in after or after[key][1] != cells]
    came = [place for key, (place, cells) in after.items() if key not in before or before[key][1] != cells]
    places = pa.array(came, pa.int64())
    upserts = new.take(places)
    found = tuple(values(spark, upserts, index) for index in table.shape.indexes)
    return Delta(taken(old, gone), HeldRows(shown.take(places), found))


def _hidden_index(table: Table) -> int | None:
    """The index of a view's rows by units that it does not show."""
    places = (place for place, index in enumerate(table.shape.indexes) if any(map(is_hidden, index)))
    return next(places, None)


def _by_key(rows: pa.Table, table: Table, *more: list[bytes]) -> dict[bytes, tuple[int, list[object]]]:
    columns = [cells for name in rows.column_names for cells in cells_of(rows.column(name).combine_chunks())]
    columns += more
    return {key: (place, cells) for place, (key, *cells) in enumerate(zip(table.keys_of(rows), *columns, strict=True))}


def taken(rows: HeldRows, places: Sequence[int]) -> HeldRows:
    """Some of the rows, by their places."""
    return HeldRows(rows.table.take(pa.array(places, pa.int64())), tuple([f[p] for p in places] for f in rows.found))


def joined(parts: Sequence[Delta], own: Table) -> Delta:
    """Differences of units that have no row in common, as one."""
    nothing = HeldRows(own.shape.schema.empty_table(), tuple([] for _ in own.shape.indexes))
    if len(parts) == 1:
        return parts[0]
    return Delta(_united([nothing, *(p.old for p in parts)]), _united([nothing, *(p.new for p in parts)]))


def without(delta: Delta, expired: HeldRows, own: Table) -> Delta:
    """A difference that lets these rows go as well."""
    gone = set(own.keys_of(delta.old.table))
    more = [place for place, key in enumerate(own.keys_of(expired.table)) if key not in gone]
    return Delta(_united([delta.old, taken(expired, more)]), delta.new)


def _united(rows: Sequence[HeldRows]) -> HeldRows:
    found = tuple([value for part in column for value in part] for column in zip(*(r.found for r in rows), strict=True))
    return HeldRows(pa.concat_tables([r.table for r in rows]), found)


def changelog(delta: Delta, table: Table) -> pa.RecordBatch:
    """A difference as a changelog has it: deletes, then upserts; a row that is replaced is an upsert alone, and one
    that has only come to another unit is neither."""
    replaced = set(table.keys_of(delta.new.table))
    came = delta.new.table
    if _hidden_index(table) is not None:
        before, after = _by_key(delta.old.table, table), _by_key(came, table)
        places = [place for key, (place, cells) in after.items() if key not in before or before[key][1] != cells]
        came = came.take(pa.array(places, pa.int64()))
    keys = table.keys_of(delta.old.table)
    deleted = delta.old.table.filter(pa.array([key not in replaced for key in keys], pa.bool_()))
    rows = pa.concat_tables([_with_op(deleted, DELETE), _with_op(came, UPSERT)]).combine_chunks()
    batches = rows.to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=rows.schema)


def _with_op(rows: pa.Table, op: int) -> pa.Table:
    return rows.append_column(pa.field(OP, pa.int8()), pa.array([op] * rows.num_rows, pa.int8()))


def _twice(view: ViewDef, rows: pa.Table, units: Sequence[str]) -> DuplicateKeyError:
    one, other = units[:2]
    return DuplicateKeyError(
        f"'{view.name}' gives two rows for the key {rows.select(view.key).slice(0, 1).to_pylist()[0]}",
        detail=f"one is of the unit {one}, the other of the unit {other}",
        hint="add to key= what tells the rows apart",
    )


def _too_large(view: ViewDef, unit: str, rows: int) -> GroupTooLargeError:
    return GroupTooLargeError(
        f"the unit {unit} of '{view.name}' is computed from {rows:,} rows, whenever one of them changes",
        detail=f"a unit may have {UNIT_ROWS:,}",
        hint="aggregate in a view below, or group by something finer, such as an hour",
    )
