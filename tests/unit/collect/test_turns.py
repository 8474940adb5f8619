from __future__ import annotations

import asyncio

import pytest

from penstock.collect.limits.turns import ALONE_S, Turns

KB = 1_000


async def test_a_small_request_does_not_wait_behind_all_that_a_flood_has_sent_before() -> None:
    turns, ended = Turns(8 * KB), list[str]()

    async def one(account: str, size: int) -> None:
        if not turns.begin(account, size):
            await turns.wait(account, size)
        await asyncio.sleep(0)
        ended.append(account)
        turns.end(account, size)

    flood = [asyncio.create_task(one("flood", KB)) for _ in range(50)]
    await asyncio.sleep(0)
    small = [asyncio.create_task(one("small", 100)) for _ in range(5)]
    await asyncio.gather(*flood, *small)
    assert max(at for at, account in enumerate(ended) if account == "small") < 10
    assert turns.waiting == 0
    assert turns._busy == 0


def begun(turns: Turns, account: str, size: int) -> int:
    """How many of its requests may begin at once."""
    number = 0
    while turns.begin(account, size):
        number += 1
    for _ in range(number):
        turns.end(account, size)
    return number


async def test_a_flood_has_less_under_way_while_others_send_too(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr("penstock.collect.limits.turns.monotonic", lambda: now_s)
    turns = Turns(16 * KB)
    assert begun(turns, "flood", 3 * KB) == 3
    assert begun(turns, "small", 1) > 100
    assert begun(turns, "flood", 3 * KB) == 1
    now_s += ALONE_S
    assert begun(turns, "flood", 3 * KB) == 1, "the other one was here a moment ago"
    now_s += ALONE_S
    assert begun(turns, "flood", 3 * KB) == 3
    now_s += 100 * ALONE_S
    assert begun(turns, "small", 3 * KB) == 3, "the flood was here long ago"


async def test_accounts_that_flood_get_about_the_same_number_of_bytes_whatever_the_size_of_their_requests() -> None:
    turns, done = Turns(8 * KB), {"large": 0, "little": 0}
    halfway = dict[str, int]()

    async def one(account: str, size: int) -> None:
        if not turns.begin(account, size):
            await turns.wait(account, size)
        await asyncio.sleep(0)
        done[account] += size
        if sum(done.values()) > 400 * KB and not halfway:
            halfway.update(done)
        turns.end(account, size)

    large = [asyncio.create_task(one("large", 2 * KB)) for _ in range(400)]
    little = [asyncio.create_task(one("little", 125)) for _ in range(6_400)]
    await asyncio.gather(*large, *little)
    assert min(halfway.values()) > sum(halfway.values()) / 3


async def test_an_account_keeps_the_order_of_its_own_requests() -> None:
    turns, order = Turns(40), list[int]()

    async def one(number: int) -> None:
        if not turns.begin("a", 10):
            await turns.wait("a", 10)
        order.append(number)
        await asyncio.sleep(0)
        turns.end("a", 10)

    await asyncio.gather(*(one(number) for number in range(100)))
    assert order == list(range(100))


async def test_a_request_that_goes_away_while_it_waits_leaves_no_trace() -> None:
    turns = Turns(40)
    assert all(turns.begin(account, 10) for account in "wxyz")
    waiting = [asyncio.create_task(turns.wait(account, 10)) for account in ("a", "b", "a")]
    await asyncio.sleep(0)
    waiting[0].cancel()
    waiting[1].cancel()
    await asyncio.gather(*waiting[:2], return_exceptions=True)
    assert turns.waiting == 1
    for account in "wxyz":
        turns.end(account, 10)
    await waiting[2]
    turns.end("a", 10)
    assert turns._busy == 0
    assert turns.waiting == 0
    assert turns.begin("a", 10)


async def test_one_that_is_cancelled_when_its_turn_came_passes_it_on() -> None:
    turns = Turns(40)
    assert all(turns.begin(account, 10) for account in "wxyz")
    first, second = (asyncio.create_task(turns.wait(account, 10)) for account in ("a", "b"))
    await asyncio.sleep(0)
    turns.end("w", 10)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await asyncio.wait_for(second, 60)
    turns.end("b", 10)
    for account in "xyz":
        turns.end(account, 10)
    assert turns._busy == 0
