"""Lets time go on where no events come: a commit that only says how far its stream is complete, a *tick*.

1. A tick comes after `idle_after` without a commit, and again at that interval, until the stream is complete to what
   flows and views wait for: the end of the last window, session or join that is open at their frontiers. So a silent
   night leaves few of them.
2. It lets the newest event's time go on by the clock from its commit on: `complete` is the newest `_time` plus the
   silence minus `late_after`. The clock is read here, once, and what it said is in the log.
3. It is taken only if nobody has written meanwhile. What comes after it and is older is late, by name.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator

import pyarrow as pa

from penstock.clock import Clock
from penstock.declaration import Application, StreamDef
from penstock.errors import PenstockError
from penstock.log import control_keys
from penstock.log.builds import batch_meta
from penstock.log.group_commit import GroupCommit
from penstock.log.log import Append, Commit, EndsAt, LogReader
from penstock.observe.signals import Signal, StreamTicked

_log = logging.getLogger(__name__)

SINCE = "silent_since_us"
"""In the meta of a tick: when the last commit before the silence was written."""
_LOOKS = 4
"""So often within `idle_after` it is seen whether a tick is due."""
_LEAST_S = 0.02
_MARK_US = 1_000
"""What ends at `complete` has ended for Spark a millisecond later."""


class Ticks:
    """The ticks of one edge. Decides in a thread; the log's writer writes."""

    def __init__(
        self,
        application: Application,
        log: LogReader,
        group: GroupCommit,
        flows: LogReader,
        clock: Clock,
        signals: Callable[[Signal], None],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`log` has the streams, `flows` what was made of them."""
        self._application, self._log, self._group, self._flows = application, log, group, flows
        self._clock, self._signals, self._sleep = clock, signals, sleep
        self._streams = [stream for stream in application.streams if stream.idle_after_us is not None]

    async def run(self) -> None:
        """Until cancelled. A failure is told, and tried again at the next round."""
        waits_us = [stream.idle_after_us for stream in self._streams if stream.idle_after_us]
        while waits_us:
            try:
                await asyncio.to_thread(self.once)
            except Exception:
                _log.exception("no ticks were written; it is tried again")
            await self._sleep(max(_LEAST_S, min(waits_us) / 1e6 / _LOOKS))

    def once(self) -> int:
        """One round over all streams; gives how many ticks were written."""
        return sum(self._tick(stream) for stream in self._streams)

    def _tick(self, declared: StreamDef) -> bool:
        stream = self._log.find(declared.name)
        last = self._log.last_commit(stream) if stream else None
        if stream is None or last is None:
            return False
        complete_us = self._due(declared, last)
        if complete_us is None:
            return False
        nothing, quiet = pa.RecordBatch.from_pylist([], schema=stream.schema), (EndsAt(stream, last.number + 1),)
        tick = Append(stream, nothing, {SINCE: silent_since(last)}, requires=quiet, complete_us=complete_us)
        (outcome,) = self._group.submit([tick]).result()
        if isinstance(outcome, PenstockError):  # an event has come
            return False
        self._signals(StreamTicked(declared.name))
        return True

    def _due(self, declared: StreamDef, last: Commit) -> int | None:
        """How far the stream is complete by now, if somebody waits for that."""
        now_us, late_after_us = self._clock.now_us(), declared.late_after_us
        if last.max_us is None or late_after_us is None or now_us - last.written_us < (declared.idle_after_us or 0):
            return None
        known_us = last.max_us - late_after_us if last.complete_us is None else last.complete_us
        complete_us = last.max_us + (now_us - silent_since(last)) - late_after_us
        is_awaited = any(known_us < awaited_us + _MARK_US for awaited_us in self._awaited(declared.name))
        return complete_us if is_awaited and complete_us > known_us else None

    def _awaited(self, stream: str) -> Iterator[int]:
        """The times up to which something downstream may be open."""
        memory = self._flows.memory()
        below = {node.name for node in self._application.nodes if stream in self._application.roots(node.name)}
        for key, epoch in memory.items():
            name = key.removeprefix(control_keys.live.prefix)
            if name == key or name.partition(".")[0] not in below:  # a hidden part of a view is NAME.1
                continue
            output = self._flows.find(name, epoch)
            commit = self._flows.last_commit(output) if output else None
            meta = batch_meta(commit.meta) if commit and commit.meta else None
            if meta is not None and meta.waits_us is not None:
                yield meta.waits_us


def silent_since(last: Commit) -> int:
    """When the last commit with events of a stream was written, by its last one."""
    return int((last.meta or {}).get(SINCE, last.written_us))
