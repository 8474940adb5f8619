"""Every file says why it exists, and ARCHITECTURE.md says of the stages what the package says."""

from __future__ import annotations

import re
import tomllib
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
    return [[part.strip().removeprefix("penstock.") for part in layer.split("|")] for layer in contract["layers"]]


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
