"""The protocol page is true: its transcripts are played against a real edge, and a client made from it alone works."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import unused_port
from edge import DEADLINE_S, Edge
from fake_flows import FakeFlows, topic
from test_openapi import running
from transcript import Differs, Player

from penstock.config import Limits
from tests.memory_folder import memory_folder

PAGE = Path(__file__).parents[3] / "docs/reference/protocol.md"
_BLOCK = re.compile(r"^```transcript\n(.*?)^```", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def transcripts() -> dict[str, str]:
    """By the heading above it, and its number there."""
    text = PAGE.read_text()
    found: dict[str, str] = {}
    for match in _BLOCK.finditer(text):
        heading = _HEADING.findall(text[: match.start()])[-1]
        same = sum(name.startswith(heading) for name in found)
        found[f"{heading} {same + 1}"] = match[1]
    return found


@pytest.mark.parametrize("name", transcripts())
async def test_a_transcript_is_what_happens(tmp_path: Path, name: str) -> None:
    async with running(memory_folder(tmp_path)) as edge:
        await Player(edge).play(transcripts()[name])


async def test_a_transcript_that_is_wrong_is_found(tmp_path: Path) -> None:
    wrong = """
* batch + {"topic": "jazz", "rsvps": 1, "group": "nl"}
WS /views/topics/socket
> {"type": "subscribe"}
< {"id": "topics", "type": "snapshot", "view": "topics", "position": "<p>", "rows": []}
"""
    async with running(memory_folder(tmp_path)) as edge:
        with pytest.raises(Differs, match=r"step 4.*\n.*rows"):
            await Player(edge).play(wrong)


# A client in another style

WHERE = "rsvps % 3 <> 0"


class Other:
    """`plain_client.py`, in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def shows(self, rows: list[dict[str, Any]]) -> None:
        """Wait until what it prints is this."""
        assert self._process.stdout is not None
        wanted, shown = _ordered(rows), None
        async with asyncio.timeout(DEADLINE_S):
            while shown != wanted:
                line = await self._process.stdout.readline()
                assert line, f"it has ended; it showed {shown}, and not {wanted}"
                shown = _ordered(json.loads(line))


def _ordered(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(json.dumps(row, sort_keys=True) for row in rows)


@asynccontextmanager
async def other(port: int) -> AsyncIterator[Other]:
    program = str(Path(__file__).with_name("plain_client.py"))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", program, "127.0.0.1", str(port), "topics", "topic", WHERE),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"PAUSE_S": "0.05"},
    )
    try:
        yield Other(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


@asynccontextmanager
async def edge_on(port: int, path: Path) -> AsyncIterator[Edge]:
    made = Edge(memory_folder(path), Limits(snapshot_part_rows=7))
    made.server.port = port
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


async def test_a_client_written_from_the_page_holds_the_servers_rows_through_restarts_and_rebuilds(
    tmp_path: Path,
) -> None:
    chance, port = random.Random(5), unused_port()
    flows = FakeFlows(memory_folder(tmp_path).flows_log)
    stream, offset, held = flows.build(), 0, set[str]()
    async with other(port) as client:
        for number in range(6):
            async with edge_on(port, tmp_path) as edge:
                if number == 3:
                    stream, offset, held = flows.build(), 0, set()
                for _ in range(chance.randint(5, 30)):
                    gone = {name for name in held if chance.random() < 0.1}
                    changed = {f"t{chance.randrange(40)}" for _ in range(5)} - gone
                    flows.commit(
                        stream, [topic(n, chance.randrange(100)) for n in changed], [topic(n, 0) for n in gone]
                    )
                    held = (held | changed) - gone
                    offset += 1
                    if chance.random() < 0.3:
                        await asyncio.sleep(0.005)
                await edge.at_offset(offset)
                await client.shows(await edge.rows(where=WHERE, limit="null"))
    flows.close()
