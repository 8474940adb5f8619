"""Says how everything is: what `GET /status`, `/views`, `/streams` and `/graph` give, and `penstock status` prints.

Totals come from the log and survive restarts. Everything is gathered once a second in a thread, so that asking for
it is free and a slow disk holds up nobody.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib.metadata import version
from typing import Any

import msgspec

from penstock.clock import Clock, rfc3339
from penstock.config import Folder
from penstock.declaration import LEDGERS, Application, ChannelDef, FlowDef, Node, StreamDef
from penstock.errors import NotReadyError, PenstockError, UnknownStreamError
from penstock.log.builds import BatchMeta, batch_meta
from penstock.log.folder import FolderLog
from penstock.log.log import Bounds, KnownIds
from penstock.position import frontier_body
from penstock.serve.rates import Rates
from penstock.serve.stream_schemas import newest_version
from penstock.views.current import Views
from penstock.views.store import View

SAMPLE_S = 1.0
_UNITS = (("day", 86_400_000_000), ("hour", 3_600_000_000), ("minute", 60_000_000), ("second", 1_000_000))


class Status:
    """The state of one app as its edge sees it."""

    def __init__(
        self,
        application: Application,
        views: Views,
        log: FolderLog,
        clock: Clock,
        folder: Folder | None = None,
    ) -> None:
        self._application, self._views, self._log = application, views, log
        self._clock, self._folder = clock, folder
        self._started_us, self._started_s = clock.now_us(), clock.monotonic()
        self._accepted, self._absorbed = Rates(), Rates()
        self._streams: list[dict[str, Any]] = []
        self._lags: dict[str, int] = {}
        self._batches_ms: dict[str, float] = {}
        self._versions: dict[str, int] = {}
        self._processes: Any = {}
        self._task: asyncio.Task[None] | None = None
        self._gathering: asyncio.Future[Any] | None = None
        self.known_ids: Callable[[str], KnownIds | None] = lambda stream: None
        """The ids that the log's writer, which is not ours to ask, knows of a stream."""
        self.more: dict[str, Callable[[], Any]] = {}
        """What other tiers of this process have to say, by the name under which it is shown."""

    async def start(self) -> None:
        with suppress(PenstockError):
            await self._sample()
        self._task = asyncio.create_task(self._keep_sampling(), name="status")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._gathering is not None:
            await asyncio.wait([self._gathering])  # in its thread it reads the log, which is about to be closed

    # What is said

    def body(self) -> dict[str, Any]:
        return {
            "app": self._application.name,
            "version": version("penstock"),
            "started": rfc3339(self._started_us),
            "uptime_s": round(self._clock.monotonic() - self._started_s, 1),
            "processes": self._processes,
            "streams": self.streams(),
            "views": self.views(),
            "flows": self.flows(),
            "freshness": self._freshness(),
            **{name: tell() for name, tell in self.more.items()},
        }

    def streams(self) -> list[dict[str, Any]]:
        return [s | {"rates": {"accepted": self._accepted.per_second(s["stream"])}} for s in self._streams]

    def views(self) -> list[dict[str, Any]]:
        return [self.view(view) for view in self._views]

    def view(self, view: View) -> dict[str, Any]:
        definition, content = view.definition, view.content
        return {
            "view": view.name,
            "doc": definition.doc,
            "key": content.key if content else definition.key,
            "columns": self._columns(view),
            "order_by": definition.order_by or None,
            "limit": definition.limit,
            "keep": None if definition.keep_us is None else duration_text(definition.keep_us),
            "class": content.proof if content else None,
            "rows": len(content.rows) if content else 0,
            "position": content.position.token() if content else None,
            "frontier": frontier_body(view.frontier),
            "filter_errors": view.filter_errors[0],
            "flow": self._health(view),
        }

    def _columns(self, view: View) -> list[dict[str, Any]]:
        """Columns with the name of a private field of a stream that the view is made from are marked, for the page."""
        streams = [self._application.stream(name) for name in self._application.roots(view.name)]
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

    def graph(self) -> dict[str, Any]:
        return self._application.graph({n.name: self._views.flow_state(n.name).state for n in self._application.nodes})

    def _flow(self, node: Node) -> dict[str, Any]:
        state = self._views.flow_state(node.name)
        return {
            "flow": node.name,
            "state": state.state,
            "error": state.error,
            "batch_ms": self._batches_ms.get(node.name),
            "rate": self._absorbed.per_second(node.name),
            "lag_events": self._lags.get(node.name),
        }

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
            await asyncio.sleep(SAMPLE_S)
            with suppress(PenstockError):  # the log says by itself what is wrong with it
                await self._sample()

    async def _sample(self) -> None:
        metas = {view.name: view.content.meta for view in self._views if view.content}
        self._gathering = asyncio.ensure_future(asyncio.to_thread(self._gather, metas))
        streams, absorbed, lags, batches_ms, processes = await asyncio.shield(self._gathering)
        self._streams, self._lags, self._batches_ms, self._processes = streams, lags, batches_ms, processes
        now_s = self._clock.monotonic()
        self._accepted.note(now_s, {s["stream"]: s["totals"]["accepted"] for s in streams})
        self._absorbed.note(now_s, absorbed)

    def _gather(
        self, metas: dict[str, BatchMeta | None]
    ) -> tuple[list[dict[str, Any]], dict[str, int], dict[str, int], dict[str, float], Any]:
        door, flows = self._log.edge.memory(), self._views.memory
        bounds = dict(self._all_bounds())
        streams = [self._stream(name, bounds.get(name), door, flows) for name in self._stream_names()]
        absorbed, lags, batches_ms = {}, {}, {}
        for node in self._application.nodes:
            meta = self._flow_meta(node) if isinstance(node, FlowDef) else metas.get(node.name)
            read = {name: position.offsets for name, position in meta.frontier.items()} if meta else {}
            absorbed[node.name] = sum(sum(offsets) for offsets in read.values())
            if meta and meta.planned_us is not None and meta.done_us is not None:
                batches_ms[node.name] = (meta.done_us - meta.planned_us) / 1000
            ends = {name: bounds[name].ends for name in node.inputs if name in bounds}
            lags[node.name] = sum(max(0, sum(end) - sum(read.get(name, ()))) for name, end in ends.items())
        return streams, absorbed, lags, batches_ms, self._read_processes()

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
        mine = door.get(f"count/{name}") or {}
        theirs = [count for key, count in flows.items() if key.startswith(f"count/{name}/")]
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
        }

    def _horizon(self, stream: StreamDef) -> dict[str, Any]:
        """What is promised (so many of the newest ids, or so long, whichever ends first), and what is known now."""
        known = self.known_ids(stream.name)
        since = None if known is None or known.since_us is None else rfc3339(known.since_us)
        return {
            "ids": stream.horizon.ids,
            "age": duration_text(stream.horizon.age_us),
            "known": 0 if known is None else known.ids,
            "since": since,
        }

    def _schema_version(self, name: str) -> int | None:
        """Which version of its class a stream has; asked once, because a new one needs another start of the edge."""
        if name not in self._versions:
            with suppress(NotReadyError):
                self._versions[name] = newest_version(self._log, name)
        return self._versions.get(name)

    def _flow_meta(self, node: FlowDef) -> BatchMeta | None:
        try:
            part = self._log.find(node.name).parts[0]
        except UnknownStreamError:
            return None
        last = part.log.last_commit(part.stream) if part.stream else None
        return batch_meta(last.meta) if last is not None and last.meta is not None else None

    def _read_processes(self) -> Any:
        if self._folder is None:
            return {}
        try:
            stored = msgspec.json.decode((self._folder.run / "supervisor.json").read_bytes())
        except (OSError, msgspec.DecodeError):
            return {}
        return stored.get("processes", stored) if isinstance(stored, dict) else {}


def duration_text(us: int) -> str:
    """A duration as an app file writes it.

    >>> duration_text(3_600_000_000), duration_text(90_000_000), duration_text(1_500)
    ('1 hour', '90 seconds', '1.5 ms')
    """
    for name, unit in _UNITS:
        if us >= unit and us % unit == 0:
            return f"{us // unit} {name}{'s' if us > unit else ''}"
    return f"{us / 1000:g} ms"
