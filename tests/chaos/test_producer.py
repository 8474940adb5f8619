"""Six rounds at seeded moments for each producer; `make chaos-producer ROUNDS=50 SEED=...` plays more."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.built_client import built_client
from tests.chaos.producer_harness import play


@pytest.mark.parametrize("program", ["python", "node"])
def test_each_event_of_a_producer_counts_once_whatever_dies(tmp_path: Path, program: str) -> None:
    if program == "node":
        built_client()
    found = asyncio.run(play(rounds=6, seed=20261116, folder=tmp_path / "chaos", node=program == "node"))
    assert found.wrong == []
    assert len(found.rounds) == 6
    assert len(found.taken) > 50
