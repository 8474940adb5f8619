"""docs/reference/cli.md is true: every verb, argument and option stands there as the program says it."""

from pathlib import Path
from typing import Any

import pytest
import typer.main

from penstock.cli.main import app
from penstock.cli.reference import _verbs, reference

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "cli.md"
COMMANDS: dict[str, Any] = dict(_verbs(typer.main.get_command(app).commands))  # type: ignore[attr-defined]


def test_the_page_is_what_the_program_writes():
    assert PAGE.read_text() == reference(), "run: python -m penstock.cli.reference > docs/reference/cli.md"


@pytest.mark.parametrize("verb", COMMANDS)
def test_a_verb_is_documented_with_every_option(verb):
    section = PAGE.read_text().partition(f"\n### {verb}\n")[2].partition("\n### ")[0]
    assert section
    for parameter in COMMANDS[verb].params:
        if not getattr(parameter, "hidden", False) and parameter.name != "help":
            assert parameter.help, parameter.name
            shown = (parameter.metavar or "").replace("|", "\\|") if parameter.param_type_name == "argument" else None
            assert f"`{shown or parameter.opts[0]}`" in section


def test_every_verb_of_the_contract_is_there():
    wanted = "run edge flows check graph send tail watch status verify rebuild demo"
    dead = {f"dead {verb}" for verb in ("list", "show", "fix", "replay")}
    assert {*wanted.split(), "keys create", "keys list", "keys revoke"} | dead <= set(COMMANDS)
