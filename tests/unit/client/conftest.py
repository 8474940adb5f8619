from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "collect"))  # the edge that the tests of stage 1 put up

from scripted_door import ScriptedDoor


@pytest.fixture
def door() -> Iterator[ScriptedDoor]:
    """A server that answers as a test says and notes what it was asked."""
    with ScriptedDoor() as made:
        yield made
