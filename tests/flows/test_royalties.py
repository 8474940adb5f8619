"""The royalties example: ten plays by one listener count, amounts are exact, and a day appears when it is over."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.testing import rows
from tests.flows.world import World

APP = Path(__file__).parents[2] / "examples" / "royalties" / "app.py"
DAY = datetime(2026, 1, 1, tzinfo=UTC)
FIRST = {"start": DAY, "end": DAY + timedelta(days=1)}


@pytest.fixture(scope="module")
def example(spark: SparkSession) -> Any:
    """The app file as a module."""
    spec = spec_from_file_location("royalties_example", APP)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["royalties_example"] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def plays(example: Any, song: str, listener: str, times: int, at: datetime = DAY) -> list[Any]:
    ms = int(at.timestamp() * 1000)
    return [
        example.Play(play_id=f"{song}/{listener}/{ms}/{n}", song=song, listener=listener, at=ms) for n in range(times)
    ]


def test_ten_plays_by_one_listener_count_and_amounts_are_exact(example: Any) -> None:
    heard = [*plays(example, "s1", "ann", 12), *plays(example, "s1", "bob", 3), *plays(example, "s2", "ann", 1)]
    assert sorted(rows(example.app, "royalties", plays=heard), key=lambda row: row["song"]) == [
        {"window": FIRST, "song": "s1", "plays": 13, "amount": Decimal("0.0455")},
        {"window": FIRST, "song": "s2", "plays": 1, "amount": Decimal("0.0035")},
    ]


def test_a_day_appears_when_it_is_over_and_is_final(example: Any, world: Callable[[Any], World]) -> None:
    played = world(example.app)
    played.send("plays", [plays(example, "s1", "ann", 12), plays(example, "s1", "bob", 1)])
    played.run()
    assert played.rows("royalties") == []
    later = DAY + timedelta(days=1, hours=3)
    played.send("plays", [plays(example, "s1", "ann", 1, later)])
    played.run(until=lambda: bool(played.level() and played.rows("royalties")))
    (row,) = played.rows("royalties")
    assert (row["song"], row["plays"], row["amount"]) == ("s1", 11, Decimal("0.0385"))
    report = played.verify()["royalties"]
    assert (report.differences, report.rows) == ([], 1)
