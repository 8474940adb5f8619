"""Two kills with `held.db` damaged; `make chaos-views KILLS=20 SEED=...` plays more."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.chaos.harness import play, reckon
from tests.chaos.view_kills import VIEWS


def test_views_over_views_are_right_whatever_is_killed_and_whatever_becomes_of_held_rows(tmp_path: Path) -> None:
    found = asyncio.run(play(kills=2, seed=3, data=tmp_path / "data", piece=VIEWS))
    reckon(found, tmp_path / "data", VIEWS)
    assert found.wrong == []
    assert found.kills == ["flows", "edge"]
    assert found.batches
    assert found.resets == 0
