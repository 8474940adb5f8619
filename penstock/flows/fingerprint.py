"""Whether a flow is still the one that made its rows: a hash of what its function means, stable over restarts.

Spark takes a changed function on an old checkpoint without a word. The analysed plan's text tells the difference,
once everything that changes by itself is out of it: expression ids become numbers in order of appearance (so that
`left.x` and `right.x` stay different), object hashes, UUIDs and random seeds go.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator
from typing import Any

from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame, SparkSession

from penstock.declaration import Node
from penstock.flows import plan_tree
from penstock.flows.plan_expressions import OF_THE_MOMENT, REGISTERED, TOLD
from penstock.flows.plan_nodes import NODES, node_kind
from penstock.flows.project import project_sources

_ID = re.compile(r"#(\d+)")
_COUNTED = (
    re.compile(r"\b(_common_expr|_gen_alias|lambda [^\W\d]+)_\d+(?=#)"),
    re.compile(r"\b(CollectMetrics .*\]), \d+$", re.MULTILINE),
)
"""Names that Spark makes with a number that counts on as long as it lives; what stands around tells them apart."""
_DROPPED = (
    re.compile(r"@[0-9a-f]{4,}"),
    re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"),
    re.compile(r"(?<=rand\()-?\d+|(?<=randn\()-?\d+|(?<=uuid\(Some\()-?\d+"),
    re.compile(r"(?<=\[)(?:feed|start|end)=[^\]]*"),
)
_RELATION = re.compile(r"(RelationV2)\[([^\]]*)\]")
_WHOLE = {"spark.sql.debug.maxToStringFields": "100000", "spark.sql.maxPlanStringLength": "2147483632"}
"""Beyond its defaults Spark leaves out the end of a plan's text, where the change may be."""
_CODED = frozenset(name for name, kind in NODES.items() if kind.beside == "source")
"""Nodes that run code of the project."""


def fingerprint(
    spark: SparkSession,
    node: Node,
    batch: DataFrame,
    facts: dict[str, Any],
    needed: Collection[str],
    kinds: Collection[str],
) -> str:
    """SHA-256 over the plan, the schema, the static rows, `facts` (key, where, keep, lateness, what is upstream)
    and, where the plan does not say all, the project's own source. `kinds` are those of the plan's parts."""
    unknown = any(kind not in TOLD | REGISTERED and kind not in NODES for kind in kinds)
    # The optimised plan is without unneeded columns; but what depends on the moment is a constant there.
    momentary = unknown or not OF_THE_MOMENT.isdisjoint(kinds)
    plan = plan_tree.analyzed(batch) if momentary else plan_tree.optimized(batch)
    digest = hashlib.sha256(stable_text(only_needed(_whole_text(spark, plan), needed)).encode())
    digest.update(batch.schema.json().encode())
    digest.update(repr(sorted(facts.items())).encode())
    for rows in _static_rows(spark, batch):
        digest.update(rows)
    if unknown or any(kind in REGISTERED or kind in _CODED for kind in kinds):
        for name, source in project_sources(node.function):
            digest.update(f"{name}\n".encode())
            digest.update(source.read_bytes())
    return digest.hexdigest()


def _whole_text(spark: SparkSession, plan: JavaObject) -> str:
    """A plan's text with nothing left out, however long it is."""
    before = {name: spark.conf.get(name) for name in _WHOLE}
    try:
        for name, value in _WHOLE.items():
            spark.conf.set(name, value)
        return str(plan.toString())
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def only_needed(text: str, needed: Collection[str]) -> str:
    """A plan's text whose relations list only the columns that are used.

    >>> only_needed("RelationV2[a#1L, b#2, _time#3] penstock", {"b", "_time"})
    'RelationV2[b#2, _time#3] penstock'
    """

    def kept(match: re.Match[str]) -> str:
        columns = [c for c in match[2].split(", ") if c.split("#")[0] in needed]
        return f"{match[1]}[{', '.join(columns)}]"

    return _RELATION.sub(kept, text)


def stable_text(text: str) -> str:
    """A plan's text without what differs at every start.

    >>> stable_text("Filter (a#17L > 3), x@1f2e3d4c, b#9, a#17L")
    'Filter (a#0L > 3), x, b#1, a#0L'
    >>> stable_text("count(_common_expr_7#21), lambda x_3#4")
    'count(_common_expr#0), lambda x#1'
    >>> stable_text("CollectMetrics seen, [count(1) AS c#3L], 7")
    'CollectMetrics seen, [count(1) AS c#0L]'
    """
    for pattern in _COUNTED:
        text = pattern.sub(r"\1", text)
    numbers: dict[str, int] = {}
    text = _ID.sub(lambda match: f"#{numbers.setdefault(match[1], len(numbers))}", text)
    for pattern in _DROPPED:
        text = pattern.sub("", text)
    return text


def _static_rows(spark: SparkSession, frame: DataFrame) -> Iterator[bytes]:
    """What tables hold that are not in the log: rows that the function itself gives, names, sizes and times of files,
    options of another source. Changing one changes the answer, not the plan."""
    for node in plan_tree.with_subqueries(plan_tree.analyzed(frame)):
        beside = node_kind(plan_tree.kind(node)).beside
        if plan_tree.children(node) or beside == "nothing" or plan_tree.is_log(node):
            continue
        if beside == "files":
            yield repr(sorted(_files(node))).encode()
        elif beside == "options":
            yield str(node.options().asCaseSensitiveMap()).encode()
        else:
            jvm: Any = spark._jvm
            rows = DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, node), spark)
            yield repr(sorted(map(repr, rows.collect()))).encode()


def _files(relation: plan_tree.Plan) -> Iterator[tuple[str, int, int]]:
    """The files of a table that was read from files; nothing for another one, such as a database's."""
    if plan_tree.kind(relation.relation()) == "HadoopFsRelation":
        for file in plan_tree.items(relation.relation().location().allFiles()):
            yield str(file.getPath()), file.getLen(), file.getModificationTime()
