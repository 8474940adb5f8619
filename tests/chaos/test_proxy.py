"""The proxy does to a connection what each of its faults says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from random import Random

import pytest
import pytest_asyncio

from tests.chaos.proxy import Proxy

QUIET_S = 0.2
"""Nothing for so long is nothing."""


class Echo:
    """Answers every line with the same line, twice as long, and notes what arrived."""

    def __init__(self) -> None:
        self.arrived = b""

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                self.arrived += line
                writer.write(line[:-1] * 2 + b"\n")
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()


@pytest_asyncio.fixture
async def net() -> AsyncIterator[tuple[Proxy, Echo]]:
    echo = Echo()
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with server, Proxy(server.sockets[0].getsockname()[1], Random(1)) as proxy:
        yield proxy, echo


async def ask(proxy: Proxy, line: bytes = b"abcdefgh\n", wait_s: float = 30.0) -> bytes | str:
    """What came back until the line's end: `closed`, `reset` or `silent` if it did not come."""
    writer = None
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(line)
        answer = await asyncio.wait_for(reader.readline(), wait_s)
        return answer if answer.endswith(b"\n") else f"closed after {len(answer)}"
    except TimeoutError:
        return "silent"
    except ConnectionResetError:
        return "reset"
    finally:
        if writer is not None:
            writer.close()


async def test_without_a_fault_everything_passes(net: tuple[Proxy, Echo]) -> None:
    assert await ask(net[0]) == b"abcdefghabcdefgh\n"


@pytest.mark.parametrize(
    ("fault", "answers", "arrives"),
    [
        ("drop", ("closed after 0", "reset"), False),
        ("reset", ("reset",), False),
        ("stall", ("silent",), False),
        ("half_open", ("silent",), True),
        ("cut_request", ("reset",), False),
        ("cut_reply", tuple(f"closed after {n}" for n in range(17)), True),
    ],
)
async def test_a_fault_does_what_it_says_and_ends(
    net: tuple[Proxy, Echo], fault: str, answers: tuple[str, ...], arrives: bool
) -> None:
    proxy, echo = net
    proxy.begin(fault)  # type: ignore[arg-type]
    assert await ask(proxy, wait_s=QUIET_S if answers == ("silent",) else 30.0) in answers
    if arrives:
        async with asyncio.timeout(60):
            while b"\n" not in echo.arrived:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    assert (b"\n" in echo.arrived) == arrives
    proxy.end()
    assert await ask(proxy) == b"abcdefghabcdefgh\n"


async def test_what_was_stalled_arrives_later_and_what_was_half_open_never(net: tuple[Proxy, Echo]) -> None:
    proxy, _ = net
    for fault, answer, wait_s in (("stall", b"aa\n", 30.0), ("half_open", "silent", 3 * QUIET_S)):
        proxy.begin(fault)  # type: ignore[arg-type]
        asking = asyncio.create_task(ask(proxy, b"a\n", wait_s))
        await asyncio.sleep(QUIET_S)
        proxy.end()
        assert await asking == answer
