"""What pip may install is what was tested, within bounds that are written down."""

from __future__ import annotations

import re
import tomllib

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.docs.pages import ROOT

LEANED_ON = {"aiohttp", "msgspec", "pyarrow", "pyspark", "sqlglot", "pandas"}
"""Of these more is used than they promise."""


def declared() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    more = [line for lines in project["optional-dependencies"].values() for line in lines]
    return [Requirement(line) for line in [*project["dependencies"], *more]]


def constrained() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}


def test_the_versions_that_are_tested_are_within_the_bounds() -> None:
    versions = constrained()
    outside = [str(r) for r in declared() if versions[canonicalize_name(r.name)] not in r.specifier]
    assert outside == []


def test_what_is_leaned_on_privately_has_an_upper_bound() -> None:
    bounded = {r.name for r in declared() if any(clause.operator in ("<", "<=") for clause in r.specifier)}
    assert bounded >= LEANED_ON


def test_the_versions_of_spark_are_those_of_the_guide() -> None:
    (spark,) = {str(r.specifier) for r in declared() if r.name == "pyspark"}
    least, most = sorted(re.findall(r"\d+\.\d+", spark))
    words = f"Spark may be {least} or {most.split('.')[0]}.{int(most.split('.')[1]) - 1}"
    assert words in (ROOT / "docs/how-to/install.md").read_text()
