"""Every kind of node and expression that the installed Spark has is known here, or it is said why it needs not be.

A class that is on no list fails the test with its name: somebody must look at what the next Spark brings.
"""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pyspark
import pytest

from penstock.flows.plan_expressions import EXACT, REGISTERED, TOLD
from penstock.flows.plan_nodes import NODES

_JARS = ("spark-catalyst", "spark-sql_", "spark-hive_")
_CATALYST = "org/apache/spark/sql/catalyst/"
_PLAN, _EXPRESSION = _CATALYST + "plans/logical/LogicalPlan", _CATALYST + "expressions/Expression"
_ABSTRACT = 0x0400


def _listed(names: str) -> frozenset[str]:
    return frozenset(names.split())


NEVER_BY_PARENT = {
    _CATALYST + "plans/logical/Command": "a command runs when it is named: a plan holds its CommandResult",
    _CATALYST + "plans/logical/ParsedStatement": "it writes, and is gone once the plan is analysed",
    _CATALYST + "analysis/UnresolvedNode": "it is gone once the plan is analysed",
    _CATALYST + "plans/logical/CompoundPlanStatement": "a part of a SQL script",
}
NEVER_BY_NAME = {
    "it is gone once the plan is analysed": _listed("""
        DataFrameDropColumns MetricViewPlaceholder NamedStreamingRelation Pivot ResolvedInlineTable ResolvedMetricView
        SQLTableFunction UnresolvedDeduplicate UnresolvedHint UnresolvedQualify UnresolvedWith V2ChangelogReference
        V2TableReference WithWindowDefinition
    """),
    "it is what a command is about": _listed("""
        ResolvedIdentifier ResolvedNamespace ResolvedNonPersistentFunc ResolvedPersistentFunc ResolvedPersistentView
        ResolvedProcedure ResolvedTable ResolvedTempView
    """),
    "it calls a procedure or writes": _listed("""
        AutoCdcInto Call CreateTable ErrorCondition InsertIntoDir MergeRows MultiResult WriteFiles
        WriteToContinuousDataSource WriteToDataSourceV2 WriteToMicroBatchDataSource WriteToMicroBatchDataSourceV1
        WriteToStream WriteToStreamStatement
    """),
    "Spark makes it when it optimises, plans or runs": _listed("""
        ArrowEvalPython ArrowEvalPythonUDTF BatchEvalPython BatchEvalPythonUDTF DomainJoin DummyExpressionHolder
        EmptyRelation InMemoryRelation LogicalQueryStage MemoryPlan NonGroupingAggregateReference OffsetHolder
        OrderedJoin ReturnAnswer ScanBuilderHolder StreamingDataSourceV2Relation StreamingDataSourceV2ScanRelation
        StreamingExecutionRelation Subquery Tail WindowGroupLimit
    """),
    "only Scala, Java and R make it": _listed("""
        AppendColumns AppendColumnsWithObject CoGroup DeserializeToObject ExternalRDD FlatMapGroupsInR
        FlatMapGroupsInRWithArrow FlatMapGroupsWithState MapElements MapGroups MapPartitions MapPartitionsInR
        MapPartitionsInRWithArrow SerializeFromObject TransformWithState TypedFilter
    """),
}
TAKEN_AS_UNKNOWN = _listed("""
    AttachDistributedSequence MapPartitionsExternalUDF PythonWorkerLogs ScriptTransformation StreamingRelation
""")
"""A plan may hold them, and the safe side is right for each."""
OF_OTHER_SPARKS = _listed("TransformWithStateInPandas")


def _verdict(name: str) -> str | None:
    """What is done with a node; None: nobody has looked at it."""
    kind = _short(name)
    if kind in NODES:
        return "harmless above an aggregation" if NODES[kind].rows == "same" else f"refused: {NODES[kind].instead}"
    if kind in TAKEN_AS_UNKNOWN:
        return "refused by its name, unproved, in no order"
    by_name = (why for why, kinds in NEVER_BY_NAME.items() if kind in kinds)
    return next(by_name, None) or next((why for parent, why in NEVER_BY_PARENT.items() if parent in _above(name)), None)


def test_every_node_that_spark_has_is_known_or_cannot_occur() -> None:
    nodes = list(_concrete(_PLAN))
    assert len(nodes) > 300
    assert [name for name in nodes if _verdict(name) is None] == []


def test_no_list_of_nodes_names_what_spark_does_not_have() -> None:
    there = {_short(name) for name in _concrete(_PLAN)} | OF_OTHER_SPARKS
    assert set(NODES) - there == set()
    assert TAKEN_AS_UNKNOWN.union(*NEVER_BY_NAME.values()) - there == set()


def test_a_node_is_on_one_list() -> None:
    lists = [frozenset(NODES), TAKEN_AS_UNKNOWN, *NEVER_BY_NAME.values()]
    assert sum(map(len, lists)) == len(frozenset().union(*lists))


def test_what_gives_the_same_rows_runs_no_foreign_code_and_has_no_state() -> None:
    for name, kind in NODES.items():
        if kind.rows == "same":
            assert kind.beside == "nothing", name
            assert not kind.evicts, name


EXPRESSIONS_NEVER_BY_PACKAGE = {
    "analysis/": "it is gone once the plan is analysed",
    "plans/logical/": "a part of a command",
    "plans/physical/": "how Spark shuffles",
    "optimizer/": "Spark makes it when it optimises",
    "expressions/objects/": "of typed rows, and of functions that somebody brings: taken as unknown",
}
EXPRESSIONS_NEVER_BY_NAME = {
    "it is gone once the plan is analysed": _listed("""
        Cube CursorReference Grouping GroupingID GroupingSets LateralColumnAliasReference NamePlaceholder
        NamedArgumentExpression OuterScopeReference PipeExpression PrettyAttribute PrettyPythonUDF Rollup
        SemiStructuredExtract SessionWindow TimeWindow UnresolvedCollation UnresolvedCursor UnresolvedExistsPlanId
        UnresolvedInSubqueryPlanId UnresolvedNamedLambdaVariable UnresolvedPolymorphicPythonUDTF
        UnresolvedScalarSubqueryPlanId UnresolvedTableArgPlanId UnresolvedWindowExpression UpCast WindowTime
    """),
    "a table's layout or constraint": _listed("""
        Bucket CheckConstraint CheckInvariant CheckOverflowInTableInsert Days Empty2Null ForeignKeyConstraint Hours
        Months PrimaryKeyConstraint TransformExpression UniqueConstraint Years
    """),
    "Spark makes it when it optimises, plans or runs": _listed("""
        BloomFilterAggregate BloomFilterMightContain BoundReference CastTimestampNTZToLong CheckOverflowInSum
        DecimalAddNoOverflowCheck DecimalDivideWithOverflowCheck DecimalSubtractNoOverflowCheck
        DynamicPruningExpression DynamicPruningSubquery ExpressionProxy HiveHash InSubqueryExec MultiCommutativeOp
        MultiGetJsonObject NoOp RegrReplacement ScalarCastHelper SortPrefix UnwrapVariantCastError
    """),
    "taken as unknown: what it computes stands elsewhere": _listed("""
        ApplyFunctionExpression ColumnNodeExpression ComplexTypedAggregateExpression ExternalUserDefinedFunction
        FunctionTableSubqueryArgumentExpression HiveGenericUDF HiveGenericUDTF HiveSimpleUDF HiveUDAFFunction Measure
        PrintToStderr ScalaAggregator ScalaUDAF SimpleTypedAggregateExpression TranspiledPythonUDF
        TranspiledUDFParameter Unnest V2Aggregator
    """),
}
OF_OTHER_JARS = _listed("AvroDataToCatalyst CatalystDataToAvro CatalystDataToProtobuf ProtobufDataToCatalyst")


def _expression_verdict(name: str) -> str | None:
    kind, package = _short(name), name.removeprefix(_CATALYST)
    if kind in EXACT:
        return "exact"
    if kind in TOLD | REGISTERED:
        return "unverifiable, by name"
    by_name = (why for why, kinds in EXPRESSIONS_NEVER_BY_NAME.items() if kind in kinds)
    by_package = (why for start, why in EXPRESSIONS_NEVER_BY_PACKAGE.items() if package.startswith(start))
    return next(by_name, None) or next(by_package, None)


def test_every_expression_that_spark_has_is_known_or_cannot_occur() -> None:
    expressions = list(_concrete(_EXPRESSION))
    assert len(expressions) > 700
    assert [name for name in expressions if _expression_verdict(name) is None] == []


def test_no_list_of_expressions_names_what_spark_does_not_have() -> None:
    there = {_short(name) for name in _concrete(_EXPRESSION)} | OF_OTHER_JARS
    assert (TOLD | REGISTERED).union(*EXPRESSIONS_NEVER_BY_NAME.values()) - there == set()


@pytest.mark.parametrize("parent", ["Nondeterministic", "ExpressionWithRandomSeed", "UserDefinedExpression"])
def test_chance_and_foreign_code_are_not_exact(parent: str) -> None:
    names = {_short(n) for n in _concrete(_EXPRESSION) if f"{_CATALYST}expressions/{parent}" in _above(n)}
    assert names
    assert names & EXACT == set()


# Class files, as far as it takes to know what extends what


def _short(name: str) -> str:
    return name.rpartition("/")[2].partition("$$")[0].rstrip("$")


def _concrete(root: str) -> Iterator[str]:
    """The names of all classes below one of which there can be instances."""
    for name, (flags, _) in sorted(_classes().items()):
        if not flags & _ABSTRACT and root in _above(name):
            yield name


@cache
def _above(name: str) -> frozenset[str]:
    """All that a class extends, directly or not."""
    _, parents = _classes().get(name, (0, ()))
    return frozenset(parents).union(*map(_above, parents))


@cache
def _classes() -> dict[str, tuple[int, tuple[str, ...]]]:
    """The flags of each class of Spark, and what it extends directly."""
    classes = {}
    for jar in sorted((Path(pyspark.__file__).parent / "jars").glob("*.jar")):
        if jar.name.startswith(_JARS):
            with zipfile.ZipFile(jar) as opened:
                for file in opened.namelist():
                    if file.endswith(".class"):
                        name, flags, parents = _head(opened.read(file))
                        classes[name] = (flags, parents)
    return classes


_SIZES = {3: 5, 4: 5, 5: 9, 6: 9, 7: 3, 8: 3, 9: 5, 10: 5, 11: 5, 12: 5, 15: 4, 16: 3, 17: 5, 18: 5, 19: 3, 20: 3}
"""Of the entries of a constant pool, by their tags; a text (1) says how long it is, 5 and 6 count twice."""


def _head(code: bytes) -> tuple[str, int, tuple[str, ...]]:
    """Name, flags and parents of the class in a class file."""
    (count,) = struct.unpack_from(">H", code, 8)
    at, index, places = 10, 1, [0] * count
    while index < count:
        tag = code[at]
        places[index] = at
        index += 2 if tag in (5, 6) else 1
        at += 3 + int.from_bytes(code[at + 1 : at + 3]) if tag == 1 else _SIZES[tag]
    flags, this, parent, interfaces = struct.unpack_from(">HHHH", code, at)
    others = struct.unpack_from(f">{interfaces}H", code, at + 8)

    def name(number: int) -> str:
        (text,) = struct.unpack_from(">H", code, places[number] + 1)
        start = places[text] + 3
        return code[start : start + int.from_bytes(code[start - 2 : start])].decode()

    return name(this), flags, tuple(name(number) for number in (parent, *others) if number)
