"""Eight rounds at seeded moments; `make chaos-producer ROUNDS=50 SEED=...` plays more."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.chaos.producer_harness import play


def test_each_event_of_a_producer_counts_once_whatever_dies(tmp_path: Path) -> None:
    found = asyncio.run(play(rounds=8, seed=20261116, folder=tmp_path / "chaos"))
    assert found.wrong == []
    assert len(found.rounds) == 8
    assert len(found.taken) > 50
