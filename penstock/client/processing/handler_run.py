"""One run of a handler: what it has in its hand, and its calls, held against what earlier runs of the task have logged.

1. A call is logged before it is sent. A call whose answer is logged is answered from the log and not sent.
2. A call that was cut off is first asked about (`confirm`), not before `settle_s` have passed since: what is still on
   its way then should have arrived. If it took effect, what `confirm` says is its answer; if not, it is sent; if
   nobody knows, the task is tried again later.
3. The n-th call of every run of a task must be the same request. A handler that takes another way is stopped, because
   what its first run did can no longer be told apart from what it should do.
4. A task is done only when each of its calls was answered, also when the handler has caught the error.
5. A run has ended when none of its calls is under way any more: the next run of the task would take one that still
   travels for one that was cut off long ago, and send it a second time.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Container, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, TypeVar

import msgspec

from penstock.client.processing.outgoing_call import NOT_APPLIED, Answer, Call, HttpSender, cut_off, refusal
from penstock.client.processing.work import LoggedCall, Task, canonical
from penstock.client.processing.work_store import WorkStore
from penstock.errors import (
    BadRequestError,
    CallCutOffError,
    CallRefusedError,
    HandlerDivergedError,
    PenstockError,
    UnreachableError,
)

Target = str | Callable[..., Any]
Confirm = Callable[[Call], Any]
_log = logging.getLogger("penstock.process")


@dataclass
class Wiring:
    """What all runs of one processor share."""

    store: WorkStore
    sender: HttpSender
    confirm: Confirm | None
    loop: asyncio.AbstractEventLoop
    """Where coroutines of targets and of `confirm` run."""
    term: int
    timeout_s: float
    settle_s: float
    started: float = field(default_factory=time.monotonic)
    cut: dict[tuple[int, int], float] = field(default_factory=dict)
    """When this process last saw a call cut off, by task and number; others were cut off before it started."""

    def forget(self, task: Task) -> None:
        for cut in [cut for cut in list(self.cut) if cut[0] == task.number]:
            self.cut.pop(cut, None)


@dataclass(frozen=True, slots=True)
class CallRequest:
    """What a handler asks for."""

    target: Target
    payload: Any
    method: str
    headers: Mapping[str, str]
    accept: Container[int]
    timeout_s: float | None

    def logged(self, number: int) -> LoggedCall:
        return LoggedCall(number, _named(self.target), self.method, canonical(self.payload))


class HandlerRun:
    """Used by one run of a handler, from any of its threads."""

    def __init__(self, task: Task, wiring: Wiring) -> None:
        self._task, self._wiring = task, wiring
        self._logged = {call.number: call for call in wiring.store.calls(task)}
        self._guard = Lock()
        self._made = 0
        self._unanswered: set[int] = set()
        self._under_way: set[Future[None]] = set()
        self._closed = False
        self._diverged: HandlerDivergedError | None = None

    def number(self) -> int:
        """Of the next call: taken in the order in which the handler makes them."""
        with self._guard:
            self._check_open()
            self._made += 1
            self._unanswered.add(self._made)
            return self._made

    def call(self, number: int, request: CallRequest) -> Any:
        """Blocks. The answer, from the log or from the other side."""
        with self._travelling():
            entry = request.logged(number)
            earlier = self._earlier(entry)
            if earlier is not None and earlier.state == "answered":
                return self._answered(number, earlier.answer)
            call = self._call(entry)
            if earlier is not None and earlier.state == "open" and self._wiring.confirm is not None:
                outcome = self._confirmed(call)
                if outcome != NOT_APPLIED:
                    return self._settle(number, _as_answer(request, outcome))
            self._wiring.store.intend(self._task, entry)
            return self._settle(number, self._send(call, request))

    def once(self, number: int, make: Callable[[], Any]) -> Any:
        """A value that is made in the first run and the same in every later one."""
        with self._travelling():
            entry = LoggedCall(number, _named(make), "once", "null")
            earlier = self._earlier(entry)
            if earlier is not None and earlier.state == "answered":
                return self._answered(number, earlier.answer)
            self._wiring.store.intend(self._task, entry)
            return self._settle(number, self._result(make()))

    async def close(self) -> None:
        """On the loop, when the handler has returned or failed: refuse further calls, and wait for those under way."""
        with self._guard:
            self._closed = True
            under_way = [asyncio.wrap_future(ended) for ended in self._under_way]
        if under_way:
            await asyncio.wait(under_way)

    def check_done(self) -> None:
        """Raises unless the task may be finished."""
        if self._diverged is not None:
            raise self._diverged
        if self._unanswered:
            raise CallCutOffError(
                f"the handler has returned, but call {min(self._unanswered)} was not answered",
                hint="let its error leave the handler, or name the status in accept=",
            )
        more = sorted(number for number in self._logged if number > self._made)
        if more:
            raise self._diverge(
                f"an earlier run made call {more[0]}, {_described(self._logged[more[0]])}; this one did not"
            )

    # One call

    @contextmanager
    def _travelling(self) -> Iterator[None]:
        ended: Future[None] = Future()
        with self._guard:
            self._check_open()
            self._under_way.add(ended)
        try:
            yield
        finally:
            with self._guard:
                self._under_way.discard(ended)
            ended.set_result(None)

    def _check_open(self) -> None:
        if self._closed:
            raise BadRequestError(
                f"the handler of task {self._task.number} has ended, and something of it still makes calls",
                hint="let the handler wait for all that it has started",
            )

    def _earlier(self, entry: LoggedCall) -> LoggedCall | None:
        """The same call as an earlier run has logged it."""
        earlier = self._logged.get(entry.number)
        if earlier is not None and not earlier.same_request(entry):
            was = f"call {entry.number} was {_described(earlier)} in an earlier run"
            raise self._diverge(f"{was} and is {_described(entry)} now")
        return earlier

    def _send(self, call: Call, request: CallRequest) -> Any:
        try:
            if callable(request.target):
                self._wiring.store.ensure()
                return self._result(request.target(call))
            timeout_s = self._wiring.timeout_s if request.timeout_s is None else request.timeout_s
            body = msgspec.json.encode(request.payload)
            answer = self._wiring.sender.send(call, body, request.headers, timeout_s, self._wiring.store.ensure)
            if answer.status not in request.accept:
                raise refusal(call, answer)
            return answer
        except (UnreachableError, CallRefusedError):
            self._wiring.store.settle(self._task, call.number, "unsent", None)
            raise
        except Exception:
            self._wiring.cut[self._task.number, call.number] = time.monotonic()
            raise

    def _confirmed(self, call: Call) -> Any:
        """What the other side says of a call that was cut off."""
        assert self._wiring.confirm is not None
        since = self._wiring.cut.get((self._task.number, call.number), self._wiring.started)
        time.sleep(max(0.0, since + self._wiring.settle_s - time.monotonic()))
        outcome = self._result(self._wiring.confirm(call))
        if outcome is None:
            raise cut_off(call, "confirm does not know it either")
        _log.info("call %s to %s was cut off; confirm says: %s", call.key, call.target, outcome)
        return outcome

    def _settle(self, number: int, value: Any) -> Any:
        stored = _storable(value)
        self._wiring.store.settle(self._task, number, "answered", stored)
        return self._answered(number, stored)

    def _answered(self, number: int, stored: str | None) -> Any:
        with self._guard:
            self._unanswered.discard(number)
        return _revived(stored)

    def _call(self, entry: LoggedCall) -> Call:
        key = f"{self._task.key}/{entry.number}"
        payload = msgspec.json.decode(entry.payload)
        return Call(key, entry.number, entry.target, entry.method, payload, self._wiring.term)

    def _result(self, value: Any) -> Any:
        """The value, also of a coroutine: this is a thread beside the loop."""
        if inspect.isawaitable(value):
            return asyncio.run_coroutine_threadsafe(_awaited(value), self._wiring.loop).result()
        return value

    def _diverge(self, detail: str) -> HandlerDivergedError:
        self._diverged = HandlerDivergedError(
            f"the handler of task {self._task.number} took another way than in an earlier run",
            detail=detail,
            hint="a handler must make the same calls in each run of a task: use ctx.once for times and random values",
        )
        return self._diverged


async def _awaited(value: Awaitable[Any]) -> Any:
    return await value


def _named(target: Target) -> str:
    if isinstance(target, str):
        return target
    return f"{getattr(target, '__module__', '')}.{getattr(target, '__qualname__', type(target).__qualname__)}"


def _described(call: LoggedCall) -> str:
    payload = call.payload if len(call.payload) <= 200 else f"{call.payload[:200]}..."
    return f"{call.method} {call.target} {payload}"


def _as_answer(request: CallRequest, outcome: Any) -> Any:
    """What `confirm` says, in the shape in which the call would have answered."""
    if callable(request.target) or isinstance(outcome, Answer):
        return outcome
    return Answer(200, canonical(outcome).encode())


def _storable(value: Any) -> str:
    if isinstance(value, Answer):
        return canonical({"answer": value.stored()})
    try:
        return canonical({"value": value})
    except (TypeError, msgspec.MsgspecError, PenstockError):
        _log.warning("a call returned %s, which is no JSON: the handler gets its text", type(value).__name__)
        return canonical({"value": repr(value)})


def _revived(stored: str | None) -> Any:
    entry = msgspec.json.decode(stored or '{"value":null}')
    return Answer.revived(entry["answer"]) if "answer" in entry else entry["value"]


T = TypeVar("T")
ACCEPTED = range(200, 300)
_NO_HEADERS: Mapping[str, str] = {}


# What a handler has in its hand


class _TaskContext:
    """What both contexts say of the task."""

    def __init__(self, task: Task, run: HandlerRun, term: int) -> None:
        self._run = run
        self.key = task.key
        """The idempotency key of this task: the same in each try, process and machine."""
        self.tries = task.tries
        """How often this task was tried before, as far as tries came to an end."""
        self.term = term
        """Grows with each start and take-over of the processor."""


class Context(_TaskContext):
    """For a handler that is a function; it runs in a thread.

    def pay(change, ctx):
        ctx.call("https://bank/charges", {"to": change.key["song"], "amount": change.row["amount"]})
    """

    def call(
        self,
        target: Target,
        payload: Any = None,
        *,
        method: str = "POST",
        headers: Mapping[str, str] = _NO_HEADERS,
        accept: Container[int] = ACCEPTED,
        timeout_s: float | None = None,
    ) -> Any:
        """Call a URL, or a function that gets a `Call`; once, as far as the other side lets it be.

        The request is logged, then sent with `Idempotency-Key`, then its answer is logged; in a later try of this task
        it is answered from the log. Returns an `Answer`, or what the function returned, as JSON has it. Raises
        `UnreachableError` and `CallRefusedError` when it had no effect, `CallCutOffError` when nobody knows. `headers`
        are not logged, so that secrets may be in them.
        """
        return self._run.call(self._run.number(), CallRequest(target, payload, method, headers, accept, timeout_s))

    def once(self, make: Callable[[], Any]) -> Any:
        """The value of `make()` in the first run of this task that got so far: for times, random values, reads."""
        return self._run.once(self._run.number(), make)


class AsyncContext(_TaskContext):
    """For a handler that is a coroutine function; calls may be under way at the same time.

    async def pay(change, ctx):
        await ctx.call("https://bank/charges", {"to": change.key["song"], "amount": change.row["amount"]})
    """

    async def call(
        self,
        target: Target,
        payload: Any = None,
        *,
        method: str = "POST",
        headers: Mapping[str, str] = _NO_HEADERS,
        accept: Container[int] = ACCEPTED,
        timeout_s: float | None = None,
    ) -> Any:
        """As `Context.call`."""
        number = self._run.number()
        return await in_thread(self._run.call, number, CallRequest(target, payload, method, headers, accept, timeout_s))

    async def once(self, make: Callable[[], Any]) -> Any:
        """As `Context.once`."""
        return await in_thread(self._run.once, self._run.number(), make)


async def in_thread(work: Callable[..., T], *values: Any) -> T:
    """The result of something that blocks. One that is cancelled still waits for it: a thread cannot be taken back."""
    running = asyncio.ensure_future(asyncio.to_thread(work, *values))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        if not running.cancelled():
            running.exception()
        raise
