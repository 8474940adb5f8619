"""Twelve rounds at seeded moments for the JavaScript reader; `tests.chaos.js_readers` plays more."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.built_client import built_client
from tests.chaos.js_readers import ACTS, play


def test_the_copies_of_a_reader_equal_the_servers_rows_whatever_breaks(tmp_path: Path) -> None:
    built_client()
    found = asyncio.run(play(rounds=12, seed=20261116, folder=tmp_path / "chaos"))
    assert found.wrong == []
    assert found.rounds == list(ACTS[:12])
    assert found.batches > 100
    assert found.resets >= 4
    assert found.events > 20
