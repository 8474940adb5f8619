"""An edge that is killed between an endpoint's 2xx and the writing of its progress repeats, and skips nothing."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.webhook_harness import play


async def test_webhooks_repeat_with_the_same_id_and_skip_nothing_whatever_is_killed(tmp_path: Path) -> None:
    heard, repeated = await play(seed=1, kills=4, parent=tmp_path)
    assert heard > 50
    assert repeated, "no kill fell between a 2xx and its progress: the test has tried nothing"
