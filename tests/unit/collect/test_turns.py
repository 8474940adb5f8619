from __future__ import annotations

import asyncio

from penstock.collect.turns import QUANTUM_BYTES, Turns


async def test_a_small_request_does_not_wait_behind_all_that_a_flood_has_sent_before() -> None:
    turns, ended = Turns(QUANTUM_BYTES), list[str]()

    async def one(account: str, size: int) -> None:
        if not turns.begin(size):
            await turns.wait(account, size)
        await asyncio.sleep(0)
        ended.append(account)
        turns.end(size)

    flood = [asyncio.create_task(one("flood", QUANTUM_BYTES)) for _ in range(50)]
    await asyncio.sleep(0)
    small = [asyncio.create_task(one("small", 100)) for _ in range(5)]
    await asyncio.gather(*flood, *small)
    assert max(at for at, account in enumerate(ended) if account == "small") < 10
    assert turns.waiting == 0
    assert turns._busy == 0


async def test_accounts_that_flood_get_the_same_number_of_bytes_whatever_the_size_of_their_requests() -> None:
    turns, done = Turns(QUANTUM_BYTES), {"large": 0, "little": 0}
    halfway = dict[str, int]()

    async def one(account: str, size: int) -> None:
        if not turns.begin(size):
            await turns.wait(account, size)
        await asyncio.sleep(0)
        done[account] += size
        if sum(done.values()) > 40 * QUANTUM_BYTES and not halfway:
            halfway.update(done)
        turns.end(size)

    large = [asyncio.create_task(one("large", 2 * QUANTUM_BYTES)) for _ in range(40)]
    little = [asyncio.create_task(one("little", QUANTUM_BYTES // 8)) for _ in range(640)]
    await asyncio.gather(*large, *little)
    assert abs(halfway["large"] - halfway["little"]) <= 4 * QUANTUM_BYTES


async def test_an_account_keeps_the_order_of_its_own_requests() -> None:
    turns, order = Turns(10), list[int]()

    async def one(number: int) -> None:
        if not turns.begin(10):
            await turns.wait("a", 10)
        order.append(number)
        await asyncio.sleep(0)
        turns.end(10)

    await asyncio.gather(*(one(number) for number in range(100)))
    assert order == list(range(100))


async def test_a_request_that_goes_away_while_it_waits_leaves_no_trace() -> None:
    turns = Turns(10)
    assert turns.begin(10)
    waiting = [asyncio.create_task(turns.wait(account, 10)) for account in ("a", "b", "a")]
    await asyncio.sleep(0)
    waiting[0].cancel()
    waiting[1].cancel()
    await asyncio.gather(*waiting[:2], return_exceptions=True)
    assert turns.waiting == 1
    turns.end(10)
    await waiting[2]
    turns.end(10)
    assert turns._busy == 0
    assert turns.waiting == 0
    assert turns.begin(10)


async def test_one_that_is_cancelled_when_its_turn_came_passes_it_on() -> None:
    turns = Turns(10)
    assert turns.begin(10)
    first, second = (asyncio.create_task(turns.wait(account, 10)) for account in ("a", "b"))
    await asyncio.sleep(0)
    turns.end(10)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await asyncio.wait_for(second, 1)
    turns.end(10)
    assert turns._busy == 0
