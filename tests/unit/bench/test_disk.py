from __future__ import annotations

from pathlib import Path

from bench.disk import FILE_BYTES, synced


def test_as_many_writes_as_were_asked_for_are_timed_and_nothing_is_left_behind(tmp_path: Path) -> None:
    found = synced(tmp_path, rate=100.0, size=FILE_BYTES // 3, seconds=0.1)
    assert 1 <= len(found) <= 11
    assert min(found) > 0
    assert not list(tmp_path.iterdir())
