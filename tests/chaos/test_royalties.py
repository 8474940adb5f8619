"""A few kills on each store; `python -m tests.chaos.royalties --kills 100 --seed ...` plays more."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests import postgres_server
from tests.chaos.royalties import play


def test_each_royalty_is_paid_once_though_payer_and_bank_are_killed(tmp_path: Path) -> None:
    found = asyncio.run(play(kills=5, seed=20261116, folder=tmp_path, between_s=0.2))
    assert found.wrong == []
    assert found.charges == len(found.royalties) > 10
    assert sum(found.faults.values()) == 5


def test_another_machine_takes_over_from_one_that_was_stopped_or_killed(tmp_path: Path) -> None:
    why = postgres_server.missing()
    if why is not None:
        pytest.skip(f"TAKING OVER THROUGH POSTGRESQL IS NOT TESTED: {why}")
    found = asyncio.run(play(kills=2, seed=20261116, folder=tmp_path, postgres=True, between_s=0.2))
    assert found.wrong == []
    assert found.charges == len(found.royalties) > 5
    assert found.faults == {"stopped": 1, "processor": 1}
