"""Runs a handler over the changes of a view: receives and stores on one side, handles what is stored on the other.

1. A batch is stored before anything of it is handled, and the position from which to go on is stored with it.
2. Receiving does not wait for handling, up to `backlog` tasks: a slow handler does not make a slow reader.
3. Tasks of one key are handled one after the other, of different keys up to `at_once` at a time.
4. A handler that fails is tried again, ever later, for as long as it takes or until `give_up_after`; other keys go on
   meanwhile, later changes of its own key wait.
5. Whoever loses the store ends, or stands by again; it handles nothing in between.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from threading import Event
from typing import Any, TypedDict, get_args

from penstock.client.backoff import FIRST_S, Backoff
from penstock.client.processing.change_feed import ChangeFeed
from penstock.client.processing.handler_run import AsyncContext, Confirm, Context, HandlerRun, Wiring, in_thread
from penstock.client.processing.outgoing_call import HttpSender
from penstock.client.processing.work import Each, KeyChange, On, ProcessorQuestion, Progress, Received, Resumed, Task
from penstock.client.processing.work_store import WorkStore
from penstock.client.verdict import TransientFailure
from penstock.clock import Clock, SystemClock
from penstock.errors import BadRequestError, PenstockError, StoreFencedError, StoreHeldError, StoreMismatchError

Handler = Callable[[Any, Any], Any]
"""`handler(change, ctx)`, or `handler(changes, ctx)` with `each="batch"`; a coroutine function too."""
IDLE_S = 1.0
"""How often the store is looked at for a task that somebody has opened again."""
STOP_S = 0.05
"""How often `stop` is looked at."""
_LEAST_S = 0.005
_REPORT_S = 1.0
"""`on_progress` is called once in so many seconds at most."""
_STANDBY_S = 0.5
_AWAY_S = 5.0
"""The longest pause before the server is asked again for the view's key."""
_STORM_S = 5.0
"""The longest pause of all tasks together, when one after the other fails."""
_log = logging.getLogger("penstock.process")


class ProcessOptions(TypedDict, total=False):
    """The options of `client.process`, beside the question; docs/reference/processing.md says what each means."""

    on: On
    each: Each
    existing: bool
    confirm: Confirm | None
    give_up_after: int | None
    on_error: Callable[[Task, BaseException, int], None] | None
    on_progress: Callable[[Progress], None] | None
    once: bool
    standby: bool
    stop: Event | None
    timeout_s: float
    settle_s: float
    backoff_most_s: float
    backlog: int
    at_once: int
    tls: ssl.SSLContext | None
    clock: Clock
    random: Random


@dataclass(frozen=True)
class Options:
    """How a processor works; what it asks of its view is in the `ProcessorQuestion`."""

    on: On = "changes"
    """`upserts`: the handler is told of rows that are new or changed, never of deletes."""
    each: Each = "row"
    """`batch`: the handler gets the changes of one batch at once."""
    existing: bool = True
    """Hand over the rows that are there when this processor first starts."""
    confirm: Confirm | None = None
    """Asked about a call that was cut off: gives its answer, `NOT_APPLIED`, or None when that is not known."""
    give_up_after: int | None = None
    """So many failures move a task aside; None: it is tried for ever."""
    on_error: Callable[[Task, BaseException, int], None] | None = None
    """Told of each failure of a task: what, why, how many times by now."""
    on_progress: Callable[[Progress], None] | None = None
    """Told how far it is, once a second while there is something to tell."""
    once: bool = False
    """End when everything that the view has now is done or given up."""
    standby: bool = False
    """Wait for a store that another process owns, and again if it is lost, instead of raising."""
    stop: Event | None = None
    """Set it, and the processor ends after the task that is under way."""
    timeout_s: float = 10.0
    """How long an outgoing call may take."""
    settle_s: float = 1.0
    """How long to wait after a call was cut off before `confirm` is asked: what was on its way has arrived by then."""
    backoff_most_s: float = 60.0
    backlog: int = 10_000
    """Receiving waits while more tasks than this are stored."""
    at_once: int = 1
    """How many tasks are handled at the same time; those of one key never are."""
    tls: ssl.SSLContext | None = None
    """For outgoing calls."""
    clock: Clock = field(default_factory=SystemClock)
    random: Random = field(default_factory=Random)

    def __post_init__(self) -> None:
        for name, value, words in (("on", self.on, get_args(On)), ("each", self.each, get_args(Each))):
            if value not in words:
                raise BadRequestError(f"{name}='{value}' is not known", hint=f"use one of {', '.join(words)}")
        if self.at_once < 1 or self.backlog < 1:
            raise BadRequestError("'at_once' and 'backlog' must be at least 1")


class Processor:
    """One handler over one view with one store."""

    def __init__(self, feed: ChangeFeed, handler: Handler, store: WorkStore, options: Options | None = None) -> None:
        self._feed, self._handler, self._store = feed, handler, store
        self._options = options or Options()
        self._is_async = _is_async(handler)
        self._storm = Backoff(_STORM_S, self._options.random)
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._level = False
        self._open = 0
        """About how many tasks wait: counted here, and asked of the store only when that seems too many."""
        self._busy: set[int] = set()
        self._picking = asyncio.Lock()
        self._due_us: dict[int, int] = {}
        """When the tasks that this process has put back are due, by number."""

    async def run(self, where: str | None = None, params: Any = None, select: Sequence[str] | None = None) -> Progress:
        """Until stopped, cancelled or level (`once`); how far it then is. The store is released, not closed."""
        key = await self._key()
        if key is None:
            return await in_thread(self._store.progress)
        columns = None if select is None else tuple(select)
        question = ProcessorQuestion(self._feed.view, key, where, params, columns, self._options.on, self._options.each)
        while True:
            try:
                resumed = await self._own(question)
                if resumed is not None:
                    await self._owning(resumed, question)
                return await in_thread(self._store.progress)
            except StoreFencedError as error:
                if not self._options.standby:
                    raise
                _log.warning("%s; standing by", error)
            finally:
                await in_thread(self._store.release)

    async def _key(self) -> tuple[str, ...] | None:
        """The view's key; a server that is away or busy is waited for, unless this is a job. None: told to stop."""
        backoff, warned = Backoff(_AWAY_S, self._options.random), False
        while not self._stopped():
            try:
                return await self._feed.key()
            except TransientFailure as failure:
                if self._options.once:
                    raise failure.why from None
                if not warned:
                    _log.warning("waiting for the server of '%s': %s", self._feed.view, failure.why)
                    warned = True
                await self._pause(backoff.pause_s(failure.why.retry_after_s), for_news=False)
        return None

    # Ownership

    async def _own(self, question: ProcessorQuestion) -> Resumed | None:
        """None: told to stop before it was our turn."""
        logged = False
        while not self._stopped():
            resumed: Resumed | None = await in_thread(self._store.acquire, question)
            if resumed is not None:
                return resumed
            if not self._options.standby:
                raise StoreHeldError(
                    "another process owns this store under this name",
                    hint="end it, give this processor a name of its own, or let it wait with standby=True",
                )
            if not logged:
                _log.info("another process owns the store: standing by")
                logged = True
            await asyncio.sleep(_STANDBY_S)
        return None

    async def _owning(self, resumed: Resumed, question: ProcessorQuestion) -> None:
        """Everything at once; the first that ends, ends the rest."""
        self._level = False
        self._busy.clear()
        self._due_us.clear()  # to a new owner all tasks are due
        self._open = await in_thread(self._store.waiting)
        wiring = self._wiring(resumed)
        workers = [asyncio.create_task(self._work(wiring)) for _ in range(self._options.at_once)]
        parts = [
            *workers,
            asyncio.create_task(self._receive(resumed.position, question.key)),
            asyncio.create_task(self._report()),
        ]
        if self._store.lease_s is not None:
            parts.append(asyncio.create_task(self._renew(self._store.lease_s)))
        try:
            while not all(worker.done() for worker in workers):
                done, rest = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
                for part in done:
                    part.result()
                parts = list(rest)
        finally:
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)

    def _wiring(self, resumed: Resumed) -> Wiring:
        options = self._options
        return Wiring(
            store=self._store,
            sender=HttpSender(options.tls),
            confirm=options.confirm,
            loop=asyncio.get_running_loop(),
            term=resumed.term,
            timeout_s=options.timeout_s,
            settle_s=options.settle_s,
        )

    async def _renew(self, lease_s: float) -> None:
        while True:
            await asyncio.sleep(lease_s / 3)
            await in_thread(self._store.renew)

    # Receiving

    async def _receive(self, position: str | None, key: tuple[str, ...]) -> None:
        batches = self._feed.level(position) if self._options.once else self._feed.watch(position)
        silent = position is None and not self._options.existing
        try:
            async for changes in batches:
                if changes.reset:
                    _log.warning("'%s' was reset (%s): only what differs is handed over", changes.view, changes.reset)
                    if not await self._check_key(key):
                        return
                received = Received(changes, self._options.clock.now_us(), silent)
                silent = False
                self._open += await in_thread(self._store.take, received)
                self._news.set()
                await self._until_room()
        finally:
            await batches.aclose()
        self._level = True
        self._news.set()

    async def _check_key(self, key: tuple[str, ...]) -> bool:
        """A rebuilt view may have another key, under which what is remembered cannot be found. False: told to stop."""
        now = await self._key()
        if now is not None and now != key:
            raise StoreMismatchError(
                f"the key of '{self._feed.view}' is now {', '.join(now)}, and was {', '.join(key)}",
                hint="start a processor with another name; it will know nothing of what was handled before",
            )
        return now is not None

    async def _until_room(self) -> None:
        while self._open > self._options.backlog:
            self._room.clear()
            self._open = await in_thread(self._store.waiting)
            if self._open > self._options.backlog:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._room.wait(), IDLE_S)

    # Handling

    async def _work(self, wiring: Wiring) -> None:
        while not self._stopped():
            level = self._level
            self._news.clear()
            task = await self._pick()
            if task is not None:
                self._news.set()  # there may be more for the others
                await self._handle(task, wiring)
                self._busy.discard(task.number)
                self._news.set()  # and now for those of the same key
            elif level and await in_thread(self._store.waiting) == 0:
                return
            else:
                await self._pause(self._idle_s())

    async def _pick(self) -> Task | None:
        """The next task, which is then busy."""
        async with self._picking:
            task = await in_thread(self._store.next, self._now_us(), frozenset(self._busy))
            if task is not None:
                self._busy.add(task.number)
            return task

    def _now_us(self) -> int:
        """When tasks are due is told by the monotonic clock: setting the wall clock back would put them off."""
        return int(self._options.clock.monotonic() * 1_000_000)

    def _idle_s(self) -> float:
        """Until the next task is due, as far as that is known."""
        left_us = min(self._due_us.values(), default=2**62) - self._now_us()
        return min(IDLE_S, max(_LEAST_S, left_us / 1_000_000))

    async def _handle(self, task: Task, wiring: Wiring) -> None:
        self._due_us.pop(task.number, None)
        try:
            run = await in_thread(HandlerRun, task, wiring)
            try:
                await self._call(task, run, wiring.term)
            finally:
                await run.close()
            run.check_done()
        except StoreFencedError:
            raise
        except Exception as error:
            await self._failed(task, error)
        else:
            await in_thread(self._store.finish, task)
            wiring.forget(task)
            self._storm.succeeded()
            self._open -= 1
            self._room.set()

    async def _call(self, task: Task, run: HandlerRun, term: int) -> None:
        changes: KeyChange | tuple[KeyChange, ...] = task.changes if self._options.each == "batch" else task.changes[0]
        if self._is_async:
            await self._handler(changes, AsyncContext(task, run, term))
        else:
            result = await in_thread(self._handler, changes, Context(task, run, term))
            if inspect.isawaitable(result):
                if inspect.iscoroutine(result):
                    result.close()
                raise BadRequestError(
                    "the handler is a plain function and returned something to be awaited",
                    hint="pass the coroutine function itself, not a function around it",
                )

    async def _failed(self, task: Task, error: Exception) -> None:
        """Put the task back or aside, tell of it, and pause: others may meet the same trouble."""
        tries, options = task.tries + 1, self._options
        text = _text_of(error)
        if options.give_up_after is not None and tries >= options.give_up_after:
            await in_thread(self._store.give_up, task, tries, text)
            _log.error("task %s was given up after %d tries: %s", task.key, tries, text)
        else:
            most_s = min(options.backoff_most_s, FIRST_S * 2 ** min(task.tries, 30))
            due_us = self._now_us() + int(options.random.uniform(0.5, 1.0) * most_s * 1_000_000)
            await in_thread(self._store.put_back, task, tries, text, due_us)
            self._due_us[task.number] = due_us
            _log.warning("task %s failed, try %d: %s", task.key, tries, text)
        if options.on_error is not None:
            options.on_error(task, error, tries)
        await self._pause(self._storm.pause_s(), for_news=False)

    async def _pause(self, seconds: float, for_news: bool = True) -> None:
        """Until then, until there is news, or until told to stop."""
        clock = self._options.clock
        until = clock.monotonic() + seconds
        slice_s = seconds if self._options.stop is None else STOP_S
        while (left := until - clock.monotonic()) > 0 and not self._stopped():
            if not for_news:
                await asyncio.sleep(min(left, slice_s))
            else:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._news.wait(), min(left, slice_s))
                    return

    async def _report(self) -> None:
        """Also while a handler does not come to an end."""
        last: Progress | None = None
        while self._options.on_progress is not None:
            progress = await in_thread(self._store.progress)
            if progress != last or progress.waiting:
                last = progress
                self._options.on_progress(progress)
            await asyncio.sleep(_REPORT_S)

    def _stopped(self) -> bool:
        return self._options.stop is not None and self._options.stop.is_set()


def _text_of(error: BaseException) -> str:
    if isinstance(error, PenstockError):
        return error.paragraph()
    return f"{type(error).__name__}: {error}"


def _is_async(handler: Handler) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)
