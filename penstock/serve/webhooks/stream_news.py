"""Tells webhooks that their stream has grown: one look at each stream, however many webhooks wait for it."""

from __future__ import annotations

import asyncio

from penstock.errors import PenstockError
from penstock.position import Position
from penstock.serve.question import Question
from penstock.serve.stream_reads import END, StreamReads
from penstock.views.read_rule import EVERYTHING

LOOK_S = 60.0
ABSENT_S = 1.0
"""How long to wait before a stream that is not there yet is looked for again."""
_EVERYTHING = Question(rule=EVERYTHING)
"""Nothing of what is read here is given to anybody: only how far the stream has come."""


class _Watched:
    """How far one stream has come, and who wants to know."""

    def __init__(self) -> None:
        self.end: Position | None = None
        self.grown = asyncio.Event()
        self.task: asyncio.Task[None] | None = None


class StreamNews:
    """Of all streams that webhooks wait for. Belongs to the edge's loop."""

    def __init__(self, reads: StreamReads) -> None:
        self._reads = reads
        self._streams: dict[str, _Watched] = {}

    async def beyond(self, name: str, position: Position) -> None:
        """Return when there may be something behind a position."""
        watched = self._streams.get(name)
        if watched is None:
            watched = self._streams[name] = _Watched()
            watched.task = asyncio.create_task(self._watch(name, watched), name=f"webhooks on {name}")
        end = watched.end
        if end is None or end.epoch != position.epoch or position.covers(end):
            await watched.grown.wait()

    async def close(self) -> None:
        tasks = [watched.task for watched in self._streams.values() if watched.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self, name: str, watched: _Watched) -> None:
        while True:
            try:
                watched.end = (await self._reads.page(name, END, _EVERYTHING, 1)).next
                watched.grown.set()
                watched.grown = asyncio.Event()
                while not (await self._reads.page_within(name, watched.end, _EVERYTHING, 1, LOOK_S)).looked_at:
                    pass
            except PenstockError:
                await asyncio.sleep(ABSENT_S)
