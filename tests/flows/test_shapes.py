"""Every shape of query, kept current under random changes, equals Spark's own batch query after each of them."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from penstock.declaration import Place, ViewDef
from penstock.flows.regroup import held, regrouping
from penstock.flows.regroup.regrouping import Delta, Regrouping, frame_of, values
from penstock.flows.regroup.units import find_units, relation, whole
from tests.flows import shapes
from tests.flows.shapes import KEYS, SHAPES, TABLES, Shape

SEEDS = int(os.environ.get("SHAPE_SEEDS", "1"))
ROUNDS = int(os.environ.get("SHAPE_ROUNDS", "4"))
PLAYED = SHAPES if "SHAPE_SEEDS" in os.environ else random.Random(887).sample(SHAPES, 30)
"""`make shapes SEEDS=50` plays all of them in many orders; `make test` has the time for some."""


def arrow(frame: DataFrame) -> pa.Schema:
    return pa.schema([field.remove_metadata() for field in to_arrow_schema(frame.schema, timezone="UTC")])


class Kept:
    """A view of one shape over tables that change, and the tables as they are."""

    def __init__(self, spark: SparkSession, path: Path, shape: Shape) -> None:
        self.spark, self.shape = spark, shape
        relations = {name: relation(spark, TABLES[name]) for name in shape.inputs}
        frame = shape.function(**relations)
        self.units = find_units(frame, relations, shape.key)
        where = Place("shapes.py", 1)
        view = ViewDef(shape.name, shape.function, shape.inputs, shape.key, None, (), None, None, False, where, "")
        units = self.units or whole(shape.inputs)
        self.view = Regrouping(view, units, lambda frames: shape.function(**frames), arrow(frame), spark)
        self.held = held.HeldFile(path)
        found_by = self.view.indexes()
        for name in shape.inputs:
            indexes = tuple(sorted(found_by[name]))
            self.held.table(held.Shape(name, arrow(relations[name]), (KEYS[name],), indexes))
        self.own = self.held.table(held.Shape(shape.name, self.view.schema, shape.key, (self.view.own_index,)))
        self.tables: dict[str, dict[Any, shapes.Row]] = {name: {} for name in shape.inputs}

    def change(self, rng: random.Random, most: int) -> None:
        """Some rows of some tables come, change or go, and the view follows."""
        first = not any(self.tables.values())
        deltas = {name: self._changed(name, rng, most) for name in self.shape.inputs if first or rng.random() < 0.7}
        units = self.view.touched(deltas, self.held.tables)
        needed = self.view.needed(units, self.held.tables)
        delta = self.view.difference(units, self.view.computed(needed, units), self.own)
        self.own.apply(delta.old, delta.new)

    def _changed(self, name: str, rng: random.Random, most: int) -> Delta:
        table, key = self.held.tables[name], KEYS[name]
        ops = {}
        for _ in range(rng.randrange(1, most)):
            row = shapes.row(name, rng)
            ops[row[key]] = None if rng.random() < 0.25 else row
        for value, row in ops.items():
            self.tables[name].pop(value, None)
            if row is not None:
                self.tables[name][value] = row
        schema = table.shape.schema
        new = pa.Table.from_pylist([row for row in ops.values() if row], schema=schema)
        keys = table.keys_of(pa.table({key: pa.array(list(ops), schema.field(key).type)}))
        rows = held.HeldRows(new, tuple(values(self.spark, new, index) for index in table.shape.indexes))
        delta = Delta(table.by_key(keys), rows)
        table.remove(keys)
        table.put(rows)
        return delta

    def batch(self) -> list[str]:
        """What Spark gives over the tables as they are."""
        frames = {}
        for name, rows in self.tables.items():
            ordered = [rows[key] for key in sorted(rows)]
            table = pa.Table.from_pylist(ordered, schema=self.held.tables[name].shape.schema)
            frames[name] = frame_of(self.spark, table)
        return shown(self.shape.function(**frames).toArrow().cast(self.view.schema))

    def rows(self) -> list[str]:
        return shown(self.own.everything().table)


def shown(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("shape", PLAYED, ids=lambda shape: shape.name)
def test_a_view_equals_its_batch_query_after_every_change(
    spark: SparkSession, tmp_path: Path, shape: Shape, seed: int
) -> None:
    kept = Kept(spark, tmp_path / "held.db", shape)
    assert (kept.units.columns if kept.units else ()) == shape.unit
    rng = random.Random(f"{shape.name} {seed}")
    for number in range(ROUNDS):
        kept.change(rng, most=4 if number else 20)
        assert kept.rows() == kept.batch(), f"seed {seed}, change {number}"


def test_without_old_values_rows_would_stay(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison sees a view that follows only where rows are now, not where they were."""

    def only_new(self: Regrouping, deltas: Any, tables: Any) -> set[bytes]:
        units: set[bytes] = set()
        for leaf in self.units.leaves:
            if leaf.input in deltas:
                units |= self._units_of(leaf.number, deltas[leaf.input].new, tables)
        return units

    monkeypatch.setattr(regrouping.Regrouping, "touched", only_new)
    shape = next(shape for shape in SHAPES if shape.name == "counted")
    kept = Kept(spark, tmp_path / "held.db", shape)
    rng = random.Random(1)
    equal = []
    for number in range(10):
        kept.change(rng, most=4 if number else 20)
        equal.append(kept.rows() == kept.batch())
    assert not all(equal)
