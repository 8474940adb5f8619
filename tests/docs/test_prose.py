"""What can be checked of prose: links lead somewhere, code is code, examples in docstrings give what they say."""

from __future__ import annotations

import ast
import doctest
import importlib
import re
from pathlib import Path

import pytest

from penstock.log.class_change import WAY_OUT
from penstock.run.app_file import load
from tests.docs.pages import PACKAGE, ROOT, Block, blocks, documents, page, without_code

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)

DOCTESTED = [
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
    for path in sorted(PACKAGE.rglob("*.py"))
    if ">>> " in path.read_text()
]


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def anchors(path: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    texts = [re.sub(r"[`*]", "", heading).lower() for heading in _HEADING.findall(path.read_text())]
    return {re.sub(r"[^\w\- ]", "", text).replace(" ", "-") for text in texts}


@pytest.mark.parametrize("path", documents(), ids=named)
def test_relative_links_lead_somewhere(path: Path) -> None:
    dead = []
    for target in _LINK.findall(without_code(path.read_text())):
        if "://" in target or target.startswith("mailto:"):
            continue
        file, _, anchor = target.partition("#")
        there = (path.parent / file).resolve() if file else path
        if not there.exists() or (anchor and there.suffix == ".md" and anchor not in anchors(there)):
            dead.append(target)
    assert dead == []


def test_every_page_of_the_docs_is_in_their_index() -> None:
    index = set(_LINK.findall(page("docs/README.md")))
    pages = {str(p.relative_to(ROOT / "docs")) for p in (ROOT / "docs").rglob("*.md")} - {"README.md"}
    pages = {page for page in pages if page == "decisions/README.md" or not page.startswith("decisions/")}
    assert pages - index == set()


PYTHON = [block for path in documents() for block in blocks(path, "python")]


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_python_in_the_docs_is_python(block: Block) -> None:
    ast.parse(block.code)


@pytest.mark.parametrize("block", [b for b in PYTHON if "App(" in b.code], ids=str)
def test_an_app_in_the_docs_can_be_loaded_and_has_no_error(block: Block, tmp_path: Path) -> None:
    file = tmp_path / f"documented_{abs(hash(str(block)))}.py"
    file.write_text(block.code)
    application = load(str(file)).application
    assert [problem for problem in application.problems() if problem.level == "error"] == []
    assert application.entries


def test_the_readmes_app_declares_what_the_readme_says(tmp_path: Path) -> None:
    (block,) = blocks(ROOT / "README.md", "python")
    file = tmp_path / "readme_shop.py"
    file.write_text(block.code)
    application = load(str(file)).application
    assert application.name == "shop"
    orders, countries = application.stream("orders"), application.view("countries")
    assert orders is not None
    assert countries is not None
    assert (orders.key, orders.id, orders.time, orders.late_after_us) == (
        ("order_id",),
        ("order_id",),
        "at",
        600_000_000,
    )
    assert (countries.key, countries.order_by, countries.limit) == (("country",), ("-orders",), 10)
    assert (countries.inputs, countries.doc) == (("orders",), "Orders and turnover by country.")
    assert len(block.code.splitlines()) <= 20, "the README promises an app of 20 lines"


def test_the_tutorials_app_is_the_readmes() -> None:
    (readme,) = blocks(ROOT / "README.md", "python")
    assert blocks(ROOT / "docs/tutorial/first-app.md", "python")[0].code == readme.code


def test_the_tutorial_shows_the_hints_of_today() -> None:
    assert WAY_OUT in (ROOT / "docs/tutorial/first-app.md").read_text()


@pytest.mark.parametrize("name", DOCTESTED)
def test_examples_in_docstrings_give_what_they_say(name: str) -> None:
    done = doctest.testmod(importlib.import_module(f"penstock.{name}"))
    assert done.attempted
    assert not done.failed


def test_tests_that_the_guarantees_name_are_there() -> None:
    """A guarantee is only as good as the test that it names."""
    sources = [p.read_text() for folder in ("tests", "penstock/testing") for p in (ROOT / folder).rglob("*.py")]
    there = set(re.findall(r"def (test_\w+)", "\n".join(sources)))
    wanted = set(re.findall(r"`(test_\w+)`", page("docs/explanation/guarantees.md")))
    assert len(wanted) > 20
    assert wanted - there == set()
    for file in re.findall(r"`(tests/[\w/]+\.py)`", page("docs/explanation/guarantees.md")):
        assert (ROOT / file).is_file(), file


def test_files_that_the_docs_name_are_there() -> None:
    """Whether a page names a file of the package (`views/store.py`) or of the checkout (`tests/...`)."""
    named_files = {
        name.removeprefix("penstock/")
        for path in documents()
        for name in re.findall(r"`((?:\w+/)+\w+\.py)`", path.read_text())
    }
    assert len(named_files) > 50
    assert [name for name in sorted(named_files) if not (PACKAGE / name).exists() and not (ROOT / name).exists()] == []
