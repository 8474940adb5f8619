"""A few rounds of the model; `python -m tests.chaos.model --rounds 1000 --seed ...` plays more."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.config import Folder
from tests.chaos.model import Game


@pytest.mark.parametrize("seed", [7, 2026])
def test_a_clients_copy_equals_the_views_rows_under_its_filter_at_every_position(tmp_path: Path, seed: int) -> None:
    found = asyncio.run(Game(seed, Folder(tmp_path / "data")).play(60))
    assert found.wrong == []
    for what in ("socket", "events", "polling", "changes", "snapshot"):
        assert found.done[what] > 0, found.done
