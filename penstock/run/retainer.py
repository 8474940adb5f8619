"""Lets old events of the door's streams go, as their `retain=` says, and never before the flows have absorbed them.

The floor of a stream is the commit below which every build that reads it, the one being served and the one that is
catching up, has absorbed everything. It is read from the flows' own commits. Where a view says `within=`, events that
count stay: by their times, not by when they were written, so that a stream in which nothing happens loses none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any

from penstock.clock import Clock
from penstock.declaration import Application, StreamDef, TableDef
from penstock.log import control_keys
from penstock.log.builds import batch_meta
from penstock.log.group_commit import GroupCommit
from penstock.log.log import Commit, Log, LogReader, Stream
from penstock.log.retention import WHOLE_BYTES, compact_before, replaced_versions, retaining

EVERY_S = 10.0
_LOOK_AGAIN_US = 3_600_000_000
_log = logging.getLogger(__name__)


class Retainer:
    """Retention of the edge's streams; the deciding is done in a thread, the removing in slices by the writer."""

    def __init__(
        self,
        application: Application,
        log: Log,
        group: GroupCommit,
        flows: LogReader,
        clock: Clock,
        whole_bytes: int = WHOLE_BYTES,
    ) -> None:
        """`whole_bytes`: what compaction leaves of a table at least."""
        self._application = application
        self._log = log
        self._group = group
        self._flows = flows
        self._clock = clock
        self._whole_bytes = whole_bytes
        self._looked_us: dict[str, int] = {}
        """When the versions of a table were last looked through."""

    async def run(self) -> None:
        """Until cancelled. A failure is told, and tried again at the next round."""
        while self._application.tables or any(_retained(stream) for stream in self._application.streams):
            try:
                await asyncio.to_thread(self.once)
            except Exception:
                _log.exception("retention failed; it is tried again")
            await asyncio.sleep(EVERY_S)

    def once(self) -> int:
        """One round over all streams and tables; returns how many events and old rows went."""
        trimmed = sum(self._trim(stream) for stream in self._application.streams if _retained(stream))
        return trimmed + sum(self._compact(table) for table in self._application.tables)

    def _compact(self, table: TableDef) -> int:
        """Let rows of a table go that newer ones have replaced; their readers have ten minutes to follow, and those who
        join versions as long as `versions=` says."""
        stream, now_us = self._log.find(table.name), self._clock.now_us()
        before = None if stream is None else compact_before(self._log, stream, now_us, self._whole_bytes)
        if stream is None or before is None or not self._versions_may_go(table, stream, before, now_us):
            return 0
        return self._group.sliced(self._log.compacting(stream, before)).result()

    def _versions_may_go(self, table: TableDef, stream: Stream, before: int, now_us: int) -> bool:
        """Whether nobody needs the versions that would go; looked at once an hour, since that reads all of them."""
        if table.versions_us is None:
            return True
        if now_us - self._looked_us.get(table.name, 0) < _LOOK_AGAIN_US:
            return False
        self._looked_us[table.name] = now_us
        return replaced_versions(self._log, stream, before, table.time, now_us - table.versions_us)

    def _trim(self, declared: StreamDef) -> int:
        stream = self._log.find(declared.name)
        if stream is None:
            return 0
        steps = retaining(self._log, stream, declared.retain, self._floor(stream), self._clock.now_us())
        return self._group.sliced(steps).result()

    def _floor(self, stream: Stream) -> int | None:
        """The commit below which everything was absorbed; None when no flow reads the stream."""
        readers = [node.name for node in self._application.nodes if stream.name in node.inputs]
        floors = [self._absorbed(stream, end) for name in readers for end in self._ends(name, stream)]
        within = [view.within_us for view in self._application.views if stream.name in view.inputs]
        floors += [self._counting(stream, us) for us in within if us is not None]
        return min(floors, default=None)

    def _counting(self, stream: Stream, within_us: int) -> int:
        """The first commit with an event that may be at most so far behind the newest."""
        last = self._log.last_commit(stream)
        newest_us = None if last is None else last.max_us
        return self._first(stream, lambda c: newest_us is None or c.max_us is None or c.max_us >= newest_us - within_us)

    def _ends(self, node: str, stream: Stream) -> Iterator[Any]:
        """How far each build of a flow or view has read the stream: offsets, or None before its first batch."""
        memory = self._flows.memory()
        build = memory.get(control_keys.build(node))
        epochs = {memory.get(control_keys.live(node)), build["epoch"] if build else None}
        for epoch in epochs - {None} or {None}:
            output = self._flows.find(node, epoch) if epoch else None
            commit = self._flows.last_commit(output) if output else None
            ends = batch_meta(commit.meta).end if commit and commit.meta else {}
            at_epoch, offsets = ends.get(stream.name, (None, None))
            yield offsets if at_epoch == stream.epoch else None

    def _absorbed(self, stream: Stream, offsets: list[int] | None) -> int:
        """The number behind the last commit that ends at or before these offsets."""
        if not offsets:
            return self._log.bounds(stream).first_commit
        return self._first(stream, lambda c: any(e > offset for e, offset in zip(c.ends, offsets, strict=True)))

    def _first(self, stream: Stream, is_behind: Callable[[Commit], bool]) -> int:
        """The number of the first commit of which something is true that is true of all after it."""
        bounds = self._log.bounds(stream)
        low, high = bounds.first_commit, bounds.next_commit
        while low < high:
            middle = (low + high) // 2
            (commit,) = self._log.commits(stream, middle, middle + 1)
            low, high = (low, middle) if is_behind(commit) else (middle + 1, high)
        return low


def _retained(stream: StreamDef) -> bool:
    return stream.retain.age_us is not None or stream.retain.bytes is not None
