"""One ordered flow as it runs: reads commits, folds them key by key, and commits rows, states and letters at once.

1. One commit of the log holds what was emitted, the changed states, dead letters, late events and the frontier.
2. The log first, the file of states after it: what the file lacks is read from the changelog when the flow starts.
3. There is no checkpoint: the frontier in the last commit is where the flow goes on.
4. Which timers by the clock fired before a batch is in that batch's commit, so that a replay fires the same.
"""

from __future__ import annotations

import datetime as dt
import logging
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pyarrow as pa

from penstock import schema as columns_
from penstock.change import OP, UPSERT
from penstock.declaration import FlowDef
from penstock.errors import PenstockError, PlanError, PositionGoneError, StaleTermError
from penstock.flows import failure, flow_build, flow_run
from penstock.flows.flow_run import Flow, Surroundings
from penstock.flows.late import late_events
from penstock.flows.ordered.fold import BatchGround, FoldSpec, Letter
from penstock.flows.ordered.held_state import HeldState, changelog_batch, keys_table, together
from penstock.flows.ordered.ordered_plan import state_facts
from penstock.flows.ordered.ordered_reader import OrderedBatch, OrderedInput, OrderedReader, ReadPlace
from penstock.flows.ordered.spread import fold_anywhere
from penstock.flows.plan import Planned
from penstock.flows.regroup.held import discard
from penstock.flows.regroup.input_streams import commit_behind
from penstock.flows.sink import flow_events, least
from penstock.log import control_keys
from penstock.log.builds import BatchMeta, FlowState, OrderedMeta, State, batch_meta, build_of
from penstock.log.folder_log import DEAD
from penstock.log.log import Append, Count, EndsAt, LogReader, Share, Stream
from penstock.ordered_flows import state_view
from penstock.stateful import SEEN, TIMERS
from penstock.views.unpack import ops_of

_log = logging.getLogger(__name__)

_LOOK_S = 0.005
_BACKOFF_MOST_S = 30.0
_MOST_CLOCKS = 1_000
"""Timers by the clock that fire before one batch: each is named in its commit."""


class ThreadedFlow(Flow):
    """A flow with a thread of its own; the other methods are called from the runner's thread."""

    also: str
    """The second thing that it writes, a view."""

    def __init__(self, made: Planned, around: Surroundings) -> None:
        super().__init__(made, around)
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._level = False
        self.last: BatchMeta | None = None

    def _run(self) -> None:
        """What the thread does until `_stopping` is set."""
        raise NotImplementedError

    def start(self) -> None:
        if self.build is None or self._thread is not None:
            return
        self._stopping.clear()
        self._failure = None
        self._level = False
        self.retry_at = None
        self._thread = threading.Thread(target=self._work, name=f"ordered {self.name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        thread, self._thread = self._thread, None
        self._stopping.set()
        if thread is not None:
            thread.join()

    def _work(self) -> None:
        try:
            self._run()
        except BaseException as error:
            self._failure = error

    def look(self, now: float) -> None:
        """See whether the thread has failed, is due for another try, or has become level."""
        if self._failure is not None:
            error, self._failure = self._failure, None
            self.stop()
            self.failed(error)
        elif self.retry_at is not None and now >= self.retry_at:
            self.start()
        elif self._thread is not None and self._level and self.state != "running":
            self.tell("running" if self._live() else "rebuilding")

    def failed(self, error: BaseException) -> None:
        if isinstance(error, StaleTermError) or not isinstance(error, Exception):
            raise error
        self.failures += 1
        self.restarts += 1
        _log.error("the flow '%s' failed (%d): %s", self.name, self.failures, error)
        if isinstance(error, PositionGoneError):
            self._stop_with(error, None)
        else:
            self._again(min(_BACKOFF_MOST_S, 0.5 * 2 ** min(self.failures, 10)))
            self.error = failure.flow_error(self.made.node, error, None, "unknown")
            self.tell("retrying")

    def tell(self, state: State) -> None:
        super().tell(state)
        told = FlowState(state=state, error=self.error.body() if self.error else None, run=self.around.run)
        try:
            self.around.group.submit([], {control_keys.flow(self.also): msgspec.to_builtins(told)}).result()
        except PenstockError as error:
            _log.error("the state of '%s' could not be written: %s", self.also, error)


class OrderedFlow(ThreadedFlow):
    """A class with state, a pattern, or what else sees the events of a key one after the other."""

    def __init__(self, made: Planned, around: Surroundings) -> None:
        super().__init__(made, around)
        assert isinstance(made.node, FlowDef)
        assert made.fold is not None
        self.spec: FoldSpec = made.fold
        self.state_view = state_view(made.node)
        self.also = self.state_view.name
        self.state_made = replace(made, node=self.state_view, **state_facts(made.fold))
        self.states: Stream | None = None
        self._state_epoch = ""
        self._awaits_us: int | None = None

    @property
    def changelogs(self) -> list[Stream]:
        return [] if self.states is None else [self.states]

    def prepare(self, streams: Mapping[str, Stream], *, anew: bool = False) -> Stream:
        if not anew:
            self._migrate({name: streams[name].epoch for name in self.made.inputs})
        output = super().prepare(streams, anew=anew)
        assert self.build is not None
        around, name = self.around, self.state_view.name
        stored = around.log.memory().get(control_keys.build(name))
        build = build_of(stored) if stored is not None else None
        if build is None or build.fingerprint != self.build.fingerprint or build.started_us < self.build.started_us:
            build = flow_build.new_build(self.state_made, self.build.inputs, self.build.starts, around.clock)
            around.group.submit([], flow_build.remembered(name, build, around.log.memory())).result()
        self._state_epoch = build.epoch
        spec = flow_build.stream_spec(self.state_made, build)
        self.states = around.group.run(lambda: around.log.create(spec)).result()
        return output

    def _migrate(self, inputs: Mapping[str, str]) -> None:
        """Take over the states of another version, in one commit; what was emitted stays. Without `migrate` it is an
        error: whoever counts a version up means that the states go on."""
        memory, script = self.around.log.memory(), self.spec.script
        found = [memory.get(control_keys.build(name)) for name in (self.name, self.also)]
        if None in found or build_of(found[0]).version == script.version or build_of(found[0]).inputs != dict(inputs):
            return
        old, old_states = (build_of(each) for each in found)
        if script.migrate is None:
            raise PlanError(
                f"'{self.name}' has version {script.version}, its states are of version {old.version}, and it has no "
                "migrate",
                hint="write def migrate(self, old, version), or keep the version to play the log again",
            )
        stream = self.around.log.find(self.also, old_states.epoch)
        last = self.around.log.last_commit(stream) if stream is not None else None
        rows = _migrated(self.around.log, stream, self.spec, old.version) if stream is not None else []
        again = msgspec.structs.replace(
            old, fingerprint=self.made.fingerprint, version=script.version, migrated_from=old.version
        )
        build = flow_build.new_build(self.state_made, old.inputs, old.starts, self.around.clock)
        build = msgspec.structs.replace(build, migrated_from=old.version)
        spec = flow_build.stream_spec(self.state_made, build)
        fresh = self.around.group.run(lambda: self.around.log.create(spec)).result()
        learned = {
            control_keys.build(self.name): msgspec.to_builtins(again),
            control_keys.build(self.also): msgspec.to_builtins(build),
            control_keys.live(self.also): build.epoch,
        }
        batch = pa.RecordBatch.from_pylist(rows, schema=fresh.schema)
        self.around.group.submit([Append(fresh, batch, last.meta if last else None, sets=learned)]).result()
        _log.info("the states of '%s' are of version %d now: %d keys", self.name, script.version, len(rows))

    # The thread

    def _run(self) -> None:
        held = self._open_states()
        try:
            self._follow(self._reader(), held)
        finally:
            held.close()

    def _open_states(self) -> HeldState:
        path = self.around.folder.ordered / f"{self.name}.db"
        assert self.states is not None
        try:
            return HeldState(path, self.spec, self.states, self.around.log)
        except Exception as error:  # whatever is wrong with a file that can be made anew
            _log.warning("%s is filled again: %s", path, error)
            discard(path)
            return HeldState(path, self.spec, self.states, self.around.log)

    def _reader(self) -> OrderedReader:
        assert self.output is not None
        last = self.around.log.last_commit(self.output)
        self.last = batch_meta(last.meta) if last and last.meta else None
        inputs = ordered_inputs(self.made, self.feeds, {n: self._log_of(n) for n in self.feeds}, self.last)
        reader = OrderedReader(inputs, self.spec.order)
        if self.last is not None and self.last.ordered is not None:
            reader.resume(self.last.ordered.waiting, self.last.ordered.complete_us)
        return reader

    def _follow(self, reader: OrderedReader, held: HeldState) -> None:
        seen: Any = object()
        clock = self.around.clock
        while not self._stopping.is_set():
            now = self.around.log.revision(), self.around.edge.revision()
            due_us = held.next_clock_us()
            ringing = due_us is not None and due_us <= clock.now_us()
            if now == seen and not ringing:
                time.sleep(_LOOK_S)
                continue
            more = self._move(reader, held)
            seen = object() if more else now
            if not more:
                self._level = True
                self._take_over_alone()

    def _move(self, reader: OrderedReader, held: HeldState) -> bool:
        """Take what has come; whether there may be more."""
        now_us = self.around.clock.now_us()
        batch = reader.read(flow_run.MAX_ROWS)
        ringing, fired = held.clocks(now_us, _MOST_CLOCKS)
        if batch is None and not fired:
            return False
        complete_us = batch.complete_us if batch is not None else _completes(self.last)
        due = held.due(complete_us[-1] if complete_us else None)
        if batch is not None and not batch.rows and not batch.handed and not due.num_rows and not fired:
            reader.take(batch)  # nothing but ticks, and nothing waits for time
            return reader.behind()
        events = batch.events if batch is not None else {}
        states = together([held.rows(list(events.values())), due, ringing], self.spec)
        ground = BatchGround(complete_us, now_us, reader.timed, tuple(fired))
        folded = fold_anywhere(self.around.planner.spark, self.spec, ground, events, states)
        gone = keys_table(folded.gone, self.spec.key_fields)
        self._awaits_us = held.first_timer_us(states, folded.states, reader.waits_us)
        end = self._commit(batch, folded.rows, folded.states, gone, folded.letters, ground)
        held.apply(folded.states, gone, end)
        if batch is not None:
            reader.take(batch)
        self.failures = 0
        return reader.behind()

    # The commit

    def _commit(
        self,
        batch: OrderedBatch | None,
        rows: pa.Table,
        states: pa.Table,
        gone: pa.Table,
        letters: list[Letter],
        ground: BatchGround,
    ) -> int:
        """One commit; gives where the changelog of states ends behind it."""
        assert self.output is not None
        assert self.states is not None
        now_us, log = self.around.clock.now_us(), self.around.log
        meta = self._meta(batch, ground, now_us)
        stored = msgspec.to_builtins(meta)
        number = log.bounds(self.output).next_commit
        appends = [
            Append(
                self.output,
                flow_events(rows, self.made, now_us),
                stored,
                requires=(EndsAt(self.output, number),),
                sets=self._switch(meta),
                complete_us=ground.end_us if self.made.hands_on else None,
            ),
            Append(
                self.states,
                changelog_batch(states, gone, self.states.schema),
                stored,
                follows=True,
                complete_us=meta.complete_us,
            ),
        ]
        appends += self._ledgers(batch, letters, now_us)
        for outcome in self.around.group.submit(appends).result():
            if isinstance(outcome, Exception):
                raise outcome
        self.last = meta
        return log.bounds(self.states).ends[0]

    def _meta(self, batch: OrderedBatch | None, ground: BatchGround, now_us: int) -> BatchMeta:
        last = self.last
        end = dict(last.end) if last is not None else self._nothing()
        start = dict(end)
        commits = dict(last.ordered.commits) if last is not None and last.ordered is not None else {}
        waiting = dict(last.ordered.waiting) if last is not None and last.ordered is not None else {}
        if batch is not None:
            end = {name: [start[name][0], list(place.offsets)] for name, place in batch.ends.items()}
            commits = {name: place.commit for name, place in batch.ends.items()}
            waiting = batch.waiting
        return BatchMeta(
            batch=0 if last is None else last.batch + 1,
            start=start,
            end=end,
            max_us=batch.max_us if batch is not None else last.max_us if last is not None else None,
            complete_us=self._complete_us(commits),
            waits_us=self._awaits_us,
            accepted_us=batch.accepted_us if batch is not None else None,
            planned_us=ground.now_us,
            done_us=now_us,
            ordered=OrderedMeta(
                commits=commits,
                complete_us=ground.end_us,
                waiting=waiting,
                fired=[[list(key), name] for key, name in ground.fired],
            ),
        )

    def _complete_us(self, commits: Mapping[str, int]) -> int | None:
        """How far all of its inputs are complete at these commits."""
        feeds = [(self._log_of(name), feed, commits.get(name, 0)) for name, feed in self.feeds.items()]
        return least([feed.complete_us(log.last_commit(feed.stream, commit)) for log, feed, commit in feeds])

    def _nothing(self) -> dict[str, Any]:
        return {name: [feed.stream.epoch, list(feed.first[1])] for name, feed in self.feeds.items()}

    def _switch(self, meta: BatchMeta) -> dict[str, Any]:
        """What makes this build live, once it is level with the one that is served."""
        assert self.build is not None
        logs = {name: self._log_of(name) for name in self.feeds}
        takeover = flow_build.Takeover(self.made, self.build, self.around.log, logs)
        takeover.after = self._taken_over
        learned = dict(takeover(meta.end))
        if learned or self.around.log.memory().get(control_keys.live(self.name)) == self.build.epoch:
            learned[control_keys.live(self.state_view.name)] = self._state_epoch
        memory = self.around.log.memory()
        return {key: value for key, value in learned.items() if memory.get(key) != value}

    def _take_over_alone(self) -> None:
        """A build can become level without a batch of its own, when what it reads does."""
        if self.last is None or self._live():
            return
        learned = self._switch(self.last)
        if learned:
            self.around.group.submit([], learned).result()

    def _ledgers(self, batch: OrderedBatch | None, letters: list[Letter], now_us: int) -> list[Append]:
        appends = []
        if letters:
            dead = Counter(letter.input for letter in letters if letter.input is not None)
            counts = tuple(Count(control_keys.count(name, self.name), "dead", by) for name, by in dead.items())
            _log.error("the flow '%s' leaves out %d events on which it fails; see 'dead'", self.name, len(letters))
            appends.append(Append(self.around.dead, self._letters(letters, now_us), follows=True, counts=counts))
        for name, feed in self.feeds.items() if batch is not None and self.spec.order == "time" else ():
            assert batch is not None
            started = self.last.ordered.commits[name] if self.last and self.last.ordered else feed.first[0]
            late_after_us = self.made.inputs[name].late_after_us
            found = late_events(
                self._log_of(name),
                replace(feed, late_after_us=late_after_us),
                self.name,
                started,
                batch.ends[name].commit,
                now_us,
            )
            if found is not None:
                count = Count(control_keys.count(name, self.name), "late", Share("accepted"))
                appends.append(Append(self.around.late, found, follows=True, counts=(count,)))
        return appends

    def _letters(self, letters: list[Letter], now_us: int) -> pa.RecordBatch:
        rows = []
        for letter in letters:
            origin = self.feeds[letter.input].origin if letter.input is not None else "timer"
            place = f"{letter.partition}/{letter.offset}" if letter.input is not None else letter.raw.decode()
            rows.append(
                {
                    "stream": letter.input or next(iter(self.feeds)),
                    "reason": letter.reason,
                    "detail": letter.said,
                    "raw": letter.raw,
                    "sender": None,
                    "flow": self.name,
                    columns_.TIME: now_us,
                    columns_.RECEIVED: now_us,
                    columns_.ID: f"{self.name}/{origin}/{place}",
                    columns_.KEY: letter.key,
                }
            )
        return pa.RecordBatch.from_pylist(rows, schema=DEAD)


def ordered_inputs(
    made: Planned, feeds: Mapping[str, Any], logs: Mapping[str, Any], last: BatchMeta | None
) -> dict[str, OrderedInput]:
    """The inputs of an ordered flow, behind its last commit."""
    inputs = {}
    for name, feed in feeds.items():
        plain = replace(feed, late_after_us=None, needed=None)
        source = OrderedInput(plain, made.inputs[name].late_after_us, logs[name], ReadPlace(*feed.first))
        if last is not None:
            offsets = tuple(last.end[name][1])
            known = last.ordered.commits.get(name) if last.ordered is not None else None
            commit = commit_behind(logs[name], feed.stream, offsets) if known is None else known
            source.place = ReadPlace(commit, offsets)
            before = logs[name].last_commit(feed.stream, commit)
            source.newest_us = before.max_us if before is not None else None
            source.complete_us = source.complete_before(before) if before is not None else None
        inputs[name] = source
    return inputs


def _migrated(log: LogReader, stream: Stream, spec: FoldSpec, version: int) -> list[dict[str, Any]]:
    """The rows of a state as the script's `migrate` makes them."""
    names = [f.name for f in stream.schema if f.name != OP]
    ops: dict[Any, Any] = {}
    for block in log.read(stream, 0, log.bounds(stream).starts[0]):
        ops |= ops_of(block.batch, names, stream.compact_by)
    rows = []
    for key, values in ops.items():
        if values is None:
            continue
        row = dict(zip(names, values, strict=True))
        old = {name: value for name, value in row.items() if name not in (*spec.key, SEEN, TIMERS)}
        try:
            state = spec.script.migrated(old, version)
        except Exception as error:
            raise PlanError(f"migrate of '{spec.flow}' failed for {key}: {type(error).__name__}: {error}") from error
        kept = {name: row[name] for name in (*spec.key, SEEN, TIMERS)}
        rows.append({**kept, **msgspec.to_builtins(state, builtin_types=(dt.datetime, dt.date, bytes)), OP: UPSERT})
    return rows


def recorded(meta: BatchMeta, inputs: Mapping[str, OrderedInput]) -> BatchMeta:
    """A commit's meta with the numbers of the commits that it had read, where only its positions tell."""
    if meta.ordered is not None:
        return meta
    places = {n: commit_behind(source.log, source.feed.stream, meta.end[n][1]) for n, source in inputs.items()}
    return msgspec.structs.replace(meta, ordered=OrderedMeta(commits=places))


def _completes(last: BatchMeta | None) -> tuple[int | None, ...]:
    return () if last is None or last.ordered is None else (last.ordered.complete_us,)
