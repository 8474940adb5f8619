"""Keeps every view of an app current: loads its build, follows its changelog, and swaps in a build that becomes live.

    views = Views(application, flows_reader, limits=limits, clock=clock, observer=observer)
    await views.start()            # returns at once; views load in the background
    view = views.view("topics")    # UnknownViewError when the app has none of that name
    await views.wait_absorbed(position, timeout_s=5)
    await views.stop()

1. Reading and decoding happen in threads; only the application of a prepared batch happens on the loop.
2. Each view is followed by its own task: a large or broken one holds up no other. What one commit has changed in
   several views is shown in one turn of the loop (`shared_turn.py`).
3. A failure is told (`FollowFailed`) and tried again; what was applied stays applied and served. One that stays is
   the view's state, so that people see why it stands still.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import msgspec

from penstock.change import Key, Row
from penstock.clock import Clock, SystemClock, rfc3339
from penstock.config import Limits
from penstock.declaration import Application, FlowDef, Shown, TableDef, ViewDef
from penstock.errors import (
    BadRequestError,
    FlowError,
    FlowsSilentError,
    ForbiddenError,
    NotYetError,
    OverBudgetError,
    PenstockError,
    PositionGoneError,
    UnknownViewError,
)
from penstock.log import control_keys
from penstock.log.builds import BatchMeta, FlowState, state_of
from penstock.log.follower import Follower
from penstock.log.log import LogReader, Writer
from penstock.observe.metrics import Observer
from penstock.observe.signals import BatchApplied, FollowFailed, ViewLoaded, ViewOverBudget
from penstock.position import Frontier, Position, frontier_body
from penstock.protocol import wire_row
from penstock.views.changelog import COMMITS_AT_ONCE, Changelog, Decoded, shown_epoch, version_at
from penstock.views.frontier import FrontierComposer
from penstock.views.read_rule import Reader, ReadRule, parse_ruled, read_rule
from penstock.views.shared_turn import Place, SharedTurn
from penstock.views.store import SWAP_CHANGES, Content, View
from penstock.views.unpack import frozen

T = TypeVar("T")

_STAYS = 3
"""Failures one after the other that are no hiccup."""
RETRY_S = 1.0
PREPARE_CHANGES = 2_000
"""Above this a batch is prepared in the thread: on the loop it would take over 1 ms. The loop is given back after so
many changes of smaller ones."""
_FRESHNESS_SAMPLES = 1_000


class Views:
    """All views of an app. Belongs to the edge's loop."""

    def __init__(
        self,
        application: Application,
        log: LogReader,
        *,
        limits: Limits | None = None,
        clock: Clock | None = None,
        observer: Observer | None = None,
        run: str | None = None,
        door: LogReader | None = None,
    ) -> None:
        """`log` is that of the flows, `door` that of the edge, which holds the tables. `run` is that of the supervisor:
        what a flow said in an earlier one says nothing of now."""
        self.application = application
        self.limits = limits or Limits()
        self.observer = observer or Observer()
        self.memory: Mapping[str, Any] = {}
        """What flows keep in the control stream of their log, as of the last look."""
        self.freshness_s: deque[float] = deque(maxlen=_FRESHNESS_SAMPLES)
        self._clock = clock or SystemClock()
        self._log = log
        self._door = door
        self._run = run
        self._composer = FrontierComposer(application, log)
        self._views = {d.name: View(d, self.limits) for d in (application.shown if door else application.views)}
        self._changelogs: dict[str, Changelog] = {}
        self._news = {name: asyncio.Event() for name in self._views}
        self._failures: dict[str, list[Exception]] = {name: [] for name in self._views}
        """Of each view what went wrong since it was last brought up to date."""
        self._turn = SharedTurn(self._follows)
        self._tasks: list[asyncio.Task[None]] = []
        self._followers: list[Follower] = []
        self._threads = ThreadPoolExecutor(4, "penstock-views")
        self._measure()

    def __iter__(self) -> Iterator[View]:
        return iter(self._views.values())

    def view(self, name: str) -> View:
        """The view of that name."""
        view = self._views.get(name)
        if view is None:
            names = ", ".join(self._views) or "none"
            raise UnknownViewError(f"there is no view '{name}'", hint=f"the app has: {names}")
        return view

    def flow_state(self, name: str) -> FlowState:
        """How the flow of a view or of a flow stream is, or its hidden part, `NAME.1`, if that is in trouble; what an
        earlier run left behind does not count. A table needs none."""
        state, part = self._told_state(name), self._told_state(f"{name}.1")
        if part.state in ("retrying", "stopped"):
            state = part
        if self.application.table(name):
            state = FlowState(state="running")
        failures = self._failures.get(name, [])
        if len(failures) < _STAYS:
            return state
        return msgspec.structs.replace(state, state="retrying", error=_follow_error(name, failures[-1]).body())

    def _told_state(self, name: str) -> FlowState:
        stored = self.memory.get(control_keys.flow(name))
        state = FlowState(state="starting") if stored is None else state_of(stored)
        writer = self._log.writer()
        run = self._run if writer is None else writer.name
        if run is not None and state.run != run:
            return FlowState(state="starting")
        if writer is not None and not writer.lives:
            return FlowState(state="starting", error=_silent_error(writer).body())
        return state

    @property
    def ready(self) -> bool:
        """Every view is served, or its flow says why it has nothing to serve."""
        return all(
            view.content or view.problem or self.flow_state(view.name).state in ("stopped", "retrying") for view in self
        )

    def absorbed(self, name: str) -> tuple[Frontier, bool]:
        """What a view has absorbed of the door's streams, and whether it lags because of load: not where it is not
        loaded, and not where a flow on its way is starting, being rebuilt or held up."""
        view = self.view(name)
        above, waiting = {name}, [name]
        while waiting:
            node = self.application.flow(waiting[0]) or self.application.view(waiting[0])
            more = [i for i in node.inputs if self.application.flow(i) and i not in above] if node else []
            waiting = waiting[1:] + more
            above.update(more)
        return view.frontier, view.content is not None and all(self.flow_state(n).state == "running" for n in above)

    # Waiting for events to be absorbed

    def downstream(self, stream: str) -> list[View]:
        """The views that read this stream, directly or through flows."""
        return [view for view in self if stream in self.application.roots(view.name)]

    async def wait_absorbed(self, position: Position, timeout_s: float) -> dict[str, dict[str, Any]]:
        """Wait until every view downstream has absorbed `position`, at most `timeout_s`; say which have.

        For `ack=applied` and `GET /acks`: `{"topics": {"applied": True, "position": token or None}}`.
        """
        views = self.downstream(position.name)
        waits = (view.until(lambda view=view: covers(view.frontier, position), timeout_s) for view in views)  # type: ignore[misc]
        applied = await asyncio.gather(*waits)
        return {
            view.name: {"applied": done, "position": view.content.position.token() if view.content else None}
            for view, done in zip(views, applied, strict=True)
        }

    async def wait_after(self, view: View, position: Position, timeout_s: float) -> None:
        """Return when `view` has absorbed `position`. Raises `NotYetError` with the frontier when time is up."""
        self.check_reads(view.name, position.name, hint="pass the ack of an event that this view is made from")
        if not await view.until(lambda: covers(view.frontier, position), timeout_s):
            raise NotYetError(
                f"the view '{view.name}' has not absorbed this event within {timeout_s:g} s",
                detail=f"its frontier is {frontier_body(view.frontier)}",
                hint="ask again with a longer wait=, or look at `penstock status` for the state of its flow",
            )

    def check_reads(self, view: str, stream: str, hint: str) -> None:
        """Raises `BadRequestError` when a view does not read a stream, directly or through flows."""
        roots = self.application.roots(view)
        if stream not in roots:
            raise BadRequestError(
                f"the view '{view}' does not read the stream '{stream}'",
                detail=f"it reads {', '.join(sorted(roots))}",
                hint=hint,
            )

    # Following

    async def start(self) -> None:
        """Begin to load and follow; needs no flows and no file yet."""
        loop = asyncio.get_running_loop()
        self._tasks = [asyncio.create_task(self._follow(view), name=f"follow {view.name}") for view in self]
        self._followers.append(await asyncio.to_thread(Follower, self._log.revision, lambda: self._look(loop)))
        if self._door is not None and self.application.tables:
            look = partial(self._look_at_tables, loop, {})
            self._followers.append(await asyncio.to_thread(Follower, self._door.revision, look))

    async def stop(self) -> None:
        for follower in self._followers:
            await asyncio.to_thread(follower.close)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._threads.shutdown(wait=True)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """On the follower's thread, after each commit of the flows."""
        memory = self._log.memory()
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(self._committed, memory)

    def _look_at_tables(self, loop: asyncio.AbstractEventLoop, seen: dict[str, int]) -> None:
        """On its follower's thread, after each commit of the edge, most of which are events of streams."""
        assert self._door is not None
        for table in self.application.tables:
            stream = self._door.find(table.name)
            end = -1 if stream is None else self._door.bounds(stream).next_commit
            if end >= 0 and seen.get(table.name) != end:
                seen[table.name] = end
                with suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(self.wake, table.name)

    def wake(self, name: str) -> None:
        """Something was committed to this table or view."""
        self._news[name].set()

    def _committed(self, memory: Mapping[str, Any]) -> None:
        self.memory = memory
        for view in self.application.views:
            self._news[view.name].set()

    async def _follow(self, view: View) -> None:
        news = self._news[view.name]
        while True:
            await news.wait()
            news.clear()
            try:
                await self._advance(view)
                self._failures[view.name].clear()
            except OverBudgetError:
                self._over_budget(view)
                self._turn.look()
            except Exception as error:
                self._failures[view.name] = [*self._failures[view.name][1 - _STAYS :], error]
                self._turn.look()
                self.observer.emit(FollowFailed(view.name, str(error)))
                news.set()
                await asyncio.sleep(RETRY_S)

    async def _advance(self, view: View) -> None:
        """Bring a view to the end of its live build, a table to the end of what it has."""
        live = await self._live(view)
        changelog = self._changelogs.get(view.name)
        if live is None:
            return
        if changelog is None or changelog.stream.epoch != live:
            changelog = await self._load(view, live)
        if changelog is None or view.content is None:
            return
        try:
            while news := await self._in_thread(self._read, view.definition, changelog, view.content):
                await self._apply_all(view, view.content, news)
                if len(news) < COMMITS_AT_ONCE:
                    break  # what was committed meanwhile is told by the follower
        except PositionGoneError:  # compaction overtook this edge, which slept: begin from the compacted commit
            await self._load(view, live)
        if any(isinstance(self.application.flow(name), FlowDef) for name in view.definition.inputs):
            view.absorb(await self._frontier(view.definition, view.content))

    async def _live(self, view: View) -> str | None:
        """The epoch that is served."""
        if not isinstance(view.definition, TableDef):
            return self.memory.get(control_keys.live(view.name))
        if view.name in self._changelogs:  # a table is never built anew
            return self._changelogs[view.name].stream.epoch
        stream = await self._in_thread(self._log_of(view.definition).find, view.name)
        return stream.epoch if stream is not None else None

    def _log_of(self, definition: Shown) -> LogReader:
        assert self._door is not None or isinstance(definition, ViewDef)
        return self._door if self._door is not None and isinstance(definition, TableDef) else self._log

    async def version(self, view: View, key: Key, at_us: int) -> Row | None:
        """The row of a table that a key had at a time; None: there was none, or it is not kept any more."""
        table = view.definition
        assert isinstance(table, TableDef)
        log = self._log_of(table)
        stream = await self._in_thread(log.find, view.name)
        return None if stream is None else await self._in_thread(version_at, log, stream, table, key, at_us)

    async def _load(self, view: View, epoch: str) -> Changelog | None:
        began, log = self._clock.monotonic(), self._log_of(view.definition)
        stream = await self._in_thread(log.find, view.name, epoch)
        if stream is None or stream.epoch != epoch:
            return None
        shown = shown_epoch(stream.epoch, self.application, view.definition)
        changelog = Changelog(view.definition, stream, log, self.limits, shown)
        try:
            content = await self._in_thread(changelog.load, self.memory)
        except OverBudgetError:
            self._changelogs[view.name] = changelog  # not tried again until another build is live
            raise
        frontier = await self._frontier(view.definition, content)
        self._changelogs[view.name] = changelog  # with its content or not at all: one is never read on into another
        view.replace(content, frontier)
        self._turn.look()
        self.observer.emit(ViewLoaded(view.name, epoch, len(content.rows), self._clock.monotonic() - began))
        return changelog

    def _read(self, definition: Shown, changelog: Changelog, content: Content) -> list[tuple[Decoded, Frontier]]:
        """In a thread: the next commits, each with the frontier behind it."""
        news, meta = [], content.meta
        for commit in changelog.more(content.offset):
            meta = commit.meta or meta
            news.append((commit, self._composed(definition, content.epoch, commit.end, meta)))
        return news

    def _composed(self, definition: Shown, epoch: str, offset: int, meta: BatchMeta | None) -> Frontier:
        """What was absorbed at an offset; of a table that is what it holds."""
        name = definition.name
        if isinstance(definition, TableDef):
            return {name: Position("view", name, epoch, (offset,))}
        return self._composer.compose(name, meta)

    async def _apply_all(self, view: View, content: Content, news: list[tuple[Decoded, Frontier]]) -> None:
        """Small commits in one step of the loop, so that subscribers get them together; the history keeps all of
        them until then."""
        began, applied = content.offset, 0
        for commit, frontier in news:
            if commit.merged:
                raise PositionGoneError(f"the changelog of '{view.name}' was compacted")
            full = applied + len(commit.ops) > PREPARE_CHANGES or content.history.start >= began
            if content.offset > began and full:
                await asyncio.sleep(0)
                began, applied = content.offset, 0
            applied += len(commit.ops)
            await self._apply(view, content, commit, frontier)
            if content.bytes > self.limits.view_bytes:
                raise OverBudgetError(view.name)

    async def _apply(self, view: View, content: Content, commit: Decoded, frontier: Frontier) -> None:
        facts = (commit.end, commit.ops, commit.meta, commit.written_us)
        large = len(commit.ops) > PREPARE_CHANGES
        batch = await self._in_thread(content.prepare, *facts) if large else content.prepare(*facts)
        swap = len(batch.changes) > SWAP_CHANGES
        rows = await self._in_thread(content.changed_copy, batch.changes) if swap else None
        step = commit.meta.step if commit.meta else None
        await self._turn.show(view.name, step, lambda: view.apply(batch, rows, frontier), view.wake)
        await content.orders.settle()
        accepted = commit.meta.accepted_us if commit.meta else None
        freshness = None if accepted is None else max(0.0, (self._clock.now_us() - accepted) / 1e6)
        if freshness is not None:
            self.freshness_s.append(freshness)
        self.observer.emit(BatchApplied(view.name, len(batch.changes), freshness))

    def _follows(self, name: str, place: Place) -> bool:
        """Whether a view is on its way to a place of its changelog."""
        view = self._views.get(name)
        content = view.content if view is not None else None
        return (
            content is not None
            and not self._failures[name]
            and content.epoch == place[0]
            and content.offset < place[1]
            and self.memory.get(control_keys.live(name)) == place[0]
        )

    async def _frontier(self, definition: Shown, content: Content) -> Frontier:
        return await self._in_thread(self._composed, definition, content.epoch, content.offset, content.meta)

    def _over_budget(self, view: View) -> None:
        rows, size = (len(view.content.rows), view.content.bytes) if view.content else (0, 0)
        view.give_up()
        self.observer.emit(ViewOverBudget(view.name, rows, size, self.limits.view_bytes))

    async def _in_thread(self, call: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments)

    def _measure(self) -> None:
        self.observer.gauge(
            "penstock_flows_running",
            "1 while the query of a flow or view runs, 0 while it is starting, retrying, rebuilding or stopped.",
            ("flow",),
            lambda: {(n.name,): float(self.flow_state(n.name).state == "running") for n in self.application.nodes},
        )
        self.observer.gauge(
            "penstock_flows_restarts",
            "Times that a flow's query was started again in this run.",
            ("flow",),
            lambda: {(n.name,): float(self.flow_state(n.name).restarts) for n in self.application.nodes},
        )
        self.observer.gauge(
            "penstock_views_rows",
            "Rows of a view.",
            ("view",),
            lambda: {(view.name,): float(len(view.content.rows)) if view.content else 0.0 for view in self},
        )
        self.observer.counter(
            "penstock_views_filter_errors_total",
            "Rows on which a reader's filter could not be evaluated.",
            ("view",),
            lambda: {(view.name,): float(view.filter_errors[0]) for view in self},
        )
        self.observer.gauge(
            "penstock_views_history_bytes",
            "Changes that a view keeps for resuming subscribers.",
            ("view",),
            lambda: {(view.name,): float(view.content.history.bytes) if view.content else 0.0 for view in self},
        )


def covers(frontier: Frontier, position: Position) -> bool:
    """Whether everything before `position` of its stream has been absorbed."""
    reached = frontier.get(position.name)
    return reached is not None and reached.covers(position)


def _silent_error(writer: Writer) -> FlowsSilentError:
    silent = "yet" if writer.silent_s is None else f"for {writer.silent_s:.0f} s"
    return FlowsSilentError(
        f"nothing was heard of the flows {silent}",
        detail=f"{writer.by} wrote their log last, since {rfc3339(writer.since_us)}",
        hint="see whether that process runs, and start it there or elsewhere: penstock flows",
    )


def _follow_error(view: str, error: Exception) -> PenstockError:
    if isinstance(error, PenstockError):
        return error
    return FlowError(
        f"the view '{view}' cannot be brought up to date: {type(error).__name__}: {error}",
        hint="it is tried again every second, and what it had absorbed is served; logs/edge.log has more",
    )


def row_tag(row: Row) -> str:
    """The ETag of a table's row: what it says, so that the same row has the same one after a restart."""
    return f'"{hashlib.blake2b(msgspec.json.encode(row), digest_size=12).hexdigest()}"'


@dataclass(frozen=True, slots=True)
class RowAt:
    """A view's row in JSON's types, and the view's position."""

    row: Mapping[str, Any] | None
    position: str


class RowsAfter:
    """Finds the row that an event has led to, for senders that wait for a view's answer. Belongs to the edge's loop."""

    def __init__(self, views: Views) -> None:
        self._views = views

    def key(self, name: str, stream: str) -> tuple[str, ...]:
        """The columns by which a view's rows are found. Raises `UnknownViewError`, and `BadRequestError` when the view
        does not read the stream."""
        view = self._views.view(name)
        self._views.check_reads(name, stream, hint="ask for a view that is made from these events")
        return view.content.key if view.content else view.definition.key

    def rule(self, view: str, reader: Reader) -> ReadRule:
        """What `reader` may see of a view. Raises `ForbiddenError` when it lacks a claim, and `UnknownViewError`."""
        return read_rule(reader, view, self._views.view(view).definition.visible_where)

    def row(self, view: View, key: Key, rule: ReadRule) -> Mapping[str, Any] | None:
        """The row of this key as it is now; None when there is none, or none that may be seen."""
        return _row(view, key, rule).row

    async def row_at(self, view: View, key: Key, at_us: int, rule: ReadRule) -> Mapping[str, Any] | None:
        """The row of a table that this key had at a time."""
        return _shown(view, await self._views.version(view, key, at_us), rule).row

    async def after(
        self, name: str, key: Mapping[str, Any], position: Position, wait_s: float, reader: Reader
    ) -> RowAt | None:
        """The row at the first commit that has absorbed `position`; None when that was not within `wait_s`.

        A row that is hidden from `reader` is None. Raises `ForbiddenError` where nothing is visible to it.
        """
        view = self._views.view(name)
        answer: asyncio.Future[RowAt] = asyncio.get_running_loop().create_future()

        def look() -> None:
            """Called inside the step that makes a commit visible, so that no later one can be seen."""
            if not answer.done() and covers(view.frontier, position):
                try:
                    answer.set_result(_row(view, _key_in(view, key), rule))
                except ForbiddenError as error:
                    answer.set_exception(error)

        rule = self.rule(name, reader)
        stop = view.listen(look)
        try:
            look()
            async with asyncio.timeout(wait_s):
                return await answer
        except TimeoutError:
            return None
        finally:
            stop()


def _key_in(view: View, key: Mapping[str, Any]) -> Key:
    assert view.content is not None  # it has a frontier
    return tuple(frozen(key.get(name)) for name in view.content.key)


def _row(view: View, key: Key, rule: ReadRule) -> RowAt:
    assert view.content is not None
    return _shown(view, view.content.rows.get(key), rule)


def _shown(view: View, row: Row | None, rule: ReadRule) -> RowAt:
    content = view.content
    assert content is not None
    query = parse_ruled(rule, content.columns, content.key, errors=view.filter_errors)
    names = [column.name for column in query.output]
    visible = row is not None and query.passes(row)
    return RowAt(wire_row(names, query.project(row)) if visible and row else None, content.position.token())
