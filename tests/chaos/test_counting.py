"""Two kills at seeded moments; `python -m tests.chaos.counting --kills 50 --seed ...` plays more."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.chaos.counting import WAYS, play


def test_received_is_accepted_and_known_and_dead_and_shed_to_the_event_by_every_way_in(tmp_path: Path) -> None:
    found = asyncio.run(play(kills=2, seed=20261116, data=tmp_path / "data", between_s=(0.2, 0.8)))
    assert found.wrong == []
    for stream in WAYS:
        for kind in ("accepted", "duplicates", "dead"):
            assert found.totals[stream][kind] > 0, f"{stream} saw no {kind}: {found.totals[stream]}"
    assert found.totals["shedding"]["shed"] > 0
    assert found.refused["too_many"] > 0
    assert 0 < found.replayed["replayed"] <= found.totals["mended"]["dead"]
