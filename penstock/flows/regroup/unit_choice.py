"""Which units of a view a comparison looks at: all but those that the build leaves out, or a sample of them.

A sample is proved from the rows that its units need, found in the inputs' rows by the same homes and links by which
`regrouping.py` finds them in `held.db`: recomputing a thousand units of a million takes seconds.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import SparkSession

from penstock.flows.regroup.cells import values_of
from penstock.flows.regroup.regrouping import values
from penstock.flows.regroup.units import Units

_SEED = 13
"""The same units are drawn from the same log."""


@dataclass(frozen=True)
class UnitChoice:
    """Some units of a view, and the rows of its inputs that they need."""

    units: Units
    chosen: frozenset[bytes] | None
    """None: all but `skipped`."""
    skipped: frozenset[bytes]
    inputs: Mapping[str, pa.Table]

    def only(self, rows: pa.Table) -> pa.Table:
        """Those of the view's rows that belong to these units."""
        own = values_of([rows.column(name).combine_chunks() for name in self.units.columns])
        wanted = [unit not in self.skipped and (self.chosen is None or unit in self.chosen) for unit in own]
        return rows.filter(pa.array(wanted, pa.bool_()))


def choose(
    spark: SparkSession,
    units: Units,
    inputs: Mapping[str, pa.Table],
    own: pa.Table,
    skipped: Collection[bytes],
    count: int | None,
) -> UnitChoice | None:
    """All units but the skipped ones, or a sample of `count`; None: what the skipped ones are made from cannot be told
    from what others are."""
    rows = _Rows(spark, units, inputs)
    if count is None:
        return UnitChoice(units, None, frozenset(skipped), rows.without(skipped)) if rows.apart else None
    shown = values_of([own.column(name).combine_chunks() for name in units.columns])
    population = sorted({*shown, *rows.units()} - set(skipped))
    chosen = frozenset(random.Random(_SEED).sample(population, min(count, len(population))))
    return UnitChoice(units, chosen, frozenset(skipped), rows.of(chosen))


class _Rows:
    """The inputs' rows, and which of them units need."""

    def __init__(self, spark: SparkSession, units: Units, inputs: Mapping[str, pa.Table]) -> None:
        self._spark = spark
        self._units = units
        self._inputs = inputs
        self._known: dict[tuple[str, tuple[str, ...]], list[bytes]] = {}

    @property
    def apart(self) -> bool:
        """Whether each row belongs to one unit, as far as it tells its unit: no input is read at two places."""
        names = [leaf.input for leaf in self._units.leaves]
        return len(set(names)) == len(names)

    def _values(self, leaf: int, expressions: tuple[str, ...]) -> list[bytes]:
        name = self._units.leaves[leaf].input
        if (name, expressions) not in self._known:
            self._known[name, expressions] = values(self._spark, self._inputs[name], expressions)
        return self._known[name, expressions]

    def units(self) -> set[bytes]:
        return {unit for leaf, home in self._units.homes.items() for unit in self._values(leaf, home)}

    def without(self, skipped: Collection[bytes]) -> dict[str, pa.Table]:
        """All rows but those that tell that they belong to one of these units."""
        inputs = dict(self._inputs)
        for leaf, home in self._units.homes.items():
            name = self._units.leaves[leaf].input
            inputs[name] = _filtered(inputs[name], [unit not in skipped for unit in self._values(leaf, home)])
        return inputs

    def of(self, chosen: Collection[bytes]) -> dict[str, pa.Table]:
        """The rows that these units need."""
        needed = {leaf: [u in chosen for u in self._values(leaf, home)] for leaf, home in self._units.homes.items()}
        for link in self._units.links:
            of = self._values(link.of.leaf, (link.of.expression,))
            there = {value for value, is_needed in zip(of, needed[link.of.leaf], strict=True) if is_needed}
            needed[link.to.leaf] = [value in there for value in self._values(link.to.leaf, (link.to.expression,))]
        inputs = dict(self._inputs)
        for name in {leaf.input for leaf in self._units.leaves}:
            masks = [needed[leaf.number] for leaf in self._units.leaves if leaf.input == name]
            inputs[name] = _filtered(inputs[name], [any(row) for row in zip(*masks, strict=True)])
        return inputs


def _filtered(rows: pa.Table, mask: list[bool]) -> pa.Table:
    return rows.filter(pa.array(mask, pa.bool_()))
