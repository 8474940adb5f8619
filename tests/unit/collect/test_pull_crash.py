from __future__ import annotations

from pathlib import Path

from pull_crash import STREAMS, crash, dead, wrong


async def test_no_kill_loses_or_repeats_an_event_of_any_source(tmp_path: Path) -> None:
    """`pull_crash.py` does more rounds."""
    found = await crash(tmp_path, kills=2, seed=11, events=800)
    assert wrong(found, 800) == {}
    assert set(found) == set(STREAMS)
    assert dead(tmp_path) == []
