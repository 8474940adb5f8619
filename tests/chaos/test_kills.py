"""Ten kills at seeded moments, four on the plain ways; `make chaos KILLS=100 SEED=...` plays more."""

from __future__ import annotations

import asyncio
from pathlib import Path

from penstock import plain
from tests.chaos.harness import play, reckon

KILLS = 4 if plain.parts_off() else 10
"""The first four are an edge, the flows, an edge and the JVM."""


def test_nothing_acknowledged_is_lost_and_every_number_is_right_whatever_is_killed(tmp_path: Path) -> None:
    found = asyncio.run(play(kills=KILLS, seed=20261115, data=tmp_path / "data"))
    reckon(found, tmp_path / "data")
    assert found.wrong == []
    assert len(found.kills) == KILLS
    assert found.acked
    assert found.batches
    assert found.resumes
    assert found.resets == 0, "kill -9 leaves checkpoints and history whole: nobody has to begin anew"
