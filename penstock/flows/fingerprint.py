"""Whether a flow is still the one that made its rows: a hash of what its function means, stable over restarts.

Spark takes a changed function on an old checkpoint without a word. The analysed plan's text tells the difference,
once everything that changes by itself is out of it: expression ids become numbers in order of appearance (so that
`left.x` and `right.x` stay different), object hashes, UUIDs and random seeds go.
"""

from __future__ import annotations

import hashlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from penstock.declaration import Node
from penstock.flows import tree

_ID = re.compile(r"#(\d+)")
_DROPPED = (
    re.compile(r"@[0-9a-f]{4,}"),
    re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"),
    re.compile(r"(?<=rand\()-?\d+|(?<=randn\()-?\d+|(?<=uuid\(Some\()-?\d+"),
    re.compile(r"(?<=\[)(?:feed|start|end)=[^\]]*"),
)
_PYTHON = ("PythonUDF", "MapInPandas", "MapInArrow", "PythonUDTF", "FlatMapGroups", "TransformWithState", "UDF(")


def fingerprint(spark: SparkSession, node: Node, frame: DataFrame, facts: dict[str, Any]) -> str:
    """SHA-256 over the plan, the schema, the static rows, `facts` (key, where, keep, lateness, what is upstream)
    and, where a Python function is inside, the project's own source."""
    text = stable_text(tree.analyzed(frame).toString())
    digest = hashlib.sha256(text.encode())
    digest.update(frame.schema.json().encode())
    digest.update(repr(sorted(facts.items())).encode())
    for rows in _static_rows(spark, frame):
        digest.update(rows)
    if _has_python(text, frame):
        for source in project_sources(node):
            digest.update(source.read_bytes())
    return digest.hexdigest()


def stable_text(text: str) -> str:
    """A plan's text without what differs at every start.

    >>> stable_text("Filter (a#17L > 3), x@1f2e3d4c, b#9, a#17L")
    'Filter (a#0L > 3), x, b#1, a#0L'
    """
    numbers: dict[str, int] = {}
    text = _ID.sub(lambda match: f"#{numbers.setdefault(match[1], len(numbers))}", text)
    for pattern in _DROPPED:
        text = pattern.sub("", text)
    return text


def _static_rows(spark: SparkSession, frame: DataFrame) -> Iterator[bytes]:
    """The content of small tables that the function itself holds: changing one changes the answer, not the plan."""
    for node in tree.nodes(tree.analyzed(frame)):
        if not node.children().nonEmpty() and not tree.is_log(node) and tree.kind(node) != "OneRowRelation":
            jvm: Any = spark._jvm
            rows = DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, node), spark)
            yield repr(sorted(map(repr, rows.collect()))).encode()


def _has_python(text: str, frame: DataFrame) -> bool:
    return any(word in text for word in _PYTHON) or any(
        tree.kind(expression).startswith("Python")
        for node in tree.nodes(tree.analyzed(frame))
        for expression in tree.expressions(node)
    )


def project_sources(node: Node) -> list[Path]:
    """The app file and those of its neighbours that are imported now, in a stable order."""
    app = Path(inspect.unwrap(node.function).__code__.co_filename).resolve()
    found = {app}
    for module in list(sys.modules.values()):
        name = getattr(module, "__file__", None)
        if name and Path(name).suffix == ".py" and Path(name).resolve().is_relative_to(app.parent):
            path = Path(name).resolve()
            if not {"site-packages", ".venv"} & set(path.parts):
                found.add(path)
    return sorted(found)
