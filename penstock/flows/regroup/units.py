"""Finds the units of a view: by which columns its rows can be computed a few at a time, and from which rows of its
inputs.

A *unit* is the rows of a view that have the same values in some of its columns. To compute a unit again one needs of
each input only the rows that can reach it. Which rows those are is not decided by rules of ours, but by Spark's own
optimizer:

- **Homes.** Above the plan stands, for each column of the result, a filter by a *mark*: a function that Spark knows
  nothing of but that it is deterministic. Spark pushes a filter down only where that changes nothing. So a mark that
  has arrived directly above a leaf proves: of this leaf, rows whose expression has another value than the unit's do
  not matter.
- **Links.** Above each side of each join stands a mark on each column by which it joins. Where Spark infers the same
  mark for the other side, it proves: of that leaf, rows matter only whose expression has a value that occurs on this
  side.

Going along links from the homes of a unit gives the rows that it needs. Going back along them, from a changed row of
any leaf, gives the homes' rows that it touches, and so the units that changed: rows that no link leads to do not
matter to any unit.

Spark does not push a filter through some things, though it could; what `_Tracer` does there has its proof with it: full
outer joins (`_through_full_joins`), grouping sets (`_as_union`) and renamed columns of a window (`_with_partitions`).

1. A mark says true of everything, null too, so that a filter by values may treat null as a value.
2. What has no such proof has no unit: `find_units` gives None, and the view is computed as a whole.
3. Rows beyond those that are needed do no harm: a leaf may always hold more, and other units of the result are left
   out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from penstock.flows import plan_tree

_GROUP_LIMITS = "spark.sql.optimizer.windowGroupLimitThreshold"
_LEFT_OUT = "spark.sql.optimizer.excludedRules"
_FOLDING = "org.apache.spark.sql.catalyst.optimizer.ConstantFolding"
_NOT_SHOWN = re.compile(r"\(not shown(, \d+)?\)`$")
_CARRYING = ("Project", "Filter", "SubqueryAlias", "View")
_OVER_KEYS = ("EqualTo", "EqualNullSafe")
_WITH_PLANS = ("ScalarSubquery", "LateralSubquery", "Exists", "ListQuery", "InSubquery", "DynamicPruningSubquery")


@dataclass(frozen=True)
class Leaf:
    """One place in a plan at which an input is read; an input that is joined with itself has two."""

    number: int
    input: str


@dataclass(frozen=True)
class LeafValue:
    """Values of one leaf: of a column, or of an expression over its columns, as SQL."""

    leaf: int
    expression: str


@dataclass(frozen=True)
class JoinLink:
    """Rows of `to` matter only if their value occurs among the values of `of`."""

    of: LeafValue
    to: LeafValue


@dataclass(frozen=True)
class FirstRows:
    """The first rows of an input, by an order of some of its columns."""

    count: int
    order: tuple[tuple[str, bool], ...]
    """Column, and whether the largest come first; of rows that are equal in these, all."""
    where: str | None
    """SQL over its columns; rows for which it is not true do not count."""


@dataclass(frozen=True)
class Units:
    """How a view is computed unit by unit."""

    columns: tuple[str, ...]
    """The columns of the result that make a unit."""
    leaves: tuple[Leaf, ...]
    homes: Mapping[int, tuple[str, ...]]
    """Leaves whose rows tell their unit themselves: an expression for each of `columns`."""
    links: tuple[JoinLink, ...]
    """How the other leaves are reached, each after what it is reached from."""
    first: FirstRows | None = None
    """Of a view that has no unit: which rows of its one input it needs; None: all."""
    hidden: tuple[str, ...] = ()
    """Those of `columns` that the view does not show: they are carried beside its rows (see `carried`)."""


def whole(inputs: Iterable[str]) -> Units:
    """One unit, which is all of the view and needs all of its inputs."""
    leaves = tuple(Leaf(number, name) for number, name in enumerate(inputs))
    return Units((), leaves, {leaf.number: () for leaf in leaves}, ())


@dataclass(frozen=True)
class _Traces:
    """Where marks have arrived: by the number of a leaf, the mark's name and the expression inside."""

    arrived: tuple[tuple[int, str, str], ...]

    def at(self, leaf: int) -> dict[str, str]:
        return {name: expression for number, name, expression in self.arrived if number == leaf}

    def of(self, name: str) -> dict[int, str]:
        return {number: expression for number, mark, expression in self.arrived if mark == name}


def find_units(frame: DataFrame, inputs: Mapping[str, DataFrame], key: Sequence[str]) -> Units | None:
    """The units of a batch plan over `inputs`, each a relation without rows of its own (see `relation`); None: it has
    none.

    Columns of the view's key are preferred: the view's rows are known by them.
    """
    tracer = _Tracer(frame.sparkSession, inputs)
    plan = tracer.rewritten(tracer.optimised(plan_tree.analyzed(frame)))
    leaves = tracer.leaves(plan)
    if len({leaf.input for leaf in leaves}) < len(inputs) or tracer.has_subqueries(plan):
        return None
    if not tracer.comes_from_inputs(plan) or tracer.is_collated(plan):
        return None
    homes = tracer.homes(plan, leaves)
    links = tracer.links(plan, leaves)
    for columns in (key, frame.columns):
        best = _best(columns, leaves, homes, links)
        if best is not None:
            return best
    return None


def find_hidden_units(frame: DataFrame, inputs: Mapping[str, DataFrame]) -> Units | None:
    """The units of a plan by columns that it drops at its end; None: it drops none, or they are no units."""
    more = carried(frame)
    if more is None:
        return None
    hidden = [name for name in more.columns if name not in frame.columns]
    units = find_units(more, inputs, hidden)
    return None if units is None else replace(units, hidden=tuple(c for c in units.columns if c in hidden))


def carried(frame: DataFrame) -> DataFrame | None:
    """A frame with the columns that its last projections leave out, which filters and projections hand on; None: there
    are none."""
    spark = frame.sparkSession
    jvm: Any = spark._jvm
    plan = plan_tree.analyzed(frame)
    lowest = plan
    while plan_tree.kind(lowest) in _CARRYING:
        lowest = plan_tree.children(lowest)[0]
    shown = {column.exprId().id() for column in plan_tree.items(plan.output())}
    lost = {c.exprId().id(): c for c in plan_tree.items(lowest.output()) if c.exprId().id() not in shown}
    if not lost or lowest is plan:
        return None
    names = _hidden_names([str(column.name()) for column in lost.values()])
    seq, logical = jvm.PythonUtils.toSeq, jvm.org.apache.spark.sql.catalyst.plans.logical

    def carrying(node: plan_tree.Plan) -> plan_tree.Plan:
        if plan_tree.kind(node) not in _CARRYING:
            return node
        below = carrying(plan_tree.children(node)[0])
        if plan_tree.kind(node) != "Project":
            return node.withNewChildren(seq([below]))
        columns = list(plan_tree.items(node.projectList()))
        there = {column.exprId().id() for column in columns}
        return logical.Project(seq([*columns, *(c for n, c in lost.items() if n not in there)]), below)

    named = [plan_tree.alias(jvm, column, name) for column, name in zip(lost.values(), names, strict=True)]
    columns = [*plan_tree.items(plan.output()), *named]
    return plan_tree.frame(spark, logical.Project(seq(columns), carrying(plan)))


def is_hidden(expression: str) -> bool:
    """Whether an expression is a column that a view does not show.

    >>> is_hidden("`country (not shown)`"), is_hidden("`country (not shown, 2)`"), is_hidden("`country`")
    (True, True, False)
    """
    return _NOT_SHOWN.search(expression) is not None


def _hidden_names(names: Sequence[str]) -> list[str]:
    """
    >>> _hidden_names(["country", "id", "country"])
    ['country (not shown)', 'id (not shown)', 'country (not shown, 2)']
    """
    found: list[str] = []
    for name in names:
        again = sum(other.startswith(f"{name} (not shown") for other in found)
        found.append(f"{name} (not shown, {again + 1})" if again else f"{name} (not shown)")
    return found


def _best(
    columns: Sequence[str], leaves: Sequence[Leaf], homes: Mapping[int, Mapping[str, str]], links: Sequence[JoinLink]
) -> Units | None:
    """Of all sets of columns by which every leaf is reached the one with most homes, then the largest."""
    found: list[Units] = []
    for wanted in _candidates(columns, homes):
        at = {leaf: tuple(there[c] for c in wanted) for leaf, there in homes.items() if set(wanted) <= there.keys()}
        way = _way(leaves, set(at), links)
        if way is not None:
            found.append(Units(wanted, tuple(leaves), at, way))
    return max(found, key=lambda units: (len(units.homes), len(units.columns)), default=None)


def _candidates(columns: Sequence[str], homes: Mapping[int, Mapping[str, str]]) -> Iterator[tuple[str, ...]]:
    """Columns that have arrived together at one leaf, or at two."""
    there = [frozenset(home) & frozenset(columns) for home in homes.values()]
    sets = {*there, *(a & b for a, b in combinations(there, 2))}
    return (tuple(c for c in columns if c in wanted) for wanted in sorted(sets, key=sorted) if wanted)


def _way(leaves: Sequence[Leaf], homes: set[int], links: Sequence[JoinLink]) -> tuple[JoinLink, ...] | None:
    """Links that lead from the homes to every other leaf; None: some leaf is not reached."""
    reached, way = set(homes), []
    while homes and len(reached) < len(leaves):
        link = next((k for k in links if k.of.leaf in reached and k.to.leaf not in reached), None)
        if link is None:
            return None
        reached.add(link.to.leaf)
        way.append(link)
    return tuple(way) if homes else None


def relation(spark: SparkSession, schema: Any) -> DataFrame:
    """A relation of which Spark knows the columns and nothing else. Of rows that it knew it would make use."""
    return spark.createDataFrame(spark.sparkContext.emptyRDD(), schema)


class _Tracer:
    """Puts marks into a plan, lets Spark optimise it, and looks where they are."""

    def __init__(self, spark: SparkSession, inputs: Mapping[str, DataFrame]) -> None:
        self._spark = spark
        self._jvm: Any = spark._jvm
        self._inputs = {plan_tree.analyzed(frame).rdd().id(): name for name, frame in inputs.items()}
        self._logical = self._jvm.org.apache.spark.sql.catalyst.plans.logical
        self._always = self._jvm.PythonUtils.toScalaMap({}).withDefaultValue(True)

    # Plans

    def optimised(self, plan: plan_tree.Plan) -> plan_tree.Plan:
        """As Spark's optimizer leaves it; twice, since the second pass sees the joins that subqueries became. It makes
        no limits for the groups of a window meanwhile, through which it would push nothing afterwards."""
        return self._optimised(plan, {_GROUP_LIMITS: "-1"})

    def _settled(self, plan: plan_tree.Plan) -> plan_tree.Plan:
        """As the optimizer leaves it with its marks as far down as they go. A mark on a constant stays: it says that
        rows below have one value."""
        settings = {_GROUP_LIMITS: "-1", _LEFT_OUT: _FOLDING}
        plan = self._optimised(plan, settings)
        while (lower := self._through_full_joins(plan)) is not None:
            plan = self._optimised(lower, settings)
        return plan

    def _optimised(self, plan: plan_tree.Plan, settings: Mapping[str, str]) -> plan_tree.Plan:
        optimizer = self._spark._jsparkSession.sessionState().optimizer()
        before = {name: self._spark.conf.get(name, None) for name in settings}
        for name, value in settings.items():
            self._spark.conf.set(name, value)
        try:
            return optimizer.execute(optimizer.execute(plan))
        finally:
            for name, value in before.items():
                self._spark.conf.unset(name) if value is None else self._spark.conf.set(name, value)

    def leaves(self, plan: plan_tree.Plan) -> list[Leaf]:
        places = [node for node in plan_tree.nodes(plan) if self._input(node) is not None]
        return [Leaf(number, self._input(node) or "") for number, node in enumerate(places)]

    def _input(self, node: plan_tree.Plan) -> str | None:
        return self._inputs.get(node.rdd().id()) if plan_tree.kind(node) == "LogicalRDD" else None

    def has_subqueries(self, plan: plan_tree.Plan) -> bool:
        """Whether a plan is left inside an expression: its rows would come from nowhere that is looked at."""
        parts = (part for node in plan_tree.nodes(plan) for part in plan_tree.expressions(node))
        return any(plan_tree.kind(part) in _WITH_PLANS for part in parts)

    def comes_from_inputs(self, plan: plan_tree.Plan) -> bool:
        """Whether each row is made from a row of an input, at least. One that comes from a constant alone, such as a
        country without sales in a list of countries, is in no unit that a change could name."""
        below = [self.comes_from_inputs(child) for child in plan_tree.children(plan)]
        kind = plan_tree.kind(plan)
        if not below:
            return self._input(plan) is not None
        if kind == "Aggregate" and not list(plan_tree.items(plan.groupingExpressions())):
            return False
        if kind != "Join":
            return all(below)
        left, right = below
        either, both = left or right, left and right
        known = {"INNER": either, "CROSS": either, "LEFT SEMI": either, "RIGHT OUTER": right, "FULL OUTER": both}
        return known.get(plan.joinType().sql(), left)

    def is_collated(self, plan: plan_tree.Plan) -> bool:
        """Whether Spark may call texts equal that differ: units are compared by their bytes."""
        return "collate" in plan.toString().lower()

    def rewritten(self, plan: plan_tree.Plan) -> plan_tree.Plan:
        """The same query, so written that Spark pushes marks as far as it can."""
        below = [self.rewritten(child) for child in plan_tree.children(plan)]
        if not below:
            return plan
        kind = plan_tree.kind(plan)
        if kind == "Join" and plan.condition().isDefined() and not _is_full(plan):
            return self._with_plain_keys(plan, *below)
        if kind == "Expand":
            return self._as_union(plan, below[0])
        if kind == "Window":
            return self._with_partitions(plan, below[0])
        return plan.withNewChildren(self._seq(below))

    def _with_plain_keys(self, join: plan_tree.Plan, left: plan_tree.Plan, right: plan_tree.Plan) -> plan_tree.Plan:
        """A join that compares columns: what it computes for that stands in a projection below, since Spark infers
        filters between columns only. A null-safe comparison becomes a plain one: the marks hold for null too. Not above
        an outer join: a plain one refuses nulls, and Spark would make that an inner join."""
        parts: list[Any] = []
        for part in _conjuncts(join.condition().get()):
            sides = self._sides(part, left, right)
            if sides is None or (plan_tree.kind(part) == "EqualNullSafe" and (_has_outer(left) or _has_outer(right))):
                parts.append(part)
                continue
            left, a = self._as_column(left, sides[0])
            right, b = self._as_column(right, sides[1])
            parts.append(self._jvm.org.apache.spark.sql.catalyst.expressions.EqualTo(a, b))
        condition = self._jvm.scala.Some(self._all(parts))
        return self._logical.Join(left, right, join.joinType(), condition, join.hint())

    def _with_partitions(self, window: plan_tree.Plan, child: plan_tree.Plan) -> plan_tree.Plan:
        """A window that is partitioned by columns is so by what is computed from these alone, too."""
        partitions = list(plan_tree.items(window.partitionSpec()))
        by = {number for column in partitions for number in _ids(column)}
        if plan_tree.kind(child) == "Project":
            columns = [e for e in plan_tree.items(child.projectList()) if plan_tree.kind(e) == "Alias"]
            partitions += [e.toAttribute() for e in columns if e.deterministic() and _ids(e) and _ids(e) <= by]
        return window.copy(window.windowExpressions(), self._seq(partitions), window.orderSpec(), child, window.hint())

    def _sides(self, part: Any, left: plan_tree.Plan, right: plan_tree.Plan) -> tuple[Any, Any] | None:
        """What of each side an equality compares; None: it is another condition."""
        if plan_tree.kind(part) not in _OVER_KEYS:
            return None
        a, b = plan_tree.children(part)
        for one, other in ((a, b), (b, a)):
            if _from(one, left) and _from(other, right):
                return one, other
        return None

    def _as_column(self, side: plan_tree.Plan, expression: Any) -> tuple[plan_tree.Plan, Any]:
        if plan_tree.kind(expression) == "AttributeReference":
            return side, expression
        named = self._alias(expression, "_key")
        columns = [*plan_tree.items(side.output()), named]
        return self._logical.Project(self._seq(columns), side), named.toAttribute()

    def _alias(self, expression: Any, name: str, number: Any = None) -> Any:
        number = number or self._jvm.org.apache.spark.sql.catalyst.expressions.NamedExpression.newExprId()
        none = self._jvm.scala.Option.empty()
        return self._jvm.org.apache.spark.sql.catalyst.expressions.Alias(
            expression, name, number, self._seq([]), none, self._seq([])
        )

    def _as_union(self, expand: plan_tree.Plan, child: plan_tree.Plan) -> plan_tree.Plan:
        """The rows of each grouping set as a part of a union.

        `Expand` gives for each row one row by each of its projections. So does a union of these projections over the
        same rows, and through that Spark pushes filters, into each part by what the part has in the column: a
        grouping set without the column has null there, which is then the value of all rows below.
        """
        output = list(plan_tree.items(expand.output()))
        parts: list[plan_tree.Plan] = []
        for projection in plan_tree.items(expand.projections()):
            numbers = [None if parts else column.exprId() for column in output]
            values = zip(plan_tree.items(projection), output, numbers, strict=True)
            columns = [self._alias(value, column.name(), number) for value, column, number in values]
            parts.append(self._logical.Project(self._seq(columns), child))
        return self._logical.Union(self._seq(parts), False, False) if len(parts) > 1 else parts[0]

    def _through_full_joins(self, plan: plan_tree.Plan) -> plan_tree.Plan | None:
        """The plan with marks on `coalesce(l, r)` moved from above a full join on `l = r` to `l` on its left and `r` on
        its right; None: there is no such mark.

        A row of the result has the value v in `coalesce(l, r)` if it is made from a left row with l = v, matched or
        not, or from a right row with r = v that no left row matches. Only rows with r = v can match the first, and
        only rows with l = v the second. So rows with other values on either side matter neither to them nor to
        whether they are matched; for null, which matches nothing or only null, as for any value.
        """
        below = plan_tree.children(plan)
        if plan_tree.kind(plan) == "Filter" and _is_full(below[0]):
            moved = self._moved(plan, below[0])
            if moved is not None:
                return moved
        for number, child in enumerate(below):
            lower = self._through_full_joins(child)
            if lower is not None:
                return plan.withNewChildren(self._seq([*below[:number], lower, *below[number + 1 :]]))
        return None

    def _moved(self, plan: plan_tree.Plan, join: plan_tree.Plan) -> plan_tree.Plan | None:
        """A filter above a full join with those marks inside the join that may go there; None: none may."""
        sides, rest = plan_tree.children(join), []
        pairs = [pair for part in _conjuncts(join.condition().get()) if (pair := self._sides(part, *sides))]
        for part in _conjuncts(plan.condition()):
            name = _mark_name(part)
            pair = _coalesced(plan_tree.children(part)[0], pairs) if name is not None else None
            if pair is None:
                rest.append(part)
            else:
                marked = zip(sides, pair, strict=True)
                sides = [self._logical.Filter(self._mark(name or "", value), side) for side, value in marked]
        if sides == plan_tree.children(join):
            return None
        lower = join.withNewChildren(self._seq(sides))
        return self._logical.Filter(self._all(rest), lower) if rest else lower

    # Marks

    def homes(self, plan: plan_tree.Plan, leaves: Sequence[Leaf]) -> dict[int, dict[str, str]]:
        """For each leaf at which marks on columns of the result arrived: column and expression."""
        for column in list(plan_tree.items(plan.output())):
            plan = self._logical.Filter(self._mark(column.name(), column), plan)
        traces = self._traces(self._settled(plan))
        return {leaf.number: there for leaf in leaves if (there := traces.at(leaf.number))}

    def links(self, plan: plan_tree.Plan, leaves: Sequence[Leaf]) -> list[JoinLink]:
        names: list[str] = []
        traces = self._traces(self._settled(self._with_marked_joins(plan, names)))
        links = []
        for name in names:
            places = [LeafValue(leaf, expression) for leaf, expression in traces.of(name).items()]
            links += [JoinLink(of, to) for of in places for to in places if of != to]
        return links

    def _with_marked_joins(self, plan: plan_tree.Plan, names: list[str]) -> plan_tree.Plan:
        below = [self._with_marked_joins(child, names) for child in plan_tree.children(plan)]
        if not below:
            return plan
        if plan_tree.kind(plan) == "Join" and plan.condition().isDefined():
            for part in _conjuncts(plan.condition().get()):
                sides = self._sides(part, *plan_tree.children(plan))
                if sides is not None:
                    below = [self._marked(side, column, names) for side, column in zip(below, sides, strict=True)]
        return plan.withNewChildren(self._seq(below))

    def _marked(self, side: plan_tree.Plan, column: Any, names: list[str]) -> plan_tree.Plan:
        names.append(f"join{len(names)}")
        return self._logical.Filter(self._mark(names[-1], column), side)

    def _mark(self, name: str, column: Any) -> Any:
        expressions = self._jvm.org.apache.spark.sql.catalyst.expressions
        types = self._jvm.org.apache.spark.sql.types.DataTypes
        none, named = self._jvm.scala.Option.empty(), self._jvm.scala.Some(f"mark {name}")
        nothing, columns = self._seq([]), self._seq([column])
        return expressions.ScalaUDF(self._always, types.BooleanType, columns, nothing, none, named, True, True)

    def _traces(self, plan: plan_tree.Plan) -> _Traces:
        """Marks directly above leaves, whose order is that of `leaves`: optimising keeps it."""
        arrived: list[tuple[int, str, str]] = []
        number = 0
        for node, above in _with_filters(plan, ()):
            if self._input(node) is not None:
                own = {a.exprId().id() for a in plan_tree.items(node.output())}
                for part in above:
                    name = _mark_name(part)
                    if name is not None and _ids(part) <= own:
                        arrived.append((number, name, sql_of(self._spark, plan_tree.children(part)[0])))
                number += 1
        return _Traces(tuple(arrived))

    def _all(self, parts: Sequence[Any]) -> Any:
        whole = parts[0]
        for part in parts[1:]:
            whole = self._jvm.org.apache.spark.sql.catalyst.expressions.And(whole, part)
        return whole

    def _seq(self, things: Iterable[Any]) -> Any:
        return self._jvm.PythonUtils.toSeq(list(things))


def sql_of(spark: SparkSession, expression: Any) -> str:
    """An expression over a leaf's columns, as SQL over them."""
    jvm: Any = spark._jvm
    return str(_unqualified(expression, jvm.PythonUtils.toSeq).sql())


def _unqualified(expression: Any, seq: Any) -> Any:
    if plan_tree.kind(expression) == "AttributeReference":
        return expression.withQualifier(seq([]))
    inside = plan_tree.children(expression)
    return expression.withNewChildren(seq([_unqualified(part, seq) for part in inside])) if inside else expression


def _with_filters(plan: plan_tree.Plan, above: tuple[Any, ...]) -> Iterator[tuple[plan_tree.Plan, tuple[Any, ...]]]:
    """Every node with no children, and the conditions of the filters directly above it."""
    below = plan_tree.children(plan)
    if not below:
        yield plan, above
        return
    if plan_tree.kind(plan) == "Filter":
        above = (*above, *_conjuncts(plan.condition()))
    elif plan_tree.kind(plan) != "Project":
        above = ()
    for child in below:
        yield from _with_filters(child, above)


def _conjuncts(condition: Any) -> Iterator[Any]:
    if plan_tree.kind(condition) == "And":
        for part in plan_tree.children(condition):
            yield from _conjuncts(part)
    else:
        yield condition


def _is_full(plan: plan_tree.Plan) -> bool:
    """Whether it is a full outer join on some condition."""
    is_join = plan_tree.kind(plan) == "Join" and plan.condition().isDefined()
    return is_join and plan_tree.kind(plan.joinType()) == "FullOuter"


def _has_outer(plan: plan_tree.Plan) -> bool:
    joins = (node for node in plan_tree.nodes(plan) if plan_tree.kind(node) == "Join")
    return any(plan_tree.kind(join.joinType()) in ("LeftOuter", "RightOuter", "FullOuter") for join in joins)


def _coalesced(expression: Any, pairs: Sequence[tuple[Any, Any]]) -> tuple[Any, Any] | None:
    """The columns of a join of which an expression takes the one that is not null."""
    if plan_tree.kind(expression) != "Coalesce" or len(plan_tree.children(expression)) != 2:
        return None
    one, other = plan_tree.children(expression)
    for left, right in pairs:
        if (one.semanticEquals(left) and other.semanticEquals(right)) or (
            one.semanticEquals(right) and other.semanticEquals(left)
        ):
            return left, right
    return None


def _mark_name(expression: Any) -> str | None:
    if plan_tree.kind(expression) != "ScalaUDF" or expression.udfName().isEmpty():
        return None
    name = str(expression.udfName().get())
    return name.removeprefix("mark ") if name.startswith("mark ") else None


def _ids(expression: Any) -> set[int]:
    return {attribute.exprId().id() for attribute in plan_tree.items(expression.references())}


def _from(expression: Any, side: plan_tree.Plan) -> bool:
    """Whether an expression is made of columns of one side, and of at least one."""
    used = _ids(expression)
    return bool(used) and used <= {a.exprId().id() for a in plan_tree.items(side.output())}
