"""The versions of a table as rows of their own, for joins as of a time.

A table's changelog holds every change until compaction merges it, which `versions=` puts off. Each change is a version:
a row that is known by its place in the log. `held.db` may hold versions that the log has let go: those are older than
any that an event within reach can ask for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from penstock.change import OP
from penstock.declaration import TableDef
from penstock.flows import plan_tree
from penstock.flows.regroup.held import Index, Shape
from penstock.flows.regroup.units import relation
from penstock.joins import VERSION, WRITTEN, TableVersions, with_versions
from penstock.log.log import Block, LogReader, Stream
from penstock.schema import TIMESTAMP, simple_type

_ROWS_BITS = 24
"""Of a version's number, for its place within a commit."""
_SUFFIX = "@versions"


def versions_name(table: str) -> str:
    """What the versions of a table are called where its rows have its own name."""
    return f"{table}{_SUFFIX}"


def input_of(name: str) -> str:
    """The table that versions are of; any other name is its own."""
    return name.removesuffix(_SUFFIX)


def versions_schema(table: pa.Schema) -> pa.Schema:
    """For the columns that a table's rows have in Spark."""
    own = [field for field in table if field.name != OP]
    return pa.schema([*own, pa.field(OP, pa.int8()), pa.field(VERSION, pa.int64()), pa.field(WRITTEN, TIMESTAMP)])


def version_rows(blocks: Iterable[Block], schema: pa.Schema) -> pa.Table:
    """The changes in blocks of a table's changelog, in their order."""
    batches, commit, before = [schema.empty_table()], None, 0
    for block in blocks:
        rows = block.batch.num_rows
        before = before if block.commit == commit else 0  # a commit that compaction has made has several blocks
        numbers = pa.array(range(before, before + rows), pa.int64())
        version = pa.compute.add(numbers, pa.scalar(block.commit << _ROWS_BITS, pa.int64()))
        written = pa.repeat(pa.scalar(block.written_us, pa.int64()), rows).cast(TIMESTAMP)
        columns = [block.batch.column(field.name) for field in schema if field.name not in (VERSION, WRITTEN)]
        names = [name for name in schema.names if name not in (VERSION, WRITTEN)]
        batches.append(pa.table([*columns, version, written], [*names, VERSION, WRITTEN]).cast(schema))
        commit, before = block.commit, before + rows
    return pa.concat_tables(batches)


@dataclass(frozen=True)
class InputVersions:
    """The versions of a table that a regrouped view joins."""

    input: str
    """The table."""
    schema: pa.Schema
    log: LogReader
    live: Callable[[], Stream | None]

    @property
    def name(self) -> str:
        return versions_name(self.input)

    def shape(self, indexes: tuple[Index, ...]) -> Shape:
        return Shape(self.name, self.schema, (VERSION,), indexes)

    def rows(self, stream: Stream, start: int, end: int) -> pa.Table:
        return version_rows(self.log.read(stream, 0, start, end) if start < end else (), self.schema)


def attached(
    spark: SparkSession, tables: Iterable[TableDef], schemas: Mapping[str, pa.Schema], frames: Mapping[str, DataFrame]
) -> dict[str, DataFrame]:
    """Frames for a function's parameters, those of tables with their versions; what is not given of them is empty."""
    given = dict(frames)
    for table in tables:
        versions = given.pop(versions_name(table.name), None)
        current, schema = given.get(table.name), schemas.get(table.name)
        if schema is None or table.versions_us is None or (current is None and versions is None):
            continue
        columns = from_arrow_schema(schema)
        frame = versions if versions is not None else relation(spark, from_arrow_schema(versions_schema(schema)))
        known = TableVersions(frame, table.name, table.key, tuple(columns.names), since_of(table))
        given[table.name] = with_versions(relation(spark, columns) if current is None else current, known)
    return given


def used_shapes(frame: DataFrame, shapes: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
    """Of a table, its rows or its versions or both, as a function reads it; of any other input, itself."""
    plan = plan_tree.analyzed(frame)
    read = {n.rdd().id() for n in plan_tree.with_subqueries(plan) if plan_tree.kind(n) == "LogicalRDD"}
    used = {name for name, shape in shapes.items() if plan_tree.analyzed(shape).rdd().id() in read}
    versioned = {input_of(name) for name in used if name != input_of(name)}
    plain = {name for name in shapes if name == input_of(name) and name not in versioned}
    return {name: shape for name, shape in shapes.items() if name in used | plain}


def since_of(table: TableDef) -> str | None:
    """SQL of the time from which on a row of a table holds."""
    if table.time is None:
        return None
    kind = simple_type(table.events.arrow.field(table.time).type)
    return f"`{table.time}`" if kind == "timestamp" else f"timestamp_millis(`{table.time}`)"
