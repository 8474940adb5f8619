"""Every shape of query, kept current under random changes, equals Spark's own batch query after each of them."""

from __future__ import annotations

import os
import random
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from penstock.change import OP, UPSERT
from penstock.declaration import Place, ViewDef
from penstock.flows.regroup import held
from penstock.flows.regroup.first_rows import find_first_rows
from penstock.flows.regroup.regrouping import Delta, Regrouping, changelog, frame_of, values
from penstock.flows.regroup.sums import FromRows, RunningSums, is_addable
from penstock.flows.regroup.units import find_hidden_units, find_units, relation, whole
from tests.flows import shapes
from tests.flows.shapes import KEYS, SHAPES, TABLES, Shape

SEEDS = int(os.environ.get("SHAPE_SEEDS", "1"))
SAMPLE = {
    "counted", "top_two", "left_join", "anti_join", "correlated", "not_within", "shared_part", "union", "full_join",
    "rolled_up", "grand_total", "sums_and_averages", "first_by_a_float", "place_among_those_of_a_user", "above_average",
    "as_of_a_time", "three_tables_by_the_middle",
}  # fmt: skip
"""One of each kind: `make shapes SEEDS=50` plays all of them in many orders, `make test` has the time for these."""
PLAYED = [shape for shape in SHAPES if "SHAPE_SEEDS" in os.environ or shape.name in SAMPLE]
ROUNDS = int(os.environ.get("SHAPE_ROUNDS", "4" if "SHAPE_SEEDS" in os.environ else "3"))


def arrow(frame: DataFrame) -> pa.Schema:
    return pa.schema([field.remove_metadata() for field in to_arrow_schema(frame.schema, timezone="UTC")])


told = changelog
"""What a subscriber is told of a difference."""


class Kept:
    """A view of one shape over tables that change, and the tables as they are."""

    def __init__(self, spark: SparkSession, path: Path, shape: Shape, *, adds: bool = True) -> None:
        """`adds`: it is kept by adding if it can be; otherwise, and as any other one, by its units."""
        self.spark, self.shape = spark, shape
        relations = {name: relation(spark, TABLES[name]) for name in shape.inputs}
        frame = shape.function(**relations)
        self.units = find_units(frame, relations, shape.key)
        where = Place("shapes.py", 1)
        view = ViewDef(shape.name, shape.function, shape.inputs, shape.key, None, (), None, None, False, where, "")
        self.adds = is_addable(frame, relations, self.units)
        first = None if self.units or self.adds else find_first_rows(frame, relations)
        if self.units is None and first is None and not self.adds:
            self.units = find_hidden_units(frame, relations)
        units = self.units or first or whole(shape.inputs)
        self.view = Regrouping(view, units, lambda frames: shape.function(**frames), arrow(frame), spark)
        self.held = held.HeldFile(path)
        found_by, orders = self.view.indexes(), self.view.orders()
        for name in shape.inputs:
            indexes = tuple(sorted(found_by[name]))
            self.held.table(
                held.Shape(name, arrow(relations[name]), (KEYS[name],), indexes, orders=tuple(orders.get(name, ())))
            )
        self.own = self.held.table(held.Shape(shape.name, self.view.schema, shape.key, (self.view.own_index,)))
        self.sums = RunningSums(self.view) if adds and self.adds else None
        if self.sums is not None:
            self.held.table(self.sums.shape({name: arrow(relations[name]) for name in shape.inputs}))
        self.tables: dict[str, dict[Any, shapes.Row]] = {name: {} for name in shape.inputs}
        self.copy: dict[bytes, shapes.Row] = {}
        """A subscriber's."""
        self.read: dict[str, int] = {}
        """How many rows of each table the last change was computed from."""

    def change(self, rng: random.Random, number: int) -> None:
        """Rows of all tables come; then half of those go that there are; then some of some tables come, change or go.
        The view follows."""
        if number == 1:
            self.follow({name: self._halved(name, rng) for name in self.shape.inputs})
            return
        names = [name for name in self.shape.inputs if number == 0 or rng.random() < 0.7]
        self.follow({name: self._changed(name, rng, most=4 if number else 20) for name in names})

    def _halved(self, name: str, rng: random.Random) -> Delta:
        """Half of the rows go, one of them comes to be another, and one comes."""
        there = sorted(self.tables[name])
        ops: dict[Any, shapes.Row | None] = dict.fromkeys(rng.sample(there, (len(there) + 1) // 2))
        if there:
            kept = rng.choice(there)
            ops[kept] = shapes.row(name, rng) | {KEYS[name]: kept}
        new = shapes.row(name, rng)
        return self.put(name, ops | {new[KEYS[name]]: new})

    def follow(self, deltas: dict[str, Delta]) -> None:
        units = self.view.touched(deltas, self.held.tables)
        if self.sums is not None:
            needed = {}
            if self.sums.lost(self.held, "epoch") is not None:
                assert self.sums.follow(self.held, "epoch", deltas, nullcontext) is not None
            lost = self.sums.lost(self.held, "epoch")
            result, found = self.sums.computed(units, lost, self.held.tables)
            self.sums.settle(self.held, "epoch", FromRows(lost, found), (), set())
        else:
            needed = self.view.needed(units, self.held.tables)
            result = self.view.computed(needed, units)
        delta = self.view.difference(units, result, self.own)
        self._follow(told(delta, self.own))
        self.own.apply(delta.old, delta.new)
        self.read = {name: rows.num_rows for name, rows in needed.items()}

    def _follow(self, changes: pa.RecordBatch) -> None:
        """What a subscriber makes of a changelog: deletes and upserts by key."""
        rows = pa.Table.from_batches([changes])
        for key, row in zip(self.own.keys_of(rows), rows.to_pylist(), strict=True):
            if row.pop(OP) == UPSERT:
                self.copy[key] = row
            else:
                del self.copy[key]

    def _changed(self, name: str, rng: random.Random, most: int) -> Delta:
        ops: dict[Any, shapes.Row | None] = {}
        for _ in range(rng.randrange(1, most)):
            row = shapes.row(name, rng)
            ops[row[KEYS[name]]] = None if rng.random() < 0.25 else row
        return self.put(name, ops)

    def put(self, name: str, ops: dict[Any, shapes.Row | None]) -> Delta:
        """Set rows of a table by their keys, or let them go."""
        table, key = self.held.tables[name], KEYS[name]
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

    def copied(self) -> list[str]:
        return sorted(map(repr, self.copy.values()))

    def rows(self) -> list[str]:
        return shown(self.own.everything().table)


def shown(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("shape", PLAYED, ids=lambda shape: shape.name)
def test_a_view_equals_its_batch_query_after_every_change(
    spark: SparkSession, tmp_path: Path, shape: Shape, seed: int
) -> None:
    kept = Kept(spark, tmp_path / "held.db", shape, adds=seed % 2 == 0)
    assert tuple(column.replace(" (not shown)", "*") for column in kept.view.units.columns) == shape.unit
    assert (kept.adds, kept.view.units.first is not None) == (shape.added, shape.first)
    rng = random.Random(f"{shape.name} {seed}")
    for number in range(ROUNDS):
        kept.change(rng, number)
        assert kept.rows() == kept.batch(), f"seed {seed}, change {number}"
        assert kept.copied() == kept.rows(), f"seed {seed}, change {number}"


def only_new(self: Regrouping, deltas: Any, tables: Any) -> set[bytes]:
    """Units of rows where they are now, not where they were."""
    leaves = [leaf for leaf in self.units.leaves if leaf.input in deltas]
    return {unit for leaf in leaves for unit in self._units_of(leaf.number, deltas[leaf.input].new, tables)}


def only_upserts(delta: Delta, table: held.Table) -> pa.RecordBatch:
    rows = changelog(delta, table)
    return rows.filter(pa.compute.equal(rows.column(OP), UPSERT))


@pytest.mark.parametrize("what", ["old values", "deletes"])
def test_the_comparison_sees_what_is_left_out(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """In the few changes that `make test` plays."""
    if what == "deletes":
        monkeypatch.setattr(sys.modules[__name__], "told", only_upserts)
    else:
        monkeypatch.setattr(Regrouping, "touched", only_new)
    kept = Kept(spark, tmp_path / "held.db", next(shape for shape in SHAPES if shape.name == "counted"))
    rng, equal = random.Random("counted 0"), []
    for number in range(2):
        kept.change(rng, number)
        equal.append(kept.rows() == kept.batch() == kept.copied())
    assert equal == [True, False]


def many(name: str) -> dict[Any, shapes.Row | None]:
    """200 users of 40 countries, three orders of each, and a tax of each country."""
    if name == "orders":
        return {n: {"oid": n, "uid": n % 200, "amt": n % 5, "price": 0.1} for n in range(600)}
    if name == "users":
        return {n: {"id": n, "name": "a", "country": f"C{n % 40}"} for n in range(200)}
    return {f"C{n}": {"country": f"C{n}", "tax": n} for n in range(40)}


PRICED = ["counted", "top_two", "left_join", "anti_join", "three_tables_by_the_middle", "full_join", "top_with_join"]


@pytest.mark.parametrize("shape", [s for s in SHAPES if s.name in PRICED], ids=lambda shape: shape.name)
def test_a_change_reads_the_rows_of_its_units_and_no_others(spark: SparkSession, tmp_path: Path, shape: Shape) -> None:
    """The price that `check` names: a changed order or user leads to one user, or to the five of a country."""
    kept = Kept(spark, tmp_path / "held.db", shape)
    kept.follow({name: kept.put(name, many(name)) for name in shape.inputs})
    changed = {"oid": 7, "uid": 7, "amt": 4, "price": 0.2}
    people = 1 if "country" not in shape.unit else 5
    kept.follow({"orders": kept.put("orders", {7: changed})})
    most = {"orders": 3 * people, "users": people, "taxes": 1}
    assert {name: rows for name, rows in kept.read.items() if rows > most[name]} == {}
    assert kept.rows() == kept.batch()


def test_the_first_rows_are_read_and_no_others(spark: SparkSession, tmp_path: Path) -> None:
    kept = Kept(spark, tmp_path / "held.db", next(s for s in SHAPES if s.name == "first_five"))
    kept.follow({"orders": kept.put("orders", many("orders"))})
    kept.follow({"orders": kept.put("orders", {7: None, 20: None})})
    assert kept.read == {"orders": 5}
    assert kept.rows() == kept.batch()


def test_what_has_no_unit_reads_everything(spark: SparkSession, tmp_path: Path) -> None:
    kept = Kept(spark, tmp_path / "held.db", next(s for s in SHAPES if s.name == "rank_over_everything"))
    kept.follow({"orders": kept.put("orders", many("orders"))})
    kept.follow({"orders": kept.put("orders", {7: None})})
    assert kept.read == {"orders": 599}
