from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from running_edge import Edge, running
from shop_app import shop

_STAGES = Path(__file__).parents[1]
sys.path[:0] = [str(_STAGES / "views"), str(_STAGES / "sockets")]


@pytest_asyncio.fixture
async def edge(tmp_path: Path) -> AsyncIterator[Edge]:
    """A running shop."""
    async with running(shop(), tmp_path / "edge.db") as made:
        yield made
