"""The reference is complete: every error, metric, option, code, route and public name stands in it."""

from __future__ import annotations

import ast
import importlib
import inspect
import pickle
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import MISSING, fields
from functools import cache
from typing import Any, get_args

import pytest

import penstock
from penstock import App, plain
from penstock.client import AsyncClient
from penstock.client.processing.processor import Options as ProcessingOptions
from penstock.client.processing.processor import ProcessOptions
from penstock.declaration import How
from penstock.errors import PenstockError
from penstock.log.builds import Proof
from penstock.observe.signals import Counts, Observes, Signal
from tests.docs.pages import PACKAGE, page, section, table_codes
from tests.docs.route_tables import ROUTES, filled

DECLARING = "docs/reference/declaring.md"
WITHOUT_JVM = ("observe", "collect", "views", "serve", "rights", "log", "errors")


def import_all() -> None:
    """So that every subclass is known; what imports pyspark declares no errors and no signals."""
    for name in WITHOUT_JVM:
        module = importlib.import_module(f"penstock.{name}")
        for found in pkgutil.walk_packages(getattr(module, "__path__", []), f"penstock.{name}."):
            importlib.import_module(found.name)


def subclasses(kind: type[Any]) -> Iterator[type[Any]]:
    for below in kind.__subclasses__():
        if below.__module__.startswith("penstock."):
            yield below
            yield from subclasses(below)


import_all()
ERRORS = [PenstockError, *subclasses(PenstockError)]
SIGNALS = list(subclasses(Signal))
MOVES: list[Counts | Observes] = [move for signal in SIGNALS for move in signal.moves]


# Parts


def test_every_part_that_can_be_turned_off_is_documented_and_none_that_is_gone() -> None:
    table = section(page("docs/reference/plain.md"), "The parts")
    assert table_codes(table) == {*plain.SPARK, *plain.AIOHTTP}


# Errors


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.code)
def test_an_error_is_documented_with_its_status_and_whether_to_retry(kind: type[PenstockError]) -> None:
    row = re.search(
        rf"^\| `{kind.code}` \| `{kind.__name__}` \|([^|]*)\|([^|]*)\|", page("docs/reference/errors.md"), re.M
    )
    assert row, f"errors.md has no row for {kind.code} ({kind.__name__})"
    status, retry = row[1].strip(), row[2].strip()
    assert status in ("", str(kind.status))
    assert status or kind.status == 500, "a status that a client can see must be in the table"
    assert retry == ("yes" if kind.retry else "no")


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.code)
def test_an_error_comes_whole_out_of_another_process(kind: type[PenstockError]) -> None:
    error = kind("what", detail="facts", hint="do").after(2.0)
    error.__dict__.update({name: "own" for name in vars(error) if name in ("expected", "reason")})
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), vars(copy), str(copy)) == (kind, vars(error), "what")


def test_no_error_is_documented_that_is_gone() -> None:
    assert table_codes(page("docs/reference/errors.md")) == {kind.code for kind in ERRORS}


def test_error_codes_are_unique() -> None:
    codes = [kind.code for kind in ERRORS]
    assert len(codes) == len(set(codes))


# Metrics


@cache
def asked(kind: str) -> set[str]:
    """Names that are passed to `Observer.gauge` or `Observer.counter`, anywhere."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        for call in ast.walk(ast.parse(text)) if f".{kind}(" in text else ():
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == kind:
                assert isinstance(call.args[0], ast.Constant), f"{path}: the name of a {kind} must be a literal"
                found.add(str(call.args[0].value))
    return found


def test_every_metric_is_documented_and_none_that_is_gone() -> None:
    documented = table_codes(page("docs/reference/metrics.md"))
    assert {name for name in documented if name.startswith("penstock_")} == (
        {move.name for move in MOVES} | asked("gauge") | asked("counter")
    )


@pytest.mark.parametrize("move", MOVES, ids=lambda move: move.name)
def test_a_metric_is_documented_with_its_labels(move: Counts | Observes) -> None:
    row = re.search(rf"^\| `{move.name}` \|([^|]*)\|([^|]*)\|", page("docs/reference/metrics.md"), re.M)
    assert row
    assert row[1].strip() == ("counter" if isinstance(move, Counts) else "histogram")
    assert tuple(re.findall(r"`(\w+)`", row[2])) == move.labels


@pytest.mark.parametrize("signal", [s for s in SIGNALS if s.moves], ids=lambda signal: signal.__name__)
def test_a_signal_stands_beside_the_metrics_that_it_moves(signal: type[Signal]) -> None:
    for move in signal.moves:
        (row,) = [line for line in page("docs/reference/metrics.md").splitlines() if f"| `{move.name}` |" in line]
        assert f"`{signal.__name__}`" in row


def test_gauges_are_documented_as_such() -> None:
    for kind in ("gauge", "counter"):
        for name in asked(kind):
            assert f"| `{name}` | {kind} |" in page("docs/reference/metrics.md")


# Declaring

METHODS = {
    "App": App.__init__,
    "app.stream": App.stream,
    "app.pull": App.pull,
    "app.flow": App.flow,
    "app.view": App.view,
    "app.sql": App.sql,
}


@pytest.mark.parametrize("heading", METHODS)
def test_every_parameter_is_documented_with_its_default(heading: str) -> None:
    text = section(page(DECLARING), heading)
    parameters = [p for p in inspect.signature(METHODS[heading]).parameters.values() if p.name != "self"]
    assert table_codes(text) == {parameter.name for parameter in parameters}
    for parameter in parameters:
        default = parameter.default
        if default not in (None, inspect.Parameter.empty):
            shown = f'"{default}"' if isinstance(default, str) else str(default)
            assert re.search(rf"^\| `{parameter.name}` \| `?{re.escape(shown)}`? \|", text, re.M), parameter


def test_every_public_name_is_documented() -> None:
    for name in penstock.__all__:
        assert f"`{name}`" in page(DECLARING)


def test_every_column_that_a_function_sees_is_documented() -> None:
    from penstock.schema import PLACE, SENT, SYSTEM, UNKNOWN

    documented = table_codes(section(page(DECLARING), "What a function sees"))
    assert documented == {UNKNOWN, SENT, *(field.name for field in (*SYSTEM, *PLACE))}


ORDERED = "flows/ordered/ordered_plan.py"


def problem_codes() -> set[str]:
    """Literal codes of every `Problem(...)` and of the `_error(...)` that make one, grades of a proof, ways to keep."""
    found = {f"proof_{grade}" for grade in get_args(Proof)} | {f"kept_{how}" for how in get_args(How)} | {"bad_plan"}
    for file in (
        "declaration_problems.py",
        "flows/rules.py",
        "flows/plan.py",
        "flows/check.py",
        "views/read_rule.py",
        ORDERED,
    ):
        tree = ast.parse((PACKAGE / file).read_text())
        names = {n.targets[0].id: n.value.value for n in tree.body if _is_text(n)}  # type: ignore[attr-defined]
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in ("Problem", "_error"):
                code = call.args[1 if call.func.id == "Problem" else 0]
                if isinstance(code, ast.Constant):
                    found.add(str(code.value))
                elif isinstance(code, ast.Name) and code.id in names:
                    found.add(names[code.id])
    return found


def _is_text(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def test_every_code_of_check_is_documented_and_none_that_is_gone() -> None:
    found = problem_codes()
    assert len(found) > 20
    assert table_codes(section(page(DECLARING), "What check says")) == found


# Routes


def test_the_tables_of_routes_and_parameters_are_those_of_the_program() -> None:
    assert page("docs/reference/http.md") == filled(page("docs/reference/http.md")), "run: make routes"


def test_every_parameter_has_words_and_every_request_a_place() -> None:
    assert [p.name for route in ROUTES for p in route.parameters if p.place != "path" and not p.words] == []
    text = page("docs/reference/http.md") + page("docs/reference/collection.md")
    for route in ROUTES:
        assert len(re.findall(rf"{re.escape(route.request)}(?![\w/{{.])", text)) > 1, f"{route.request} is only listed"


def test_no_route_is_documented_that_is_gone() -> None:
    text = page("docs/reference/http.md") + page("docs/reference/collection.md")
    named = set(re.findall(r"\b((?:GET|POST|PATCH|DELETE) /[\w{}/.]*)", text))
    assert {request for request in named if "{" in request} - {route.request for route in ROUTES} == set()


# Processing


def test_every_argument_of_processing_is_documented_with_its_default() -> None:
    text = section(page("docs/reference/processing.md"), "Arguments")
    defaults = {field.name: field.default for field in fields(ProcessingOptions)}
    asked = inspect.signature(AsyncClient.process).parameters
    named = {name for row in re.findall(r"^\| (`[^|]+`) \|", text, re.M) for name in re.findall(r"`(\w+)`", row)}
    assert named == (defaults.keys() | asked.keys()) - {"self", "view", "handler", "options"}
    assert defaults.keys() == ProcessOptions.__annotations__.keys()
    for name, default in defaults.items():
        if default is not MISSING:
            shown = f'"{default}"' if isinstance(default, str) else str(default)
            assert re.search(rf"^\| `{name}` \| `{re.escape(shown)}` \|", text, re.M), name
    assert f"| `lease_s` | `{asked['lease_s'].default}` |" in text
