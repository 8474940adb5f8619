"""Some rounds at a seeded beginning; `make chaos-readers READER_ROUNDS=1000 SEED=...` plays more."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.chaos.readers import play


def test_a_copy_is_right_at_every_position_whatever_breaks(tmp_path: Path) -> None:
    found = asyncio.run(play(rounds=18, seed=20261116, folder=tmp_path / "readers", say=lambda text: None))
    assert found.wrong == []
    assert found.rounds == 18
    assert (found.counts["kills"], found.counts["kills of one that only reads"]) == (1, 1)
    assert found.counts["checks"] > 50
    assert all(found.counts[way] for way in ("websocket", "sse", "poll", "live", "threads", "rest"))
