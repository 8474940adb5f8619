from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

_STAGES = Path(__file__).parents[1]
sys.path += [
    str(_STAGES / stage) for stage in ("collect", "rights", "serve", "views")
]  # the edges that their tests put up

from bank import Bank  # noqa: E402
from scripted_door import ScriptedDoor  # noqa: E402


@pytest.fixture
def door() -> Iterator[ScriptedDoor]:
    """A server that answers as a test says and notes what it was asked."""
    with ScriptedDoor() as made:
        yield made


@pytest.fixture
def bank() -> Iterator[Bank]:
    with Bank() as made:
        yield made


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "work.db"
