"""Finds how long events matter that a join bounds in time: then nobody need say `within=`.

`a JOIN b ON a.id = b.id AND b._time BETWEEN a._time AND a._time + INTERVAL 10 MINUTES` looks at no events that lie
further apart. The log takes no event that is further behind the newest than `late_after` says. So an event that is
older than both allow together meets no other any more, its rows are final, and it need not be held.

1. The bound of each join is what Spark's own rule for the state of such joins finds in its condition.
2. An event that goes changes no row. So nothing may be computed again with events of which some have gone: all rows of
   a unit are made from one event, whose declared `id=` (or `_time`, for all events of one time) the unit holds, and
   from what lies within the bound of it. What can still come lies within the bound of an event that is held.
3. Rows that never change would be computed from nothing after a loss of `held.db` or in another build. So then events
   are read again from the beginning of the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame

from penstock.flows import plan_tree
from penstock.flows.regroup.units import Units
from penstock.schema import TIME

_BASE_MS = 10**13
"""A watermark that Java takes for a long."""


def bound_us(streamed: DataFrame) -> int | None:
    """How far apart events lie at most that a plan over streams brings together; None: nothing says it."""
    plan = plan_tree.analyzed(streamed)
    nodes = list(plan_tree.nodes(plan))
    joins = [node for node in nodes if plan_tree.kind(node) == "Join"]
    if not joins or any(plan_tree.subqueries(node) for node in nodes):
        return None
    if any(len(plan_tree.children(node)) > 1 for node in nodes if plan_tree.kind(node) != "Join"):
        return None
    found = [_join_ms(streamed, join) for join in joins]
    known = [ms for ms in found if ms is not None]
    return sum(known) * 1000 if len(known) == len(found) else None


def _join_ms(streamed: DataFrame, join: plan_tree.Plan) -> int | None:
    jvm: Any = streamed.sparkSession._jvm
    helper = jvm.org.apache.spark.sql.catalyst.analysis.StreamingJoinHelper
    left, right = (side.outputSet() for side in plan_tree.children(join))
    now = jvm.scala.Some(_BASE_MS)
    found = [helper.getStateValueWatermark(a, b, join.condition(), now) for a, b in ((left, right), (right, left))]
    if not all(one.isDefined() for one in found):
        return None
    return max(abs(int(one.get()) - _BASE_MS) for one in found)


def has_one_event_a_unit(
    frame: DataFrame, inputs: Mapping[str, DataFrame], units: Units, ids: Mapping[str, tuple[str, ...]]
) -> bool:
    """Whether all rows of a unit are made from one event of one stream, and others beside it. `ids` are the fields that
    make the events of each stream unique."""
    names = {plan_tree.analyzed(shape).rdd().id(): name for name, shape in inputs.items()}
    always = _always_there(plan_tree.analyzed(frame), names)

    def is_known(leaf: int) -> bool:
        name, home = units.leaves[leaf].input, {expression.strip("`") for expression in units.homes[leaf]}
        fields = ids.get(name, ())
        return name in always and (TIME in home or (bool(fields) and set(fields) <= home))

    once = len({leaf.input for leaf in units.leaves}) == len(units.leaves)
    return once and any(map(is_known, units.homes))


def _always_there(plan: plan_tree.Plan, names: Mapping[int, str]) -> set[str]:
    """The inputs of which every row of a plan has a row."""
    below = [_always_there(child, names) for child in plan_tree.children(plan)]
    kind = plan_tree.kind(plan)
    if kind == "LogicalRDD":
        return {names[plan.rdd().id()]} if plan.rdd().id() in names else set()
    if kind != "Join":
        return set.intersection(*below) if below else set()
    left, right = below
    kept = {"Inner": left | right, "Cross": left | right, "RightOuter": right, "FullOuter": set[str]()}
    return kept.get(plan_tree.kind(plan.joinType()), left)
