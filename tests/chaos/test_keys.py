from __future__ import annotations

from pathlib import Path

from tests.chaos.keys_harness import play


async def test_each_request_under_a_key_counts_once_whatever_dies(tmp_path: Path) -> None:
    requests, _ = await play(seed=3, kills=2, parent=tmp_path)
    assert requests >= 40
