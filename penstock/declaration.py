"""What an app file declared, as frozen data with the user's file and line; every tier reads it, none changes it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import pyarrow as pa

from penstock import schema
from penstock.change import OP
from penstock.errors import DeclarationError
from penstock.horizon import Horizon
from penstock.overload import MaxLag, Rate, Shed
from penstock.pull_origin import Origin
from penstock.schema import EventSchema
from penstock.signed import Signed
from penstock.stateful import Script

How = Literal["folded", "regrouped", "added", "whole", "ordered"]
"""How a view is kept current: by Spark's streaming state, by computing its changed units again, by adding what changed
to sums, or by computing all of it; or it is the state of a flow that sees the events of a key one after the other."""
Order = Literal["log", "time"]
"""In which order such a flow sees them: as they came, or as they happened, once nothing older is taken any more."""
Completeness = Literal["events", "producers"]
Unknown = Literal["ignore", "keep", "reject"]
Policy = Literal["conflate", "every_change"]
"""What a subscriber that cannot keep up gets: batches merged into one, or a cut and then every batch from there."""
LEDGERS = ("dead", "late")
"""Streams that every app has: what was rejected, and what came too late."""
CLOUDEVENT = "cloudevent"


FINGERPRINT = "fingerprint"


@dataclass(frozen=True)
class Place:
    """A line of the user's, and where SQL is wrong its column."""

    file: str
    line: int
    column: int | None = None

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line}" + (f":{self.column}" if self.column else "")


@dataclass(frozen=True)
class Problem:
    """Something that `check` found. Errors stop `run`; warnings and notes do not."""

    level: Literal["error", "warning", "note"]
    code: str
    message: str
    place: Place | None = None
    hint: str | None = None


@dataclass(frozen=True)
class Retention:
    """How long events are kept: neither given, for ever."""

    age_us: int | None = None
    bytes: int | None = None


_TOPIC = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")


def topic_name(app: str, name: str, topic: bool | str) -> str | None:
    """The topic for other programs that `topic=` of a stream, table, flow or view means.

    >>> topic_name("shop", "orders", True), topic_name("shop", "orders", "sales"), topic_name("shop", "orders", False)
    ('shop.orders', 'sales', None)
    """
    if topic is False or topic is None:
        return None
    full = f"{app}.{name}" if topic is True else topic
    if (
        not isinstance(full, str)
        or not _TOPIC.fullmatch(full)
        or full in (f"{app}.edge.journal", f"{app}.flows.journal")
    ):
        raise DeclarationError(
            f"topic={topic!r} of '{name}' can be no topic",
            hint="write topic=True, or a name of ASCII letters, digits, '.', '-' and '_'",
        )
    return full


@dataclass(frozen=True)
class StreamDef:
    """A stream that the door writes to."""

    name: str
    events: EventSchema = field(repr=False, compare=False)
    key: tuple[str, ...]
    time: str | None
    id: tuple[str, ...]
    partitions: int
    late_after_us: int | None
    future_us: int
    retain: Retention
    unknown: Unknown
    place: Place
    rate: Rate | None = None
    shed: Shed | None = None
    signed: Signed | None = None
    sent: str | None = None
    max_skew_us: int | None = None
    """How wrong a sender's clock may be and still be corrected; None: no clock is corrected."""
    horizon: Horizon = Horizon()
    """How far back an event's id is known."""
    visible_where: str | None = None
    """Which events a reader sees, by its claims; None: all."""
    topic: str | None = None
    """The topic for other programs that it is published to."""
    idle_after_us: int | None = None
    """After how long without events time goes on by the clock; None: it stands still."""
    complete: Completeness = "events"
    """What moves `complete`: the newest event, or what producers promise."""

    @property
    def identified_by_envelope(self) -> bool:
        """Whether a CloudEvent's source and id make an event unique: `id="cloudevent"`, and no field is called so."""
        return self.id == (CLOUDEVENT,) and CLOUDEVENT not in self.events.names

    @property
    def fingerprinted(self) -> bool:
        """Whether an event's id is a hash of its content: `id="fingerprint"`, and no field is called so."""
        return self.id == (FINGERPRINT,) and FINGERPRINT not in self.events.names

    @cached_property
    def stored(self) -> pa.Schema:
        keep, clocks = self.unknown == "keep", self.max_skew_us is not None
        return schema.stored_schema(self.events.fields, keep_unknown=keep, clocks=clocks)


@dataclass(frozen=True)
class OrderedDef:
    """How a flow sees the events of a key one after the other."""

    script: Script = field(repr=False, compare=False)
    key: tuple[str, ...]
    """Columns that all of its inputs have: events of equal values are those of one key."""
    order: Order
    keep_us: int | None
    state: str
    """The name of the changelog that holds its state: that of a view, or one that nobody is shown."""


@dataclass(frozen=True)
class AlertDef:
    """When rows of a view raise an alert, and when they clear it."""

    when: str
    until: str | None
    """None: when `when` is not true any more."""
    hold_us: int
    """How long `when` must be true."""
    shown: ViewDef
    """What is raised now."""


@dataclass(frozen=True)
class FlowDef:
    """A function from DataFrames to a DataFrame whose rows are appended to a stream."""

    name: str
    function: Callable[..., Any] = field(repr=False, compare=False)
    parameters: tuple[str, ...]
    key: tuple[str, ...]
    time: str | None
    partitions: int
    late_after_us: int | None
    deterministic: bool
    place: Place
    doc: str
    visible_where: str | None = None
    ordered: OrderedDef | None = None
    topic: str | None = None
    alert: AlertDef | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(name for name in self.parameters if name != "spark")


@dataclass(frozen=True)
class ViewDef:
    """A function from DataFrames to a DataFrame whose rows are kept current by key."""

    name: str
    function: Callable[..., Any] = field(repr=False, compare=False)
    parameters: tuple[str, ...]
    key: tuple[str, ...]
    where: str | None
    order_by: tuple[str, ...]
    limit: int | None
    keep_us: int | None
    deterministic: bool
    place: Place
    doc: str
    max_lag: MaxLag | None = None
    visible_where: str | None = None
    """Which rows a reader sees, by its claims; None: all. It changes no row, so a change of it rebuilds nothing."""
    how: How | None = None
    """How it must be kept current; None: as its plan allows."""
    whole_rows: int = 100_000
    """Up to how many rows of its inputs it may be computed as a whole, whenever one of them changes."""
    within_us: int | None = None
    """How far behind the newest event of its stream an event counts that it reads beside rows that change."""
    correct_us: int | None = None
    """How far behind an event may come and still change a window that is closed."""
    state_of: str | None = None
    """The ordered flow whose state it is, or the stream of the alerts that it shows."""
    topic: str | None = None
    """The topic for other programs that its rows are published to."""
    final: bool = False
    """Its rows say whether their window can still change."""

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(name for name in self.parameters if name != "spark")


Node = FlowDef | ViewDef
"""What runs as one Spark query."""


def is_state(node: Node) -> bool:
    """Whether a view is the state of an ordered flow, which keeps it."""
    return isinstance(node, ViewDef) and node.state_of is not None


@dataclass(frozen=True)
class TableDef:
    """Rows by key that come in from outside. It is read like a view: what a view may have and a table has not is
    empty here."""

    name: str
    events: EventSchema = field(repr=False, compare=False)
    key: tuple[str, ...]
    unknown: Unknown
    place: Place
    doc: str = ""
    rate: Rate | None = None
    shed: Shed | None = None
    signed: Signed | None = None
    visible_where: str | None = None
    time: str | None = None
    """The field that says from when on a row holds."""
    versions_us: int | None = None
    """How long rows are kept that newer ones have replaced; None: until compaction."""
    topic: str | None = None
    """The topic for other programs that its rows are published to."""

    order_by: ClassVar[tuple[str, ...]] = ()
    limit: ClassVar[int | None] = None
    keep_us: ClassVar[int | None] = None
    inputs: ClassVar[tuple[str, ...]] = ()

    @cached_property
    def entry(self) -> StreamDef:
        """As what its rows are judged and limited when they come in."""
        return StreamDef(
            name=self.name,
            events=self.events,
            key=self.key,
            time=None,
            id=(),
            partitions=1,
            late_after_us=None,
            future_us=0,
            retain=Retention(),
            unknown=self.unknown,
            place=self.place,
            rate=self.rate,
            shed=self.shed,
            signed=self.signed,
            visible_where=self.visible_where,
        )

    @cached_property
    def stored(self) -> pa.Schema:
        """The form of a view's changelog."""
        return pa.schema([*self.events.fields, pa.field(OP, pa.int8())])


Shown = ViewDef | TableDef
"""What has rows by key and is read below `/views`."""


@dataclass(frozen=True)
class ChannelDef:
    """A view or stream under a name of its own, with a filter and a choice of columns that no reader can undo."""

    name: str
    target: str
    """The view, stream or flow that it shows."""
    where: str | None
    select: tuple[str, ...] | None
    policy: Policy
    place: Place


@dataclass(frozen=True)
class PullDef:
    """A source outside that is read into a stream or a table."""

    stream: str
    origin: Origin
    map: Callable[[Any], Any] | None = field(repr=False, compare=False)
    place: Place

    @property
    def url(self) -> str:
        """What it is called wherever it is shown or stored: its address without secrets."""
        return self.origin.name


@dataclass(frozen=True)
class UdpDef:
    """A port on which datagrams are read into a stream. `open`: whoever reaches it may write, and the app says so."""

    stream: str
    host: str
    port: int
    open: bool
    place: Place


@dataclass(frozen=True)
class Application:
    """All that one app file declares."""

    name: str
    file: str
    streams: tuple[StreamDef, ...] = ()
    flows: tuple[FlowDef, ...] = ()
    views: tuple[ViewDef, ...] = ()
    pulls: tuple[PullDef, ...] = ()
    udps: tuple[UdpDef, ...] = ()
    channels: tuple[ChannelDef, ...] = ()
    tables: tuple[TableDef, ...] = ()

    @property
    def entries(self) -> tuple[StreamDef, ...]:
        """What comes in from outside: streams, and tables as their rows are judged."""
        return (*self.streams, *(table.entry for table in self.tables))

    @cached_property
    def publishes(self) -> dict[str, str]:
        """The topic for other programs of each stream, table, flow and view that has one."""
        return {thing.name: thing.topic for thing in self.published if thing.topic}

    @property
    def published(self) -> tuple[StreamDef | TableDef | FlowDef | ViewDef, ...]:
        """What has a topic for other programs."""
        things: tuple[StreamDef | TableDef | FlowDef | ViewDef, ...] = (
            *self.streams,
            *self.tables,
            *self.flows,
            *self.views,
        )
        return tuple(thing for thing in things if thing.topic)

    @property
    def shown(self) -> tuple[Shown, ...]:
        """Views and tables."""
        return (*self.views, *self.tables)

    @property
    def nodes(self) -> tuple[Node, ...]:
        return (*self.flows, *self.views)

    def stream(self, name: str) -> StreamDef | None:
        return next((s for s in self.streams if s.name == name), None)

    def flow(self, name: str) -> FlowDef | None:
        return next((f for f in self.flows if f.name == name), None)

    def view(self, name: str) -> ViewDef | None:
        return next((v for v in self.views if v.name == name), None)

    def table(self, name: str) -> TableDef | None:
        return next((t for t in self.tables if t.name == name), None)

    def channel(self, name: str) -> ChannelDef | None:
        return next((c for c in self.channels if c.name == name), None)

    def filtered(self) -> frozenset[str]:
        """The streams, tables, flows and views of which each reader sees its own rows only."""
        things: tuple[StreamDef | TableDef | FlowDef | ViewDef, ...] = (*self.streams, *self.tables, *self.nodes)
        return frozenset(thing.name for thing in things if thing.visible_where is not None)

    def ordered(self) -> list[Node]:
        """Flows and views, each after what it reads. The app has no cycle: `problems` was asked before."""
        done: set[str] = {entry.name for entry in self.entries}
        waiting = list(self.nodes)
        order: list[Node] = []
        while ready := [n for n in waiting if all(i in done for i in n.inputs)]:
            order += ready
            done |= {n.name for n in ready}
            waiting = [n for n in waiting if n not in ready]
        return order

    def roots(self, name: str) -> frozenset[str]:
        """The door's streams and tables that a flow or view reads, directly or through other flows and views. A hidden
        view, `NAME.1`, reads what the view reads that it is a part of."""
        if self.stream(name) or self.table(name):
            return frozenset([name])
        name = name.partition(".")[0]
        node = self.flow(name) or self.view(name)
        return frozenset().union(*(self.roots(i) for i in node.inputs)) if node else frozenset()

    def downstream(self, name: str) -> Iterator[Node]:
        """Every flow and view that reads `name`, directly or through other flows and views."""
        reached = {name}
        waiting = list(self.nodes)
        while found := [n for n in waiting if reached & set(n.inputs)]:
            yield from found
            reached |= {n.name for n in found}
            waiting = [n for n in waiting if n not in found]

    def graph(self, states: Mapping[str, str] | None = None) -> dict[str, Any]:
        """The DAG as data: what `GET /graph` and `penstock graph --json` give."""
        states = states or {}
        nodes = [{"name": p.url, "kind": "source", "doc": "", "state": None} for p in self.pulls]
        nodes += [{"name": s.name, "kind": "stream", "doc": "", "state": None} for s in self.streams]
        nodes += [{"name": t.name, "kind": "table", "doc": t.doc, "state": None} for t in self.tables]
        for node in self.nodes:
            kind = "flow" if isinstance(node, FlowDef) else "view"
            nodes.append({"name": node.name, "kind": kind, "doc": node.doc, "state": states.get(node.name)})
        nodes += [{"name": c.name, "kind": "channel", "doc": c.where or "", "state": None} for c in self.channels]
        alone = {"grouping": None, "parallelism": None}
        edges: list[dict[str, Any]] = [{"from": p.url, "to": p.stream, **alone} for p in self.pulls]
        edges += [{"from": i, "to": n.name, **self._grouping(i)} for n in self.nodes for i in n.inputs]
        edges += [{"from": c.target, "to": c.name, **alone} for c in self.channels]
        return {"app": self.name, "nodes": nodes, "edges": edges}

    def _grouping(self, name: str) -> dict[str, Any]:
        """How what comes from there is spread over those who compute with it, and over how many."""
        thing = self.stream(name) or self.flow(name)
        if thing is None:
            return {"grouping": "to all" if self.table(name) else "by key", "parallelism": 1}
        by = "by key" if thing.key else "in turn" if thing.partitions > 1 else "as one"
        return {"grouping": by, "parallelism": thing.partitions}

    def problems(self) -> list[Problem]:
        """What is wrong with the declarations, as far as it shows without Spark."""
        from penstock.declaration_problems import problems_of

        return problems_of(self)
