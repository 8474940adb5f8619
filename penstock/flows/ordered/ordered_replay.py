"""An ordered flow played again from its log, plainly: what it must have emitted, and what its states must be.

Where the log alone does not say what happened (several inputs in the order of the log, timers by the clock, events that
were left out), the flow's own commits do: they are replayed batch by batch, as they were recorded.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from penstock.flows.ordered.fold import BatchGround, FoldSpec
from penstock.flows.ordered.held_state import HeldState, keys_table, together
from penstock.flows.ordered.ordered_reader import OrderedInput, OrderedReader
from penstock.flows.ordered.spread import fold_anywhere
from penstock.log.builds import BatchMeta
from penstock.stateful import TIMERS

_ROWS = 500_000


def replayed(
    spec: FoldSpec, inputs: Mapping[str, OrderedInput], metas: Sequence[BatchMeta], spark: SparkSession | None
) -> tuple[pa.Table, pa.Table]:
    """What the flow emitted, in its order, and its states, after these commits of its."""
    recorded = (spec.order == "log" and len(inputs) > 1) or any(m.ordered and m.ordered.fired for m in metas)
    with tempfile.TemporaryDirectory() as scratch:
        held = HeldState(Path(scratch) / "states.db", spec)
        try:
            play = _Replay(spec, OrderedReader(inputs, spec.order), held, spark)
            for meta in metas if recorded else metas[-1:]:
                play.up_to(meta)
            return play.rows(), held.everything()
        finally:
            held.close()


class _Replay:
    def __init__(self, spec: FoldSpec, reader: OrderedReader, held: HeldState, spark: SparkSession | None) -> None:
        self._spec, self._reader, self._held, self._spark = spec, reader, held, spark
        self._rows: list[pa.Table] = []
        self._complete: tuple[int | None, ...] = ()

    def rows(self) -> pa.Table:
        return pa.concat_tables([self._spec.rows_schema.empty_table(), *self._rows])

    def up_to(self, meta: BatchMeta) -> None:
        assert meta.ordered is not None
        fired = tuple((tuple(key), name) for key, name in meta.ordered.fired)
        batch = self._reader.read(_ROWS, meta.ordered.commits)
        while batch is not None or fired:
            self._complete = batch.complete_us if batch is not None else self._complete[-1:]
            events = batch.events if batch is not None else {}
            due = self._held.due(self._complete[-1] if self._complete else None)
            ringing = self._held.of_keys([key for key, _ in fired])
            states = together([self._held.rows(list(events.values())), due, ringing], self._spec)
            ground = BatchGround(self._complete, 0, self._reader.timed, fired)
            folded = fold_anywhere(self._spark, self._spec, ground, events, states)
            self._held.apply(folded.states, keys_table(folded.gone, self._spec.key_fields))
            self._rows.append(folded.rows)
            if batch is not None:
                self._reader.take(batch)
            fired, batch = (), self._reader.read(_ROWS, meta.ordered.commits)


def without_clocks(states: pa.Table) -> pa.Table:
    """States as they can be compared: when a timer by the clock is due is not repeatable."""
    at = states.column_names.index(TIMERS)
    rows = [[t if not t["clock"] else {**t, "at": None} for t in row or ()] for row in states.column(at).to_pylist()]
    return states.set_column(at, states.schema.field(at), pa.array(rows, states.schema.field(at).type))


def same_order(left: pa.Table, right: pa.Table) -> list[str]:
    """The first row at which two streams of equal rows are in another order, as a difference."""
    if left.num_rows != right.num_rows or left.equals(right.cast(left.schema)):
        return []
    for at, (mine, theirs) in enumerate(zip(left.to_pylist(), right.to_pylist(), strict=True)):
        if repr(mine) != repr(theirs):
            return [f"row {at} is out of order: stream {mine}, replay {theirs}"]
    return []
