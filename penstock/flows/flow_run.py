"""One flow as it runs: its build, its Spark query, and what happens to it alone when it fails, hangs or is rebuilt.

A failure is retried with back-off. After three failures of one batch the events that alone make it fail are looked
for; if there are none the flow stays stopped and says so. A checkpoint that Spark cannot load leads to a rebuild.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql.streaming import StreamingQuery

from penstock.clock import Clock
from penstock.config import Folder
from penstock.declaration import ViewDef
from penstock.errors import (
    CheckpointError,
    LogUnavailableError,
    OverloadedError,
    PenstockError,
    PositionGoneError,
    StaleTermError,
)
from penstock.flows import checkpoint, failure, flow_build, poison
from penstock.flows.engine.batch_sink import start_query
from penstock.flows.engine.small_batches import FEW_EVENTS
from penstock.flows.final_rows import OpenRows
from penstock.flows.keep import Expiry
from penstock.flows.plan import Planned, Planner
from penstock.flows.query import Start
from penstock.flows.sink import Sink, with_op
from penstock.flows.source import Feed
from penstock.log import control_keys
from penstock.log.builds import Build, FlowState, State, batch_meta
from penstock.log.group_commit import GroupCommit
from penstock.log.log import Append, Count, Log, LogReader, Stream

_log = logging.getLogger(__name__)

MAX_ROWS = 500_000
"""Events in one batch: large enough for full speed when catching up, small enough for a commit every second."""
TRIES = 3
_BACKOFF_MOST_S = 30.0


@dataclass(frozen=True)
class Surroundings:
    """What all flows of a process share."""

    planner: Planner
    folder: Folder
    log: Log
    """`flows.db`, of which this process is the writer."""
    group: GroupCommit
    edge: LogReader
    late: Stream
    dead: Stream
    clock: Clock
    run: str
    random: random.Random
    cuts: Mapping[str, frozenset[str]]
    """The inputs of each flow and view that others read up to the same places."""


class Flow:
    """A flow or view of the app, from start to stop. Called from the runner's thread only."""

    def __init__(self, made: Planned, around: Surroundings) -> None:
        self.made = made
        self.around = around
        self.name = made.node.name
        self.query: StreamingQuery | None = None
        self.build: Build | None = None
        self.output: Stream | None = None
        self.sink: Sink | None = None
        self.feeds: dict[str, Feed] = {}
        self.state: State = "starting"
        self.error: PenstockError | None = None
        self.failures = 0
        self.failed_batch: int | None = None
        self.restarts = 0
        self.retry_at: float | None = None
        self.switched_at = float("-inf")
        self._switching: Future[Any] | None = None
        self._telling: Future[Any] | None = None
        self._untold: dict[str, Any] = {}
        self._said: dict[str, Any] = {}
        self._told: dict[str, Any] = {}
        """What is to be told of its state, what is on its way to the log, and what the log has."""
        """When this build took over from another one."""
        self.lost = False
        """The checkpoint is gone: the runner rebuilds this flow and what is downstream of it."""

    @property
    def needs(self) -> Collection[str]:
        """The streams that must be there before it begins."""
        return self.made.inputs

    @property
    def changelogs(self) -> list[Stream]:
        """What it writes that is compacted."""
        return [self.output] if self.output is not None and isinstance(self.made.node, ViewDef) else []

    # Beginning

    def prepare(self, streams: Mapping[str, Stream], *, anew: bool = False) -> Stream:
        """Choose the build and make its stream; called in the order of the DAG, so that inputs are there."""
        around = self.around
        inputs = {name: streams[name].epoch for name in self.made.inputs}
        build = flow_build.continued(around.log.memory(), self.made, inputs, around.folder.checkpoints)
        if build is None or anew:
            build = flow_build.new_build(self.made, inputs, self._starts(streams), around.clock)
            around.group.submit([], flow_build.remembered(self.name, build, around.log.memory())).result()
        self.build = build
        self.output = around.group.run(lambda: around.log.create(flow_build.stream_spec(self.made, build))).result()
        skips = flow_build.skips_of(around.log.memory(), self.name, build.epoch)
        feeds = around.planner.feeds(self.made, streams, skips)
        begins = {name: (commit, tuple(offsets)) for name, (commit, offsets) in build.starts.items()}
        self.feeds = {
            name: replace(feed, begin=begins.get(name), cuts=self._cuts(name), reader=self.name)
            for name, feed in feeds.items()
        }
        return self.output

    def _cuts(self, stream: str) -> Path | None:
        return self.around.folder.cuts / stream if stream in self.around.cuts.get(self.name, ()) else None

    def _starts(self, streams: Mapping[str, Stream]) -> dict[str, Any]:
        """Where a new build begins. One that would replace a served build needs all of the log."""
        starts: dict[str, Any] = {}
        for name in self.made.inputs:
            bounds = self._log_of(name).bounds(streams[name])
            if bounds.first_commit == 0:
                continue
            if control_keys.live(self.name) in self.around.log.memory():
                raise CheckpointError(
                    f"'{self.name}' must be rebuilt, but retention has removed the oldest events of '{name}'",
                    hint="undo the change of the function, or give the view a new name: it begins with what is left",
                )
            _log.warning("'%s' begins with what retention has left of '%s'", self.name, name)
            starts[name] = [bounds.first_commit, list(bounds.starts)]
        return starts

    def refuse(self, error: PenstockError) -> None:
        """Stay stopped before anything ran; the other flows go on."""
        self.build, self.output, self.sink = None, None, None
        self._stop_with(error, None)

    def start(self) -> None:
        """Start the query from its checkpoint; what goes wrong is noted, never raised."""
        if self.build is None:
            return
        try:
            self._start()
        except Exception as error:
            self.stop()
            self.failed(error)

    def _start(self) -> None:
        assert self.build is not None
        assert self.output is not None
        around = self.around
        path = self._checkpoint()
        path.mkdir(parents=True, exist_ok=True)
        self.sink = self._make_sink()
        checkpoint.mend(path, self.sink.last.batch if self.sink.last else None)
        spark = around.planner.spark
        spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", str(self.made.mode == "append").lower())
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", self.name)
        frame = around.planner.stream_frame(self.made, self.feeds, MAX_ROWS)
        if isinstance(self.made.node, ViewDef):
            frame = with_op(frame, self.made.node)
        few = self._waiting(self.sink) <= FEW_EVENTS
        self.query = start_query(Start(frame, self.name, self.made.mode, path, self.sink, few))
        self.retry_at = None

    def _waiting(self, sink: Sink) -> int:
        """How many events the query will find."""
        taken = {name: sum(feed.first[1]) for name, feed in self.feeds.items()}
        if sink.last is not None:
            taken |= {name: sum(end[1]) for name, end in sink.last.end.items()}
        ends = {name: sum(self._log_of(name).bounds(feed.stream).ends) for name, feed in self.feeds.items()}
        return sum(ends[name] - taken[name] for name in self.feeds)

    def _make_sink(self) -> Sink:
        assert self.build is not None
        assert self.output is not None
        around = self.around
        last = around.log.last_commit(self.output)
        logs = {name: self._log_of(name) for name in self.made.inputs}
        takeover = flow_build.Takeover(self.made, self.build, around.log, logs)
        takeover.after = self._taken_over
        return Sink(
            made=self.made,
            output=self.output,
            feeds=self.feeds,
            logs=logs,
            late=around.late,
            group=around.group,
            checkpoint=self._checkpoint(),
            clock=around.clock,
            last=batch_meta(last.meta) if last and last.meta else None,
            expiry=self._expiry(),
            switch=takeover,
            open_rows=self._open_rows(),
            next_commit=0 if last is None else last.number + 1,
        )

    def _expiry(self) -> Expiry | None:
        node = self.made.node
        if not isinstance(node, ViewDef) or node.keep_us is None or self.output is None:
            return None
        expiry = Expiry(node.key, node.keep_us)
        expiry.load(block.batch for block in self.around.log.read(self.output, 0, 0))
        return expiry

    def _open_rows(self) -> OpenRows | None:
        node = self.made.node
        if not isinstance(node, ViewDef) or not node.final or self.output is None:
            return None
        rows = OpenRows(node.key)
        rows.load(block.batch for block in self.around.log.read(self.output, 0, 0))
        return rows

    def _checkpoint(self) -> Path:
        assert self.build is not None
        return flow_build.checkpoint_of(self.around.folder, self.name, self.build.epoch)

    def _log_of(self, name: str) -> LogReader:
        return self.around.edge if self.around.planner.application.stream(name) else self.around.log

    def _live(self) -> bool:
        return self.build is not None and self.around.log.memory().get(control_keys.live(self.name)) == self.build.epoch

    def _taken_over(self, old: str) -> None:
        self.switched_at = self.around.clock.monotonic()
        _log.info("the rebuilt '%s' is level and takes over from the build %s", self.name, old)

    # Watching

    def look(self, now: float) -> None:
        """See whether the query has failed, is due for another try, or has become level."""
        self._say()
        if self.query is not None and not self.query.isActive:
            error = self.sink.error if self.sink and self.sink.error else self.query.exception()
            self.query = None
            self.failed(error or RuntimeError("the query ended by itself"))
        elif self.retry_at is not None and now >= self.retry_at:
            self.start()
        elif self.query is not None and self.state != "running":
            self._take_over()
            if (state := self._seen()) != self.state:
                self.tell(state)

    def _take_over(self) -> None:
        """A build can become level without a batch of its own, when what it reads does."""
        if self.sink is not None and self.sink.last is not None and not self._live():
            learned = self.sink.switch(self.sink.last.end)
            if learned and (self._switching is None or self._switching.done()):  # a later look tries again
                self._switching = self.around.group.submit([], learned)

    def _seen(self) -> State:
        """How the query is now: it has started when Spark has opened the log, and recovered when a batch passed."""
        assert self.query is not None
        assert self.sink is not None
        recovering = self.state == "retrying" and self.sink.progress == 0
        if recovering or "Initializing" in self.query.status["message"]:
            return self.state
        return "running" if self._live() else "rebuilding"

    def failed(self, error: BaseException) -> None:
        """Decide what becomes of this flow; the others go on."""
        if isinstance(error, StaleTermError):
            raise error
        batch = self._batch()
        self.failures = self.failures + 1 if batch == self.failed_batch else 1
        self.failed_batch = batch
        self.restarts += 1
        _log.error("the flow '%s' failed (%d): %s", self.name, self.failures, error)
        if failure.no_worker(error):
            self._again(0.5)
            self.error = failure.flow_error(self.made.node, error, batch, "unknown")
            self.tell("starting")
        elif failure.cluster_lost(error):
            self._retry(error, batch)
        elif isinstance(error, PositionGoneError) or "PositionGoneError" in str(error):
            self._stop_with(error, batch)
        elif self.build and failure.checkpoint_lost(error, self._checkpoint()):
            self._rebuild_after_loss(error, batch)
        elif self.failures >= TRIES and not failure.log_refused(error):
            self._bisect(error, batch)
        else:
            self._retry(error, batch)

    def _batch(self) -> int | None:
        """The batch that has not been committed."""
        if self.sink is None:
            return None
        return 0 if self.sink.last is None else self.sink.last.batch + 1

    def _retry(self, error: BaseException, batch: int | None) -> None:
        self._again(min(_BACKOFF_MOST_S, 0.5 * 2 ** min(self.failures, 10)))
        self.error = failure.flow_error(self.made.node, error, batch, self._offsets(batch))
        self.tell("retrying")

    def _again(self, wait_s: float) -> None:
        self.retry_at = self.around.clock.monotonic() + wait_s * self.around.random.uniform(0.5, 1.0)

    def _stop_with(self, error: BaseException, batch: int | None) -> None:
        self.retry_at = None
        self.error = failure.flow_error(self.made.node, error, batch, self._offsets(batch), stopped=True)
        self.tell("stopped")

    def _rebuild_after_loss(self, error: BaseException, batch: int | None) -> None:
        if self.failures > TRIES or self.build is None:
            return self._stop_with(error, batch)
        _log.error("the checkpoint of '%s' is lost and the flow is rebuilt from the log", self.name)
        flow_build.set_aside(self.around.folder, self.name, self.build.epoch)
        self.lost = True
        self.retry_at = None
        self.tell("rebuilding")
        return None

    def _offsets(self, batch: int | None) -> str:
        ranges = self._ranges(batch)
        return ", ".join(f"{name} {list(start)} to {list(end)}" for name, (start, end) in ranges.items()) or "unknown"

    def _ranges(self, batch: int | None) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
        try:
            if batch is None or self.sink is None:
                return {}
            span = self.sink.span(batch)
        except PenstockError:
            return {}
        return {name: (tuple(span.start[name][1]), tuple(span.end[name][1])) for name in self.feeds}

    def _bisect(self, error: BaseException, batch: int | None) -> None:
        """Leave out the events that alone make the batch fail; if that is no explanation, stay stopped."""
        ranges = self._ranges(batch)
        found = poison.find(self.around.planner, self.made, self.feeds, ranges) if ranges else {}
        if not found:
            return self._stop_with(error, batch)
        assert self.build is not None
        key = control_keys.skip(self.name, self.build.epoch)
        known = list(self.around.log.memory().get(key, []))
        logs = {name: self._log_of(name) for name in self.made.inputs}
        now = self.around.clock.now_us()
        letters = poison.letters(logs, self.feeds, self.name, found, now)
        skipped = {key: [*known, *(list(event) for event in found)]}
        dead = Counter(stream for stream, _, _ in found)
        counts = tuple(Count(control_keys.count(stream, self.name), "dead", by) for stream, by in dead.items())
        self.around.group.submit([Append(self.around.dead, letters, sets=skipped, counts=counts)]).result()
        _log.error("the flow '%s' leaves out %d events that alone make it fail; see 'dead'", self.name, len(found))
        skips = flow_build.skips_of(self.around.log.memory(), self.name, self.build.epoch)
        self.feeds = {n: replace(f, skips=skips.get(n, frozenset())) for n, f in self.feeds.items()}
        self.failures = 0
        self.retry_at = self.around.clock.monotonic()
        return None

    # Telling and ending

    def tell(self, state: State) -> None:
        """Let the edge, and through it people, know."""
        if state == "running":
            self.error = None
        self.state = state
        told = FlowState(
            state=state,
            error=self.error.body() if self.error else None,
            restarts=self.restarts,
            run=self.around.run,
        )
        self._untold = {control_keys.flow(self.name): msgspec.to_builtins(told)}
        self._say()

    def _say(self) -> None:
        """Write down what is to be told, without waiting: the loop that looks after all flows calls this. What could
        not be written is written at a later look, the newest state alone."""
        if self._telling is not None:
            if not self._telling.done():
                return
            if (error := self._telling.exception()) is None:
                self._told = self._said
            elif isinstance(error, StaleTermError):
                raise error
            else:
                _log.error("the state of '%s' could not be written: %s", self.name, error)
            self._telling = None
        if self._untold != self._told:
            self._said = self._untold
            with suppress(LogUnavailableError, OverloadedError):  # it is being closed, or much waits
                self._telling = self.around.group.submit([], self._untold)

    def stop(self) -> None:
        """End the query; a batch that is under way will replay."""
        query, self.query = self.query, None
        if query is not None:
            query.stop()
