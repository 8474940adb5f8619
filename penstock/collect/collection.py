"""Puts the stage together for the edge process: streams, door, acks and pulls over one log writer.

collect = Collect(application, log, group, views.wait_absorbed, Limits(), SystemClock(), observer.emit)
await collect.start()
collect.add_routes(web_app)
...
await collect.close()
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from random import Random

from aiohttp import web

from penstock import plain
from penstock.clock import Clock
from penstock.collect.collect_routes import ROUTES
from penstock.collect.counts import StreamCounts
from penstock.collect.intake import Intake
from penstock.collect.judging.judge import Judge
from penstock.collect.letters.dead_letters import DeadLedger
from penstock.collect.limits.lag import Absorbed
from penstock.collect.limits.pressure import Pressure
from penstock.collect.promises import Promises
from penstock.collect.pulling.pull_loop import Sleep
from penstock.collect.pulling.pulls import Pulls
from penstock.collect.reception import Reception
from penstock.collect.tables.row_changes import RowJudge
from penstock.collect.tables.row_reads import RowReads
from penstock.collect.tables.table_door import TableDoor
from penstock.collect.tables.table_writer import TableWriter
from penstock.collect.ways.acks import Acks
from penstock.collect.ways.door import Door, WaitAbsorbed
from penstock.collect.ways.idempotency import Idempotency
from penstock.collect.ways.pixel import Pixel
from penstock.collect.ways.publish import Publishing
from penstock.collect.ways.receipts import Receipts
from penstock.collect.ways.request_body import SlowBodies
from penstock.collect.ways.short_way import ShortWay, Writers, misfit
from penstock.collect.ways.udp import Udps
from penstock.collect.ways.view_reply import MayRead, ViewReplies, ViewRows, by_credential
from penstock.collect.ways.without_ack import Unanswered
from penstock.config import Limits
from penstock.declaration import Application, StreamDef, TableDef
from penstock.errors import SchemaChangeError
from penstock.log.class_change import WAY_OUT, judged, key_refused, versioned
from penstock.log.folder_log import DEAD
from penstock.log.group_commit import GroupCommit
from penstock.log.log import Log, Stream, StreamSpec
from penstock.observe.metrics import Observer
from penstock.observe.signals import Signals
from penstock.position import Position
from penstock.rights.guard import bind
from penstock.rights.signatures import Signatures
from penstock.views.views import Views


def _receipt_id() -> str:
    return secrets.token_hex(8)


def stream_spec(declared: StreamDef) -> StreamSpec:
    """How the log makes a declared stream."""
    return StreamSpec(
        declared.name,
        versioned(declared),
        declared.partitions,
        unique=bool(declared.id),
        horizon=declared.horizon,
        late_after_us=declared.late_after_us if declared.complete == "events" else None,
    )


def make_dead(log: Log, group: GroupCommit) -> Stream:
    """The ledger of what was rejected; its letters are unique by their id, where they have one."""
    return group.run(lambda: log.create(StreamSpec("dead", DEAD, unique=True))).result()


def make_stream(log: Log, group: GroupCommit, declared: StreamDef) -> Stream:
    """Make it or find it; a class that cannot read the events already stored is refused with the user's line."""
    stream = log.find(declared.name)
    if stream is not None:
        refused = (*judged(declared, log.versions(stream)).refused, *key_refused(stream, ()))
        if refused:
            raise _refusal(declared, "; ".join(refused))
    try:
        return group.run(lambda: log.create(stream_spec(declared))).result()
    except SchemaChangeError as error:
        raise _refusal(declared, error.detail or error.message) from error


def make_table(log: Log, group: GroupCommit, declared: TableDef) -> Stream:
    """Make it or find it; it has the form of a view's changelog. Refused like a stream that does not fit."""
    stream = log.find(declared.name)
    if stream is not None:
        refused = (*judged(declared.entry, log.versions(stream)).refused, *key_refused(stream, declared.key))
        if refused:
            raise _refusal(declared.entry, "; ".join(refused))
    schema = declared.stored.with_metadata(versioned(declared.entry).metadata)
    spec = StreamSpec(declared.name, schema, counts="commits", compact_by=declared.key)
    try:
        return group.run(lambda: log.create(spec)).result()
    except SchemaChangeError as error:
        raise _refusal(declared.entry, error.detail or error.message) from error


def _refusal(declared: StreamDef, why: str) -> SchemaChangeError:
    kind = declared.events.kind.__name__
    return SchemaChangeError(
        f"{declared.place}: the class {kind} no longer fits the events that '{declared.name}' holds",
        detail=why,
        hint=WAY_OUT,
    )


class Collect:
    """Stage 1 in one process. Made before the loop runs; its streams exist from then on."""

    def __init__(
        self,
        application: Application,
        log: Log,
        group: GroupCommit,
        wait_absorbed: WaitAbsorbed,
        limits: Limits,
        clock: Clock,
        signals: Signals,
        *,
        random: Random | None = None,
        sleep: Sleep = asyncio.sleep,
        new_id: Callable[[], str] = _receipt_id,
        absorbed: Absorbed | None = None,
        rows: ViewRows | None = None,
        may_read: MayRead = by_credential,
        signatures: Signatures | None = None,
        views: Views | None = None,
    ) -> None:
        """Raises `SchemaChangeError` when a stream's class no longer fits its stored events. `rows` and `may_read` are
        for senders that ask for a view's row; `views` have the rows of tables, and without them there are none."""
        self._clock = clock
        self.counts = StreamCounts(log.memory())
        self.pressure = Pressure(application, limits, clock, signals, random or Random())
        self.slow = SlowBodies(limits, clock)
        dead = DeadLedger(make_dead(log, group), group, clock)
        self.intakes = {s.name: self._intake(s, log, group, dead, limits, signals) for s in application.streams}
        self.tables = {t.name: self._table(t, log, group, dead, limits, signals, views) for t in application.tables}
        self._row_reads = RowReads(application, views, limits) if views is not None else None
        self.signatures = signatures or Signatures(application, clock, signals)
        idempotency = Idempotency(log.memory(), clock)
        self._table_door = TableDoor(
            self.tables,
            dead,
            idempotency,
            wait_absorbed,
            limits,
            signals,
            self.pressure,
            self.slow,
            self.signatures,
        )
        receipts = Receipts(log.memory(), clock)
        reception = Reception(dead, clock, signals, self.pressure.turns)
        self._unanswered = Unanswered(reception, receipts, signals, new_id)
        self._door = Door(
            application,
            self.intakes,
            reception,
            self._unanswered,
            idempotency,
            ViewReplies(rows, may_read),
            log.memory(),
            wait_absorbed,
            limits,
            signals,
            self.pressure,
            self.slow,
            self.signatures,
        )
        self._door.replicates = self._table_door.replicates = log.replicated
        self._pixel = Pixel(self._door, clock)
        self._acks = Acks(self._end_of, receipts, wait_absorbed, limits, clock, signals)
        self.pulls = Pulls(
            application,
            self.intakes,
            self.tables,
            log,
            group,
            f"edge-{new_id()}",
            limits,
            clock,
            signals,
            random or Random(),
            sleep,
        )
        self.publishing = Publishing(self._door.intake, self.pressure, log.memory(), limits, clock, signals)
        self.udps = Udps(application.udps, self.intakes, limits, clock, signals)
        if absorbed is not None:
            self.pressure.watch(lambda name: self._way(name).end, absorbed, self.pulls)

    def _intake(
        self, declared: StreamDef, log: Log, group: GroupCommit, dead: DeadLedger, limits: Limits, signals: Signals
    ) -> Intake:
        stream = make_stream(log, group, declared)
        end = stream.position(log.bounds(stream).ends)
        guard = self.pressure.guards[declared.name]
        promises = Promises(declared.name, log.memory(), declared.idle_after_us, self._clock)
        promised = promises if declared.complete == "producers" else None
        return Intake(Judge(declared, limits), stream, end, group, dead, signals, guard, promised)

    def _table(
        self,
        declared: TableDef,
        log: Log,
        group: GroupCommit,
        dead: DeadLedger,
        limits: Limits,
        signals: Signals,
        views: Views | None,
    ) -> TableWriter:
        assert views is not None, "an app with tables has views"
        stream = make_table(log, group, declared)
        end = stream.position(log.bounds(stream).ends)
        judge, view = RowJudge(declared, limits), views.view(declared.name)
        return TableWriter(judge, stream, end, group, dead, view, views.wake, self._clock, signals)

    async def _end_of(self, stream: str) -> Position | None:
        """Of a stream or a table."""
        return self._way(stream).end if stream in self.intakes or stream in self.tables else None

    def _way(self, name: str) -> Intake | TableWriter:
        return self.intakes[name] if name in self.intakes else self.tables[name]

    def add_routes(self, app: web.Application) -> None:
        """The runner of this app needs `auto_decompress=False`: the door unpacks bodies itself, bounded."""
        bind(
            app,
            ROUTES,
            post_to=self._door.post,
            publish=self.publishing.serve,
            pixel_of=self._pixel.get,
            ack=self._acks.get,
            put_row=self._table_door.put,
            patch_row=self._table_door.patch,
            delete_row=self._table_door.delete,
            post_rows=self._table_door.post,
        )
        if self._row_reads is not None:
            bind(app, ROUTES, read_row=self._row_reads.get)
        app.on_shutdown.append(self.publishing.end)

    def short_way(self, writers: Writers) -> ShortWay | None:
        """The way past aiohttp, for the connections of this edge; None: aiohttp serves every request."""
        if (why := misfit()) is not None:
            plain.give_up("short_way", why)
        if not plain.uses("short_way"):
            return None
        return ShortWay(self.intakes, self._door, self._unanswered, self.pressure, self._clock, writers)

    def measure(self, observer: Observer) -> None:
        """Show how full everything is, at each scrape."""
        room, labels = self.pressure.room, ("stream", "port")
        observer.gauge("penstock_collect_room_bytes", "Bodies on their way.", (), lambda: {(): float(room.taken_bytes)})
        observer.gauge("penstock_collect_room_events", "Events in them.", (), lambda: {(): float(room.taken_events)})
        observer.gauge(
            "penstock_collect_publishing_sockets", "Open sockets.", (), lambda: {(): float(self.publishing.open)}
        )
        observer.gauge("penstock_collect_udp_kernel_drops", "Datagrams lost before us.", labels, self.udps.drops)

    async def start(self, *, secured: bool = False) -> None:
        """Begin to pull and to listen for datagrams; `secured`: the app has keys."""
        await self.udps.start(secured=secured)
        self.pulls.start()
        self.pressure.start()
        self.slow.start()

    async def close(self) -> None:
        """Stop pulling and write what came with ack=none. The server has stopped taking requests before."""
        await self.udps.close()
        await self.pulls.close()
        await self.pressure.close()
        await self.slow.close()
        await self._unanswered.drain()
        for intake in self.intakes.values():
            await intake.drain()
        for table in self.tables.values():
            await table.drain()
