"""Twelve rounds at seeded moments for the JavaScript reader; `tests.chaos.js_readers` plays more."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

from tests.chaos.js_readers import ACTS, play
from tests.pretended import ROOT


def test_the_copies_of_a_reader_equal_the_servers_rows_whatever_breaks(tmp_path: Path) -> None:
    subprocess.run(["npm", "run", "--silent", "build"], cwd=ROOT / "client", check=True)
    found = asyncio.run(play(rounds=12, seed=20261116, folder=tmp_path / "chaos"))
    assert found.wrong == []
    assert found.rounds == list(ACTS[:12])
    assert found.batches > 100
    assert found.resets >= 4
    assert found.events > 20
