"""A few slow clients among two hundred; `python -m tests.chaos.slow_readers --clients 2000` plays it in full."""

from __future__ import annotations

import asyncio
from pathlib import Path

from penstock.config import Limits
from tests.chaos.slow_readers import Play, play

CUT_S = 12.0
"""Who had to wait for one of the slow would wait until it is cut. A machine that runs other tests too may take a while,
but not so long."""


def test_stopped_and_crawling_clients_hurt_nobody_and_come_to_the_present(tmp_path: Path) -> None:
    limits = Limits(subscriber_bytes=64 * 1024, subscriber_stall_s=1.0, subscriber_cut_s=CUT_S)
    what = Play(200, 4, 4, per_s=10, message_bytes=16_000, quiet_s=2.0, limits=limits)
    found = asyncio.run(play(what, tmp_path / "data"))
    assert found.wrong == []
    _, during = found.p99
    assert during < CUT_S * 2 / 3
    assert len(found.slow) == 8
    assert sum("stall" in seen for seen in found.slow) >= 2, "who went on in time was told so"
    assert sum("connections" in seen for seen in found.slow) >= 2, "who did not was cut"
