from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from running_edge import Edge, running
from shop_app import shop

from penstock import App

_STAGES = Path(__file__).parents[1]
sys.path[:0] = [str(_STAGES / "views"), str(_STAGES / "sockets")]


@pytest.fixture
def app() -> App:
    """What `edge` runs; a file of tests may declare another."""
    return shop()


@pytest_asyncio.fixture
async def edge(app: App, tmp_path: Path) -> AsyncIterator[Edge]:
    async with running(app, tmp_path) as made:
        yield made
