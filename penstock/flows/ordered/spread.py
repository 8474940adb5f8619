"""Folds a large batch in Spark's executors: events and states go by key to tasks, each of which folds its keys.

A small batch is folded where it is: a job of Spark costs more than twenty thousand events.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import msgspec
import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from penstock.flows.ordered.fold import SEQUENCE, BatchGround, Folded, FoldSpec, fold
from penstock.flows.regroup.cells import values_of

FEW_EVENTS = 20_000
"""Up to so many events are folded in the driver."""
_KEY, _STATE, _RESULT = "#key", "#state", "result"
_SCHEMA = f"{_RESULT} binary"


def fold_anywhere(
    spark: SparkSession | None, spec: FoldSpec, ground: BatchGround, events: Mapping[str, pa.Table], states: pa.Table
) -> Folded:
    """Fold a batch, where that is fastest. Events that a script has no use for are left out before."""
    wanted = getattr(spec.script.script, "wanted", None)
    if wanted is not None:
        events = {name: wanted(table) for name, table in events.items()}
    whole = getattr(spec.script.script, "fold_table", None)
    if whole is not None:
        found: Folded = whole(spec, ground, events, states)
        return found
    if spark is None or sum(table.num_rows for table in events.values()) <= FEW_EVENTS:
        return fold(spec, ground, events, states)
    return spread(spark, spec, ground, events, states)


def spread(
    spark: SparkSession, spec: FoldSpec, ground: BatchGround, events: Mapping[str, pa.Table], states: pa.Table
) -> Folded:
    """Fold a batch in tasks, as many as Spark has cores for."""
    parts = max(2, spark.sparkContext.defaultParallelism)
    table, schemas = _packed(spec, events, states)
    frame = spark.createDataFrame(table).repartition(parts, f"`{_KEY}`")
    task = _task(_pickled((spec, ground, schemas)))
    results = [pickle.loads(row[0]) for row in frame.mapInArrow(task, _SCHEMA).collect()]
    return _joined(spec, results)


def _packed(spec: FoldSpec, events: Mapping[str, pa.Table], states: pa.Table) -> tuple[pa.Table, dict[str, pa.Schema]]:
    """Events and states as rows of one table: a column of structs for each input, and one for states."""
    sides = {**events, _STATE: states}
    schemas = {name: table.schema for name, table in sides.items()}
    pieces = []
    for name, table in sides.items():
        keys = values_of([table.column(part).combine_chunks() for part in spec.key])
        columns: dict[str, Any] = {_KEY: pa.array(keys, pa.binary())}
        for at, (other, schema) in enumerate(schemas.items()):
            kind = pa.struct([pa.field(f"f{i}", f.type) for i, f in enumerate(schema)])
            own = [chunk for batch in table.combine_chunks().to_batches() for chunk in [_struct(batch, kind)]]
            columns[f"s{at}"] = pa.chunked_array(own, kind) if other == name else pa.nulls(table.num_rows, kind)
        pieces.append(pa.table(columns))
    return pa.concat_tables(pieces), schemas


def _struct(batch: pa.RecordBatch, kind: pa.StructType) -> pa.Array:
    if batch.num_columns != kind.num_fields:
        return pa.nulls(batch.num_rows, kind)
    return pa.StructArray.from_arrays(batch.columns, fields=list(kind))


def _task(packed: bytes) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        spec, ground, schemas = pickle.loads(packed)
        whole = pa.Table.from_batches(list(batches)) if (batches := list(batches)) else None  # type: ignore[assignment]
        if whole is None or not whole.num_rows:
            return
        sides = {name: _unpacked(whole, at, schema) for at, (name, schema) in enumerate(schemas.items())}
        states = sides.pop(_STATE)
        folded = fold(spec, ground, {n: t.sort_by(SEQUENCE) for n, t in sides.items()}, states)
        yield pa.record_batch([pa.array([pickle.dumps(folded)], pa.binary())], [_RESULT])

    return task


def _unpacked(whole: pa.Table, at: int, schema: pa.Schema) -> pa.Table:
    column = whole.column(f"s{at}").combine_chunks()
    column = column.filter(column.is_valid())
    arrays = column.flatten() if isinstance(column, pa.Array) else column.combine_chunks().flatten()
    return pa.Table.from_arrays([a.cast(f.type) for a, f in zip(arrays, schema, strict=True)], schema=schema)


def _joined(spec: FoldSpec, results: list[Folded]) -> Folded:
    """The parts of a batch as one: rows in the order of their tags."""
    if not results:
        return Folded(spec.rows_schema.empty_table(), spec.state_schema.empty_table(), [])
    tags = [tag for part in results for tag in part.tags]
    order = sorted(range(len(tags)), key=tags.__getitem__)
    return Folded(
        rows=pa.concat_tables([part.rows for part in results]).take(pa.array(order, pa.int64())),
        states=pa.concat_tables([part.states for part in results]),
        gone=[key for part in results for key in part.gone],
        letters=[letter for part in results for letter in part.letters],
        tags=[tags[at] for at in order],
    )


# Classes of fields on their way to executors


def _pickled(thing: Any) -> bytes:
    file = io.BytesIO()
    _Pickler(file).dump(thing)
    return file.getvalue()


class _Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]
    """Pickles a class of fields of the app file by what it is made of: cloudpickle would leave out the fields."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, msgspec.StructMeta) and _by_value(obj):
            fields = [_field(field) for field in msgspec.structs.fields(cast("type[msgspec.Struct]", obj))]
            options = {name: getattr(obj.__struct_config__, name) for name in ("frozen", "eq", "order", "gc")}
            options["kw_only"] = not obj.__match_args__
            own = {name: part for name, part in vars(obj).items() if _is_own(name, part, obj)}
            made = (obj.__name__, fields, obj.__module__, options)
            return _struct_class, made, own, None, None, _give_parts
        return super().reducer_override(obj)


def _by_value(kind: type) -> bool:
    return bool(cloudpickle.cloudpickle._should_pickle_by_reference(kind) is False)


def _field(field: Any) -> tuple[Any, ...]:
    if field.default is not msgspec.NODEFAULT:
        return field.name, field.type, field.default
    if field.default_factory is not msgspec.NODEFAULT:
        return field.name, field.type, msgspec.field(default_factory=field.default_factory)
    return field.name, field.type


def _is_own(name: str, part: Any, kind: type) -> bool:
    """A method, property or constant that the class itself defines."""
    return not (name.startswith("__") or name in kind.__struct_fields__)  # type: ignore[attr-defined]


def _struct_class(name: str, fields: list[Any], module: str, options: dict[str, Any]) -> type:
    return msgspec.defstruct(name, fields, module=module, **options)


def _give_parts(kind: type, parts: dict[str, Any]) -> None:
    for name, part in parts.items():
        setattr(kind, name, part)
