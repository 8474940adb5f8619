"""Joins the appends of many callers into few commits, so that they share the fsync, on the one thread that writes.

1. Whatever waits when a commit ends goes into the next one; an append that finds the log idle is written at once.
2. Appends are written in the order in which they were submitted.
3. What a commit fails with goes to each of its callers, and writing goes on. A caller whose append cannot be written
   at all (its columns are wrong) fails alone.
4. What waits is bounded: above it `OverloadedError` is raised at once, and nothing was taken.
5. Housekeeping runs on the same thread, one slice between two commits, so it never holds up more than one.
6. Nobody waits for ever: after `give_up_s` a caller gets `OutcomeUnknownError`, and its append goes on. What such a
   caller does again must be of a kind that is taken once, or require that the first was not taken. With `withdraw` an
   append that still waits for its turn is taken back then, and its caller gets `LogUnavailableError`.
7. `problem` says whether the log can be written to. A log that refused a commit is tried again while nobody asks for
   anything: whoever keeps senders away until it is well would otherwise wait for ever.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, TypeVar

from penstock.errors import (
    DiskFullError,
    LogUnavailableError,
    OutcomeUnknownError,
    OverloadedError,
    PenstockError,
    StaleTermError,
)
from penstock.log.log import Append, Appended, Log

T = TypeVar("T")
Results = list[Appended | Exception]

UNWRITTEN_BYTES = 128 * 1024**2
COMMIT_BYTES = 16 * 1024**2
"""What goes into one commit at most: about 30 ms of writing, so that the next caller does not wait for ever."""
_logger = logging.getLogger(__name__)

TIDY_S = 1.0
"""How long the log must be idle before it is looked through for things to tidy up."""
GIVE_UP_S = 20.0
"""How long a caller waits: less than most clients do, so that they hear what is the matter, and longer than any commit
that a disk takes which works."""
CLOSE_S = 3.0
"""What the last commits get before one whose outcome is not known is abandoned."""
STALLED_S = 10.0
"""A commit that takes so long is not going to end soon: the disk hangs."""
_TRIED = "tried"
"""The key of the control stream that is written to see whether writing works again."""

_SHARED = (DiskFullError, LogUnavailableError, StaleTermError)
"""Failures of the log itself: no caller is to blame, and trying each alone would only fail as often."""


class _Waiting:
    """One submission on its way to the log, and who waits for it: a thread, or a task of `loop`."""

    __slots__ = ("appends", "future", "hidden", "loop", "since_s", "size", "told")

    def __init__(
        self,
        appends: Sequence[Append],
        remember: Mapping[str, Any | None],
        future: Future[Results] | asyncio.Future[Results],
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.appends = [Append(sets=remember), *appends] if remember else appends
        self.hidden = len(self.appends) - len(appends)
        """Of these, how many at the beginning its caller does not know of."""
        self.future = future
        self.loop = loop
        self.since_s = time.monotonic()
        self.told = False
        """Its caller waits no longer: it knows, or was told that nobody does."""
        self.size = sum(append.batch.get_total_buffer_size() for append in appends)  # `nbytes` takes 40 times as long


class GroupCommit:
    """The owner of a log's writer. Any thread may submit; `close` writes what waits and ends the thread."""

    def __init__(
        self,
        log: Log,
        *,
        unwritten_bytes: int = UNWRITTEN_BYTES,
        commit_bytes: int = COMMIT_BYTES,
        give_up_s: float = GIVE_UP_S,
        withdraw: bool = False,
    ) -> None:
        self._log = log
        self._withdraw = withdraw
        self._stalled_s = min(STALLED_S, give_up_s)
        self._give_up_s = give_up_s
        self._unwritten_bytes = unwritten_bytes
        self._commit_bytes = commit_bytes
        self._wake = threading.Condition()
        self._queue: deque[_Waiting] = deque()
        self._writing: Sequence[_Waiting] = ()
        self._calls: deque[Iterator[None]] = deque()
        self._slices: deque[Iterator[None]] = deque()
        self._unwritten = 0
        self._closing = False
        self._untidy = True
        self._failure: PenstockError | None = None
        self._began: float | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._live, name="group-commit", daemon=True)
        self._thread.start()
        threading.Thread(target=self._keep_watch, name="group-commit-watch", daemon=True).start()

    @property
    def unwritten_bytes(self) -> int:
        """What waits for the log now."""
        return self._unwritten

    @property
    def is_closing(self) -> bool:
        return self._closing

    @property
    def problem(self) -> PenstockError | None:
        """Why the log cannot be written to now; None: as far as is known it can."""
        began = self._began
        if began is not None and time.monotonic() - began > self._stalled_s:
            return LogUnavailableError(
                f"a commit has taken more than {self._stalled_s:g} s",
                hint="see whether the disk of the data folder hangs, or Kafka does not answer",
            )
        return self._failure or self._log.problem

    def submit(self, appends: Sequence[Append], remember: Mapping[str, Any | None] | None = None) -> Future[Results]:
        """Append in the next commit: the future holds one result per append, as `Log.append` gives them."""
        future: Future[Results] = Future()
        self._enqueue(_Waiting(appends, remember or {}, future))
        return future

    def append(self, appends: Sequence[Append]) -> asyncio.Future[Results]:
        """The same from an asyncio loop: on their way when this returns, before anybody awaits it."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Results] = loop.create_future()
        self._enqueue(_Waiting(appends, {}, future, loop))
        return future

    def run(self, work: Callable[[], T]) -> Future[T]:
        """Call something on the writer's thread, between two commits and before any slices that wait."""
        future: Future[T] = Future()
        self._add(self._calls, _once(work, future))
        return future

    def sliced(self, steps: Iterator[int]) -> Future[int]:
        """Go through the steps of `trimming`, `compacting` or `dropping`, one between two commits; gives their sum."""
        future: Future[int] = Future()
        self._add(self._slices, _summed(steps, future))
        return future

    def close(self) -> None:
        """Write what waits, finish the chores, end the thread. Later submissions are refused."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            self._log.abandon()
            self._thread.join()
        self._closed.set()

    # Taking

    def _enqueue(self, waiting: _Waiting) -> None:
        with self._wake:
            self._refuse_when_closed()
            if self._unwritten and self._unwritten + waiting.size > self._unwritten_bytes:
                raise OverloadedError(
                    "too much waits for the log",
                    detail=f"{self._unwritten} bytes wait, {self._unwritten_bytes} may",
                    hint="send again in a moment",
                )
            self._unwritten += waiting.size
            self._queue.append(waiting)
            self._wake.notify()

    def _add(self, chores: deque[Iterator[None]], chore: Iterator[None]) -> None:
        with self._wake:
            self._refuse_when_closed()
            chores.append(chore)
            self._wake.notify()

    def _refuse_when_closed(self) -> None:
        if self._closing:
            raise LogUnavailableError("the log is being closed", hint="send again when it is back")
        if not self._thread.is_alive():
            raise _ended()

    # Writing

    def _live(self) -> None:
        try:
            self._work()
        except BaseException:
            _logger.exception("the log's writer has ended")
            self._failure = _ended()
            with self._wake:
                waiting = list(self._queue)
                self._queue.clear()
            self._settle([(each, None, _ended()) for each in waiting])

    def _work(self) -> None:
        while True:
            with self._wake:
                while not (self._queue or self._calls or self._slices or self._closing):
                    if not self._wake.wait(TIDY_S if self._untidy or self._may_recover else None):
                        self._when_idle()
                batch = self._writing = self._take()
                chores = self._calls or self._slices
                if not batch and not chores:
                    return
            if batch:
                self._commit(batch)
            if chores and _is_over(chores[0]):
                chores.popleft()

    def _take(self) -> list[_Waiting]:
        """What goes into the next commit: all that waits, up to a size, and one `meta` per stream."""
        batch: list[_Waiting] = []
        size = 0
        metas: set[tuple[str, str]] = set()
        while self._queue and (not batch or size + self._queue[0].size <= self._commit_bytes):
            theirs = {
                (a.stream.name, a.stream.epoch) for a in self._queue[0].appends if a.meta is not None and a.stream
            }
            if metas & theirs:
                break
            metas |= theirs
            size += self._queue[0].size
            batch.append(self._queue.popleft())
        return batch

    @property
    def _may_recover(self) -> bool:
        return self._failure is not None and self._failure.retry

    def _when_idle(self) -> None:
        if self._may_recover:
            self._calls.append(_once(self._try_again, Future()))
        elif self._untidy:
            self._tidy_up()

    def _try_again(self) -> None:
        """See whether a commit works again, for want of a caller who would."""
        self._append([Append(sets={_TRIED: time.time_ns() // 1000})])

    def _append(self, appends: Sequence[Append]) -> Results:
        """`Log.append`, and what it says of the log itself."""
        self._began = time.monotonic()
        try:
            results = self._log.append(appends)
        except _SHARED as error:
            self._failure = error
            raise
        finally:
            self._began = None
        self._failure = None
        return results

    def _tidy_up(self) -> None:
        self._untidy = False
        future: Future[int] = Future()
        future.add_done_callback(_warn)
        self._slices.append(_summed(self._log.tidying(), future))

    def _commit(self, batch: Sequence[_Waiting]) -> None:
        try:
            results = self._append([append for waiting in batch for append in waiting.appends])
        except Exception as error:
            if len(batch) == 1 or isinstance(error, _SHARED):
                self._settle([(waiting, None, error) for waiting in batch])
            else:
                for waiting in batch:
                    self._commit([waiting])
        else:
            self._untidy = True
            self._settle(list(_shared_out(batch, results)))

    def _settle(self, outcomes: Sequence[_Outcome]) -> None:
        with self._wake:
            for waiting, _, _ in outcomes:
                self._unwritten -= waiting.size
                waiting.told = True
        _tell(outcomes)

    # Giving up

    def _keep_watch(self) -> None:
        while not self._closed.wait(self._give_up_s / 20):
            self._give_up(time.monotonic() - self._give_up_s)

    def _give_up(self, due_s: float) -> None:
        """Let those go who wait since then or longer."""
        if self._withdraw:
            self._take_back(due_s)
        with self._wake:
            late = [each for each in (*self._writing, *self._queue) if each.since_s <= due_s and not each.told]
            for each in late:
                each.told = True
        if late:
            _logger.error("%d callers were told after %g s that their outcome is unknown", len(late), self._give_up_s)
        _tell([(each, None, _unknown(self._give_up_s)) for each in late])

    def _take_back(self, due_s: float) -> None:
        """What nobody has begun to write is not written, and its callers know that."""
        with self._wake:
            old = [each for each in self._queue if each.since_s <= due_s]
            for each in old:
                self._queue.remove(each)
        why = self.problem
        refused = LogUnavailableError(
            "the log takes nothing now, and nothing of this was taken",
            detail=why.message if why else None,
            hint="send the same again in a while",
        )
        self._settle([(each, None, refused) for each in old])


_Outcome = tuple[_Waiting, Results | None, Exception | None]


def _tell(outcomes: Sequence[_Outcome]) -> None:
    """Wake everybody; the tasks of one loop by one call, because waking a loop costs a system call."""
    loops: dict[asyncio.AbstractEventLoop, list[_Outcome]] = {}
    for outcome in outcomes:
        if outcome[0].loop is None:
            _resolve(outcome)
        else:
            loops.setdefault(outcome[0].loop, []).append(outcome)
    for loop, theirs in loops.items():
        with suppress(RuntimeError):  # the loop has ended: nobody waits there any more
            loop.call_soon_threadsafe(_resolve_all, theirs)


async def first_taken(written: asyncio.Future[Results]) -> Appended:
    """What became of the first append of a call of `append`; the first error among all of them is raised."""
    results = await written
    for result in results:
        if isinstance(result, Exception):
            raise result
    first = results[0]
    assert isinstance(first, Appended)
    return first


def _unknown(waited_s: float) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        "the log did not answer in time: this may be written yet, or not",
        detail=f"after {waited_s:g} s",
        hint="send it again under the same event id, Idempotency-Key or Producer-Seq: then it is taken once",
    )


def _ended() -> LogUnavailableError:
    return LogUnavailableError("the log's writer has ended", hint="restart this process; its log says why")


def _shared_out(batch: Sequence[_Waiting], results: Results) -> Iterator[_Outcome]:
    at = 0
    for waiting in batch:
        yield waiting, results[at + waiting.hidden : at + len(waiting.appends)], None
        at += len(waiting.appends)


def _resolve(outcome: _Outcome) -> None:
    waiting, results, error = outcome
    if waiting.future.done():
        return
    with suppress(InvalidStateError):  # the caller has gone; its events are in the log all the same
        if error is not None:
            waiting.future.set_exception(error)
        elif results is not None:
            waiting.future.set_result(results)


def _resolve_all(outcomes: Sequence[_Outcome]) -> None:
    for outcome in outcomes:
        _resolve(outcome)


def _is_over(chore: Iterator[None]) -> bool:
    """Take one step of something that is done between commits."""
    return next(chore, _OVER) is _OVER


_OVER = object()


def _warn(tidied: Future[int]) -> None:
    if tidied.exception() is not None:
        _logger.warning("the log could not be tidied up: %s", tidied.exception())


def _once(work: Callable[[], T], future: Future[T]) -> Iterator[None]:
    if future.set_running_or_notify_cancel():  # else whoever asked has gone, and must not take the thread along
        try:
            future.set_result(work())
        except Exception as error:
            future.set_exception(error)
    yield from ()


def _summed(steps: Iterator[int], future: Future[int]) -> Iterator[None]:
    total = 0
    if not future.set_running_or_notify_cancel():
        return
    try:
        for count in steps:
            total += count
            yield
        future.set_result(total)
    except Exception as error:
        future.set_exception(error)
