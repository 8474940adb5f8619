"""Ten kills at seeded moments; `make chaos KILLS=100 SEED=...` plays more."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.chaos.harness import play, reckon


def test_nothing_acknowledged_is_lost_and_every_number_is_right_whatever_is_killed(tmp_path: Path) -> None:
    found = asyncio.run(play(kills=10, seed=20261115, data=tmp_path / "data"))
    reckon(found, tmp_path / "data")
    assert found.wrong == []
    assert len(found.kills) == 10
    assert found.acked
    assert found.batches
    assert found.resumes
    assert found.resets == 0, "kill -9 leaves checkpoints and history whole: nobody has to begin anew"
