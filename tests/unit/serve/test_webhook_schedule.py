"""The schedule of retries, and who may be under way at one time."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from penstock.protocol import retry_after_s
from penstock.serve.webhooks.endpoint import Crowded, Lanes
from penstock.serve.webhooks.schedule import GIVE_UP_S, JITTER, STEPS_S, Schedule
from penstock.serve.webhooks.webhook import Trouble


def test_the_schedule_begins_as_promised_and_ends_after_three_days() -> None:
    schedule, now, trouble = Schedule(Random(3)), 0, None
    delays = []
    while (trouble := schedule.after(trouble, now, "status 500", None)) is not None:
        delays.append((trouble.retry_us - now) / 1e6)
        now = trouble.retry_us
    for delay, step in zip(delays, (5, 30, 120, 600), strict=False):
        assert step * (1 - JITTER) <= delay <= step * (1 + JITTER)
    assert delays[:8] == sorted(delays[:8])
    assert now == GIVE_UP_S * 1e6
    assert 15 < len(delays) < 40


def test_two_that_failed_together_come_back_apart() -> None:
    schedule = Schedule(Random(3))
    first, second = (schedule.after(None, 0, "", None) for _ in range(2))
    assert first is not None
    assert second is not None
    assert first.retry_us != second.retry_us


@pytest.mark.parametrize("asked", [0.0, 1.0, 100.0, 1e9])
def test_retry_after_puts_off_and_never_hurries(asked: float) -> None:
    found = Schedule(Random(1)).after(Trouble(0, 1, 0, ""), 0, "", asked)
    assert found is not None
    least = min(max(asked, STEPS_S[1] * (1 - JITTER)), 6 * 3600)
    assert least * 1e6 <= found.retry_us <= max(least, STEPS_S[1] * (1 + JITTER)) * 1e6 + 1


@pytest.mark.parametrize("text", ["", "soon", "-1", "1.5", "Thu, 99 Foo", "٣"])
def test_a_retry_after_that_says_nothing_is_none(text: str) -> None:
    assert retry_after_s(text, 0) is None


async def test_a_slow_attempt_leaves_the_fast_lane() -> None:
    lanes = Lanes(fast=1, slow=1, moment_s=0.02)
    hanging = asyncio.Event()
    slow = asyncio.create_task(lanes.run(hanging.wait, troubled=False))
    await asyncio.sleep(0)
    assert await asyncio.wait_for(lanes.run(_quick, troubled=False), 60) == "quick"
    crowded = lanes.run(asyncio.Event().wait, troubled=False)
    with pytest.raises(Crowded):
        await asyncio.wait_for(crowded, 60)
    troubled = asyncio.create_task(lanes.run(_quick, troubled=True))
    await asyncio.sleep(0.05)
    assert not troubled.done(), "the slow lane is full"
    hanging.set()
    assert await slow
    assert await troubled == "quick"


async def test_an_attempt_that_is_cancelled_gives_its_place_back() -> None:
    lanes = Lanes(fast=1, slow=1, moment_s=0.02)
    for wait in (0.0, 0.05):
        task = asyncio.create_task(lanes.run(asyncio.Event().wait, troubled=False))
        await asyncio.sleep(wait)
        task.cancel()
        await asyncio.wait([task])
    assert await asyncio.wait_for(lanes.run(_quick, troubled=False), 60) == "quick"
    assert await asyncio.wait_for(lanes.run(_quick, troubled=True), 60) == "quick"


async def _quick() -> str:
    return "quick"
