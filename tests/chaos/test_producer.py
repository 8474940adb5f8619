"""Six rounds at seeded moments for each producer; `make chaos-producer ROUNDS=50 SEED=...` plays more."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest

from tests.chaos.producer_harness import play

CLIENT = Path(__file__).parents[2] / "client"


@pytest.mark.parametrize("program", ["python", "node"])
def test_each_event_of_a_producer_counts_once_whatever_dies(tmp_path: Path, program: str) -> None:
    if program == "node":
        subprocess.run(["npm", "run", "--silent", "build"], cwd=CLIENT, check=True)
    found = asyncio.run(play(rounds=6, seed=20261116, folder=tmp_path / "chaos", node=program == "node"))
    assert found.wrong == []
    assert len(found.rounds) == 6
    assert len(found.taken) > 50
