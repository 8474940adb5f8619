"""Every file says why it exists, and ARCHITECTURE.md says of the stages what the package says."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

import penstock
from tests.docs.pages import PACKAGE, ROOT, page
from tests.docs.tour import files, first_sentence, tour

BESIDE = {"cli", "observe", "rights", "run", "sockets", "testing"}
"""The folders that are not stages."""

_STAGE = re.compile(r"^\d\. `(\w+)` (.*)$", re.MULTILINE)


def test_every_file_says_why_it_exists() -> None:
    printed = tour()
    for path in files():
        assert first_sentence(path) in printed


def stages() -> list[str]:
    return [name for name, _ in _STAGE.findall(penstock.__doc__ or "")]


def test_the_stages_are_the_same_in_the_package_and_in_the_architecture() -> None:
    assert _STAGE.findall(penstock.__doc__ or "") == _STAGE.findall(page("ARCHITECTURE.md"))


def test_every_folder_is_a_stage_or_known_to_be_none() -> None:
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert folders == set(stages()) | BESIDE


def layers() -> list[list[str]]:
    """The import contract's layers, top to bottom; what stands in one layer does not import each other."""
    contracts = tomllib.loads(page("pyproject.toml"))["tool"]["importlinter"]["contracts"]
    (contract,) = [c for c in contracts if c["type"] == "layers"]
    layers = [re.split("[|:]", layer) for layer in contract["layers"]]
    return [[part.strip().removeprefix("penstock.") for part in layer] for layer in layers]


def test_the_import_contract_holds_every_stage_once_and_names_them_in_order_of_flow() -> None:
    named = [name for layer in layers() for name in layer]
    assert sorted(name for name in named if name in stages()) == sorted(stages())
    for layer in layers():
        here = [name for name in layer if name in stages()]
        assert here == [name for name in stages() if name in here]


def test_the_import_contract_holds_every_module_of_the_package() -> None:
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    files = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    assert {name for layer in layers() for name in layer} == folders | files


def test_the_readmes_tiers_come_in_the_order_of_the_stages() -> None:
    tiers = re.findall(r"\(penstock/(\w+)\) \|", page("README.md"))
    assert tiers == stages()


def test_the_architecture_is_read_in_ten_minutes() -> None:
    lines = page("ARCHITECTURE.md").splitlines()
    assert len(lines) <= 150


DECISIONS = sorted(path for path in (ROOT / "docs" / "decisions").glob("*.md") if path.name != "README.md")


@pytest.mark.parametrize("path", DECISIONS, ids=lambda path: path.stem)
def test_a_decision_is_one_short_page_with_its_reason(path: Path) -> None:
    lines = path.read_text().splitlines()
    heads = [line for line in lines if line.startswith("## ")]
    assert heads == ["## Context", "## Decision", "## Measured", "## What would change our mind"]
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 120
    assert f"]({path.name})" in page("docs/decisions/README.md")


def test_functions_on_the_way_of_an_event_are_where_the_page_says() -> None:
    """Each `path.py` of the walk is followed by names that the file has."""
    walk = page("ARCHITECTURE.md").partition("## The life of one event")[2].partition("\n## ")[0]
    steps = re.findall(r"`(\w+(?:/\w+)*\.py)`((?:,? (?:→ )?`[\w.]+`)*)", walk)
    assert len(steps) > 12
    for file, names in steps:
        source = (PACKAGE / file).read_text()
        for name in re.findall(r"`([\w.]+)`", names):
            if not name.endswith(".py"):
                for part in name.split("."):
                    assert re.search(rf"\b(def|class) {part}\b", source), f"{file} has no {name}"


BACKENDS = {"client/processing/stores", "collect/pulling/sources", "log/logs"}
"""Folders whose files are named after the outside system that each speaks to."""

CONCEPTS = {
    "cli/demo.py": "a verb of the command line",
    "cli/kafka_verbs.py": "verbs of the command line",
    "cli/log_verbs.py": "verbs of the command line",
    "cli/stream_tail.py": "a verb of the command line",
    "flows/engine/hadoop_notes.py": "a part that the switch turns off",
    "flows/engine/session_without_ml.py": "a part that the switch turns off",
    "flows/ordered/ordered_replay.py": "an ordered flow as verify plays it",
    "flows/regroup/first_rows.py": "a limit over an order, by an index",
    "flows/regroup/time_bounds.py": "how long events of a join matter",
    "flows/regroup/unit_choice.py": "which units verify looks at",
    "flows/summary_bounds.py": "how verify judges an estimate",
    "run/log_status.py": "what is said of the logs",
    "ordinals.py": "what users import to number events",
    "run/reading_edge.py": "the edge that only reads",
    "run/writing_half.py": "the other half of an edge than run/reading_half.py",
    "serve/live_page.py": "the page",
    "split_flows.py": "streams out of one",
    "testing/contracts/sqlite_tearing.py": "what a power cut does to one backend's files",
    "views/shared_turn.py": "why two views are never seen a step apart",
    "views/frontier.py": "what a view has absorbed: a word of the vocabulary",
}
"""Files of fewer than 110 lines that one other file imports: what makes a reader look for each by its name."""

SHORT_LINES = 110
LONGEST_LINES = 600


def named(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def is_backend(path: Path) -> bool:
    return path.parent.relative_to(PACKAGE).as_posix() in BACKENDS


def test_file_names_are_unique_in_the_package_but_for_backends() -> None:
    names = Counter(path.name for path in files() if path.name != "__init__.py" and not is_backend(path))
    assert [name for name, count in names.items() if count > 1] == []


def test_a_short_file_that_one_other_imports_is_a_concept_with_a_name() -> None:
    alone = {named(path) for path in files() if is_short(path) and len(importers()[module(path)]) == 1}
    assert alone == set(CONCEPTS), (
        "fold the file into the one that imports it, or say here why it is looked for by name"
    )


def is_short(path: Path) -> bool:
    plain = path.name != "__init__.py" and not is_backend(path)
    return plain and len(path.read_text().splitlines()) < SHORT_LINES


def test_no_file_is_too_long_to_be_one_concept() -> None:
    assert [named(path) for path in files() if len(path.read_text().splitlines()) > LONGEST_LINES] == []


def test_six_files_with_one_prefix_are_a_folder() -> None:
    prefixes = Counter((path.parent, path.stem.partition("_")[0]) for path in files() if "_" in path.stem.strip("_"))
    many = {f"{parent.relative_to(PACKAGE)}/{prefix}_*" for (parent, prefix), count in prefixes.items() if count >= 6}
    assert many == {"testing/contracts/log_*"}, (
        "the log's contract is one class in parts; its folder is that of contracts"
    )


def test_no_two_public_classes_have_one_name() -> None:
    classes = Counter(
        node.name
        for path in files()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name for name, count in classes.items() if count > 1} == SAME_THING


SAME_THING = {"Default", "Letter", "Producer", "Status"}
"""Names of classes that are there twice and mean the same: on both sides of the wire, or of the log."""


def module(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def importers() -> dict[str, set[str]]:
    """Which modules import a module."""
    modules = {module(path): path for path in files()}
    found: dict[str, set[str]] = {name: set() for name in modules}
    for name, path in modules.items():
        for node in ast.walk(ast.parse(path.read_text())):
            for imported in imports_of(node):
                target = imported if imported in modules else imported.rpartition(".")[0]
                if target in modules:
                    found[target].add(name)
    return found


def imports_of(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []
