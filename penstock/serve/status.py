"""Says how everything is: what `GET /status`, `/views`, `/streams` and `/graph` give, and `penstock status` prints.

Totals come from the log and survive restarts. They are gathered in a thread, once a second for the rates and again for
whoever asks, so that what is said holds everything that was committed before the question. All who ask at one time
share one look at the log, and a slow disk holds up nobody for more than `PATIENCE_S`: then the last look is told.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import pyarrow as pa

from penstock.clock import Clock, rfc3339
from penstock.declaration import LEDGERS, Application, ChannelDef, FlowDef, Node, StreamDef, TableDef
from penstock.errors import NotReadyError, PenstockError, UnknownStreamError
from penstock.log import control_keys
from penstock.log.builds import BatchMeta, batch_meta
from penstock.log.folder_log import FolderLog
from penstock.log.log import Bounds, KnownIds
from penstock.position import frontier_body
from penstock.serve.describe.stream_versions import newest_version
from penstock.views.store import View
from penstock.views.views import Views

SAMPLE_S = 1.0
PATIENCE_S = 0.5
_THESE_YEARS_US = 10 * 365 * 86_400_000_000
_UNITS = (("day", 86_400_000_000), ("hour", 3_600_000_000), ("minute", 60_000_000), ("second", 1_000_000))


@dataclass(frozen=True)
class EventTimes:
    """How far events have come, and how far they are complete."""

    newest_us: int | None = None
    complete_us: int | None = None
    held_by: str | None = None
    """What keeps `complete` from going further: an input, a producer, or that there is no `late_after`."""

    @property
    def skew_s(self) -> float | None:
        """How far behind the newest event lies what is complete."""
        if self.newest_us is None or self.complete_us is None:
            return None
        return round((self.newest_us - self.complete_us) / 1e6, 3)

    def body(self) -> dict[str, Any]:
        times = {"newest": self.newest_us, "complete": self.complete_us}
        shown = {name: None if us is None else rfc3339(us) for name, us in times.items()}
        return {**shown, "skew_s": self.skew_s, "held_by": self.held_by}


@dataclass(frozen=True)
class _Sample:
    """One look at the log. Lengths are read before the flows' last commits: nothing read seems to be still to come."""

    streams: list[dict[str, Any]] = field(default_factory=list)
    ends: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    metas: Mapping[str, BatchMeta] = field(default_factory=dict)
    times: Mapping[str, EventTimes] = field(default_factory=dict)
    """Of each stream, as it is now."""
    processes: Any = field(default_factory=dict)
    topics: Mapping[str, Any] = field(default_factory=dict)


RATE_S = 10.0
"""Rates are those of the last seconds."""


class Rates:
    """Totals by name at moments of the last ten seconds.

    >>> rates = Rates()
    >>> rates.note(0.0, {"rsvps": 100})
    >>> rates.note(2.0, {"rsvps": 150})
    >>> rates.per_second("rsvps")
    25.0
    """

    def __init__(self, window_s: float = RATE_S) -> None:
        self._window_s = window_s
        self._moments: deque[tuple[float, Mapping[str, int]]] = deque()

    def note(self, now_s: float, totals: Mapping[str, int]) -> None:
        self._moments.append((now_s, totals))
        while len(self._moments) > 2 and now_s - self._moments[1][0] >= self._window_s:
            self._moments.popleft()

    def per_second(self, name: str) -> float:
        """0 until two moments are known."""
        known = [(moment, totals[name]) for moment, totals in self._moments if name in totals]
        if len(known) < 2 or known[-1][0] <= known[0][0]:
            return 0.0
        return round(max(0, known[-1][1] - known[0][1]) / (known[-1][0] - known[0][0]), 3)


class Status:
    """The state of one app as its edge sees it."""

    def __init__(
        self,
        application: Application,
        views: Views,
        log: FolderLog,
        clock: Clock,
    ) -> None:
        self._application, self._views, self._log = application, views, log
        self._clock = clock
        self._started_us, self._started_s = clock.now_us(), clock.monotonic()
        self._accepted, self._absorbed = Rates(), Rates()
        self._sample = _Sample()
        self._versions: dict[str, int] = {}
        self._task: asyncio.Task[None] | None = None
        self._gathering: asyncio.Future[_Sample] | None = None
        self._next: asyncio.Task[None] | None = None
        self.processes: Callable[[], Any] = dict
        """How the processes of the data folder are."""
        self.known_ids: Callable[[str], KnownIds | None] | None = None
        """The ids that the log's writer knows of a stream; None where the writer is in another process."""
        self.holder: Callable[[str], str | None] = lambda stream: None
        """The producer whose promise says how far a stream is complete."""
        self.more: dict[str, Callable[[], Any]] = {}
        """What other tiers of this process have to say, by the name under which it is shown."""

    async def start(self) -> None:
        await self.refresh()
        self._task = asyncio.create_task(self._keep_sampling(), name="status")

    async def stop(self) -> None:
        tasks = [task for task in (self._task, self._next) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._gathering is not None:
            await asyncio.wait([self._gathering])  # in its thread it reads the log, which is about to be closed

    async def refresh(self) -> None:
        """Whatever was committed before this call is in what is said after it, unless the disk needs `PATIENCE_S`."""
        if self._next is None:
            self._next = asyncio.create_task(self._gather_next(), name="status of now")
        await asyncio.wait([self._next], timeout=PATIENCE_S)

    # What is said

    def body(self) -> dict[str, Any]:
        return {
            "app": self._application.name,
            "version": version("penstock"),
            "started": rfc3339(self._started_us),
            "uptime_s": round(self._clock.monotonic() - self._started_s, 1),
            "processes": self._sample.processes,
            "streams": self.streams(),
            "views": self.views(),
            "flows": self.flows(),
            "freshness": self._freshness(),
            "published": self._topics(),
            **{name: tell() for name, tell in self.more.items()},
        }

    def streams(self) -> list[dict[str, Any]]:
        return [s | {"rates": {"accepted": self._accepted.per_second(s["stream"])}} for s in self._sample.streams]

    def views(self) -> list[dict[str, Any]]:
        return [self.view(view) for view in self._views]

    def view(self, view: View) -> dict[str, Any]:
        definition, content = view.definition, view.content
        return {
            "view": view.name,
            "kind": "table" if isinstance(definition, TableDef) else "view",
            "doc": definition.doc,
            "key": content.key if content else definition.key,
            "columns": self._columns(view),
            "order_by": definition.order_by or None,
            "limit": definition.limit,
            "keep": None if definition.keep_us is None else duration_text(definition.keep_us),
            "class": content.proof if content else None,
            "how": content.how if content else None,
            "rows": len(content.rows) if content else 0,
            "position": content.position.token() if content else None,
            "frontier": frontier_body(view.frontier),
            "filter_errors": view.filter_errors[0],
            "flow": self._health(view),
        }

    def _columns(self, view: View) -> list[dict[str, Any]]:
        """Columns with the name of a private field of a stream that the view is made from are marked, for the page."""
        app = self._application
        streams = [app.stream(name) or app.table(name) for name in app.roots(view.name)]
        private = {re.split(r"\W+", path.rstrip("[]{}"))[-1] for s in streams if s for path in s.events.private}
        columns = view.content.columns if view.content else ()
        return [{"name": c.name, "type": c.type} | ({"private": True} if c.name in private else {}) for c in columns]

    def channels(self) -> list[dict[str, Any]]:
        return [self._channel(channel) for channel in self._application.channels]

    def _channel(self, channel: ChannelDef) -> dict[str, Any]:
        view = next((view for view in self._views if view.name == channel.target), None)
        key = () if view is None else view.content.key if view.content else view.definition.key
        columns = [] if view is None else self._columns(view)
        shown = None if channel.select is None else {*key, *channel.select}
        return {
            "channel": channel.name,
            "stream" if view is None else "view": channel.target,
            "where": channel.where,
            "select": channel.select,
            "policy": channel.policy,
            "key": key,
            "columns": [column for column in columns if shown is None or column["name"] in shown],
        }

    def flows(self) -> list[dict[str, Any]]:
        return [self._flow(node) for node in self._application.nodes]

    def _topics(self) -> list[dict[str, Any]]:
        """Topics for other programs, as those who publish them tell."""
        known = self._sample.topics
        return [{"name": name, **known[name]} for name in self._application.publishes if name in known]

    def graph(self) -> dict[str, Any]:
        states = {n.name: self._views.flow_state(n.name).state for n in self._application.nodes}
        body = self._application.graph(states)
        times = dict(self._sample.times) | {node.name: self._times(node) for node in self._application.nodes}
        return body | {"nodes": [node | times.get(node["name"], EventTimes()).body() for node in body["nodes"]]}

    def event_times(self) -> dict[str, EventTimes]:
        """Of each stream, flow and view, as far as they are known."""
        return dict(self._sample.times) | {node.name: self._times(node) for node in self._application.nodes}

    def _times(self, node: Node) -> EventTimes:
        """Of a flow or view, at its frontier: held by the input that is complete the least."""
        meta = self._meta(node)
        if meta is None:
            return EventTimes()
        inputs = [name for name in node.inputs if self._application.table(name) is None]
        known = {name: self._complete_us(name) for name in inputs}
        never = next((name for name, complete_us in known.items() if complete_us is None), None)
        least = never or min(known, key=lambda name: known[name] or 0, default=None)
        return EventTimes(meta.max_us, meta.complete_us, least if never or len(inputs) > 1 else None)

    def _complete_us(self, name: str) -> int | None:
        if name in self._sample.times:
            return self._sample.times[name].complete_us
        content = self._views.view(name).content
        return content.meta.complete_us if content and content.meta else None

    def _flow(self, node: Node) -> dict[str, Any]:
        state, meta = self._views.flow_state(node.name), self._meta(node)
        return {
            "flow": node.name,
            "state": state.state,
            "error": state.error,
            "batch_ms": _batch_ms(meta),
            "rate": self._absorbed.per_second(node.name),
            "lag_events": self._lag(node, meta),
            **self._times(node).body(),
        }

    def _meta(self, node: Node) -> BatchMeta | None:
        """Of the last batch of a view or flow that is shown."""
        if isinstance(node, FlowDef):
            return self._sample.metas.get(node.name)
        content = self._views.view(node.name).content
        return content.meta if content else None

    def _lag(self, node: Node, meta: BatchMeta | None) -> int:
        """How many events of its inputs a node has not read."""
        read = {name: sum(position.offsets) for name, position in meta.frontier.items()} if meta else {}
        ends = {name: sum(self._sample.ends[name]) for name in node.inputs if name in self._sample.ends}
        return sum(max(0, end - read.get(name, 0)) for name, end in ends.items())

    def _health(self, view: View) -> dict[str, Any]:
        if view.problem is not None:
            return {"state": "stopped", "error": view.problem.body()}
        state = self._views.flow_state(view.name)
        return {"state": state.state, "error": state.error}

    def _freshness(self) -> dict[str, float | None]:
        samples = sorted(self._views.freshness_s)
        if not samples:
            return {"p50_ms": None, "p99_ms": None}
        p50, p99 = samples[len(samples) // 2], samples[min(len(samples) - 1, len(samples) * 99 // 100)]
        return {"p50_ms": round(p50 * 1000, 1), "p99_ms": round(p99 * 1000, 1)}

    # Gathering

    async def _keep_sampling(self) -> None:
        while True:
            self._note_rates()
            await asyncio.sleep(SAMPLE_S)
            await self.refresh()

    def _note_rates(self) -> None:
        now_s = self._clock.monotonic()
        self._accepted.note(now_s, {s["stream"]: s["totals"]["accepted"] for s in self._sample.streams})
        metas = {node.name: self._meta(node) for node in self._application.nodes}
        absorbed = {name: sum(sum(p.offsets) for p in m.frontier.values()) for name, m in metas.items() if m}
        self._absorbed.note(now_s, absorbed)

    async def _gather_next(self) -> None:
        """Behind the look that is under way, which may have begun before something that must be told."""
        if self._gathering is not None:
            await asyncio.wait([self._gathering])
        self._gathering, self._next = asyncio.ensure_future(asyncio.to_thread(self._gather)), None
        with suppress(PenstockError):  # the log says by itself what is wrong with it
            self._sample = await asyncio.shield(self._gathering)

    def _gather(self) -> _Sample:
        door, flows = self._log.edge.memory(), self._views.memory
        bounds = dict(self._all_bounds())
        times = {name: self._stream_times(name, bounds.get(name)) for name in self._stream_names()}
        streams = [
            self._stream(name, bounds.get(name), door, flows) | times[name].body() for name in self._stream_names()
        ]
        metas = {flow.name: meta for flow in self._application.flows if (meta := self._last_meta(flow)) is not None}
        family = control_keys.topic
        told = {**door, **flows}.items() if self._application.publishes else ()
        topics = {family.rest(key): value for key, value in told if key.startswith(family.prefix)}
        return _Sample(streams, {name: b.ends for name, b in bounds.items()}, metas, times, self.processes(), topics)

    def _stream_names(self) -> list[str]:
        return [*(s.name for s in self._application.streams), *(f.name for f in self._application.flows), *LEDGERS]

    def _all_bounds(self) -> Iterator[tuple[str, Bounds]]:
        for name in self._stream_names():
            with suppress(UnknownStreamError):
                yield name, self._log.bounds(name)

    def _stream(
        self, name: str, bounds: Bounds | None, door: Mapping[str, Any], flows: Mapping[str, Any]
    ) -> dict[str, Any]:
        definition = self._application.stream(name)
        flow = self._application.flow(name)
        declared = definition or flow
        mine = door.get(control_keys.count(name)) or {}
        theirs = [count for key, count in flows.items() if key.startswith(control_keys.count(name, ""))]
        return {
            "stream": name,
            "kind": "stream" if definition else "flow" if flow else "ledger",
            "partitions": declared.partitions if declared else 2 if name == "dead" else 1,
            "key": declared.key if declared else (),
            "time": declared.time if declared else None,
            "schema": self._schema_version(name) if definition else None,
            "private": definition.events.private if definition else (),
            "totals": {
                "accepted": sum(bounds.ends) if bounds else 0,
                "duplicates": mine.get("duplicates", 0),
                "dead": mine.get("dead", 0),
                "shed": mine.get("shed", 0),
                "skewed": mine.get("skewed", 0),
                "late": sum(count.get("late", 0) for count in theirs),
                "poisoned": sum(count.get("dead", 0) for count in theirs),
            },
            "horizon": self._horizon(definition) if definition and definition.id else None,
            "position": self._log.position_end(name).token() if bounds else None,
            "hint": _in_seconds(definition, bounds.max_us, self._clock.now_us()) if definition and bounds else None,
        }

    def _stream_times(self, name: str, bounds: Bounds | None) -> EventTimes:
        if bounds is None or name in LEDGERS:
            return EventTimes()
        declared = self._application.stream(name)
        late_after_us = declared.late_after_us if declared else None
        complete_us, by_events = bounds.complete_us, declared is not None and declared.complete == "events"
        if (
            by_events and complete_us is None and late_after_us is not None and bounds.max_us is not None
        ):  # written before it was noted
            complete_us = bounds.max_us - late_after_us
        never = "no late_after" if late_after_us is None and complete_us is None else None
        holder = self.holder(name)
        return EventTimes(bounds.max_us, complete_us, never if holder is None else f"the producer '{holder}'")

    def _horizon(self, stream: StreamDef) -> dict[str, Any]:
        """What is promised (so many of the newest ids, or so long, whichever ends first), and what is known now."""
        known = self.known_ids(stream.name) if self.known_ids else None
        since = None if known is None or known.since_us is None else rfc3339(known.since_us)
        return {
            "ids": stream.horizon.ids,
            "age": duration_text(stream.horizon.age_us),
            "known": known.ids if known else 0 if self.known_ids else None,
            "since": since,
        }

    def _schema_version(self, name: str) -> int | None:
        """Which version of its class a stream has; asked once, because a new one needs another start of the edge."""
        if name not in self._versions:
            with suppress(NotReadyError):
                self._versions[name] = newest_version(self._log, name)
        return self._versions.get(name)

    def _last_meta(self, node: FlowDef) -> BatchMeta | None:
        try:
            part = self._log.find(node.name).parts[0]
        except UnknownStreamError:
            return None
        last = part.log.last_commit(part.stream) if part.stream else None
        return batch_meta(last.meta) if last is not None and last.meta is not None else None


def _in_seconds(stream: StreamDef, newest_us: int | None, now_us: int) -> str | None:
    """What to do where all times of a stream lie in January 1970, and would be of these years if they were seconds."""
    if stream.time is None or newest_us is None or not pa.types.is_integer(stream.events.arrow.field(stream.time).type):
        return None
    if abs(newest_us * 1000 - now_us) > _THESE_YEARS_US:
        return None
    return f"the newest time is {rfc3339(newest_us)[:10]}: '{stream.time}' looks like seconds; send milliseconds"


def _batch_ms(meta: BatchMeta | None) -> float | None:
    if meta is None or meta.planned_us is None or meta.done_us is None:
        return None
    return (meta.done_us - meta.planned_us) / 1000


def duration_text(us: int) -> str:
    """A duration as an app file writes it.

    >>> duration_text(3_600_000_000), duration_text(90_000_000), duration_text(1_500)
    ('1 hour', '90 seconds', '1.5 ms')
    """
    for name, unit in _UNITS:
        if us >= unit and us % unit == 0:
            return f"{us // unit} {name}{'s' if us > unit else ''}"
    return f"{us / 1000:g} ms"
