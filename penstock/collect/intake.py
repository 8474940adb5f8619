"""Takes judged events of many requests into the log together, and tells each request what became of its own.

1. A request is answered when its events, its dead letters and their counts are durable, never before.
2. Requests that wait for the same commit become one append: building columns and appending cost per call, not per
   event. A request with a producer's number or a condition is an append of its own, because that stands for it alone;
   so is one whose events came as columns, because there is nothing to gain.
3. Events and dead letters of a request go into one commit. A producer's number that is refused (gap, fenced) or was
   taken before leaves no letters.
4. The events of a stream reach the log in the order in which their requests were taken in.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

import numpy as np

from penstock.collect.counts import counted
from penstock.collect.judging.incoming_events import ArrivedEvents, BuiltBatch, DecodedEvents
from penstock.collect.judging.judge import Judge
from penstock.collect.judging.rejection import Rejection
from penstock.collect.letters.dead_letters import DeadLedger, Letter
from penstock.collect.limits.stream_guard import StreamGuard
from penstock.collect.promises import Promises
from penstock.collect.sender import Sender, Way
from penstock.log.group_commit import GroupCommit, first_taken
from penstock.log.log import Append, Appended, Condition, OutcomeKey, Producer, Share, Stream
from penstock.observe.signals import EventsSkewed, EventsTaken, Signals
from penstock.position import Position

TOGETHER_EVENTS = 2_000
"""As many waiting events are appended at once without waiting for the commit under way. Four NDJSON requests of 500 in
one append cost a fifth less than in four; more could not be built on the loop."""
INLINE_EVENTS = 2_000
"""Above it columns are built in a thread, not on the loop: about 3 ms."""
INLINE_APART_EVENTS = 200
"""The same where events that do not fit their columns must be looked for."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one request's events."""

    position: Position
    accepted: int = 0
    duplicates: int = 0
    rejections: Sequence[Rejection] = ()
    repeated: bool = False
    shed: int = 0
    token: str = ""
    """The position's, made once for all requests of a commit."""


class Keys(NamedTuple):
    """Keys of the control stream that are written in the commit of a request's events."""

    sets: Mapping[str, Any | None]
    reply: tuple[str, Mapping[str, Any]] | None = None
    """A key, and what it gets besides `ack`, `accepted` and `duplicates` of this request."""


@dataclass(frozen=True, slots=True)
class Note:
    """What the log is told with a request's events."""

    keys: Callable[[Sequence[Rejection], int], Keys]
    """Called on the loop before the commit, when it is known which events are rejected, and how many were shed."""
    requires: tuple[Condition, ...] = ()
    """Conditions of its events, which are then an append of their own."""


class OutcomeTaker(Protocol):
    """Who waits for an outcome: a future, or what is like one. It is told once, on the loop, and raises nothing."""

    def done(self) -> bool: ...

    def set_result(self, outcome: Outcome, /) -> None: ...

    def set_exception(self, error: type | BaseException, /) -> None: ...


@dataclass(eq=False, slots=True)
class Claim:
    """One request's events on their way into the log."""

    decoded: DecodedEvents
    received_us: int
    sender: Sender
    done: OutcomeTaker
    producer: Producer | None = None
    note: Note | None = None
    rejections: list[Rejection] = field(default_factory=list)
    accepted: int = 0
    shed: int = 0
    repeats: int = 0
    """Events of a request that was taken before."""

    @property
    def received(self) -> int:
        return self.decoded.received + self.shed + self.repeats


class Intake:
    """The way into one stream; lives on the edge's loop."""

    def __init__(
        self,
        judge: Judge,
        stream: Stream,
        end: Position,
        group: GroupCommit,
        dead: DeadLedger,
        signals: Signals,
        guard: StreamGuard | None = None,
        promises: Promises | None = None,
    ) -> None:
        self.judge = judge
        self.stream = stream
        self.end = end
        """Behind everything that this process knows to be durable."""
        self.promises = promises
        """What producers promise, where that says how far the stream is complete."""
        self._group, self._dead, self._signals, self._guard = group, dead, signals, guard
        self._waiting: list[Claim] = []
        self._waiting_events = 0
        self._writing: set[asyncio.Task[None]] = set()
        self._order = asyncio.Lock()

    async def take(
        self,
        decoded: DecodedEvents,
        received_us: int,
        sender: Sender,
        producer: Producer | None = None,
        note: Note | None = None,
        begun: Callable[[], None] | None = None,
        anyway: bool = False,
    ) -> Outcome:
        """Durable on return. Raises what the log raises: `FencedError`, `SequenceGapError`, `ConditionError`,
        `DiskFullError`, ..., and what the stream's guard raises: `TooManyError`, `LaggingError`.

        `begun` is called when the events are on their way: what is taken after that comes after them. `anyway`: past
        the guard, for what was received already and can wait no longer.
        """
        shed, events = 0, decoded.received
        guard = None if anyway else self._guard
        if guard is not None:
            decoded, shed = guard.admit(decoded, sender)
        done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        claim = Claim(decoded, received_us, sender, done, producer, note, list(decoded.rejections), shed=shed)
        if producer is not None or decoded.columns is not None or (note is not None and note.requires):
            self._begin_waiting()
            self._begin([claim])
        else:
            self._join(claim)
        if begun is not None:
            begun()
        try:
            outcome = await done
        except Exception:  # not when the sender went away: then the commit goes on
            if guard is not None:
                guard.give_back(events, sender)
            raise
        if guard is not None and outcome.repeated:
            guard.give_back(events, sender)
        return outcome

    def put(self, decoded: DecodedEvents, received_us: int, sender: Sender, done: OutcomeTaker) -> None:
        """As `take`, without a task that waits, and where the stream's guard lets everything pass: `done` is told what
        `take` would return or raise."""
        self._join(Claim(decoded, received_us, sender, done, rejections=list(decoded.rejections)))

    async def drop(self, events: int, sender: Sender) -> Outcome:
        """Count events that had to be dropped before they were judged; the count is durable on return."""
        return await self._count(sender, shed=events)

    async def repeated(self, events: int, sender: Sender) -> Outcome:
        """Count a request that was taken before under its key: all of its events are known. Durable on return."""
        return await self._count(sender, repeats=events)

    async def _count(self, sender: Sender, shed: int = 0, repeats: int = 0) -> Outcome:
        done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._join(Claim(DecodedEvents([], bytes), 0, sender, done, shed=shed, repeats=repeats))
        return await done

    async def drain(self) -> None:
        """Return when nothing is on its way into the log."""
        while self._writing or self._waiting:
            await asyncio.wait(list(self._writing)) if self._writing else await asyncio.sleep(0)

    def _join(self, claim: Claim) -> None:
        if not self._waiting and not self._writing:
            asyncio.get_running_loop().call_soon(self._begin_waiting)
        self._waiting.append(claim)
        self._waiting_events += claim.decoded.received
        if self._waiting_events >= TOGETHER_EVENTS:
            self._begin_waiting()

    def _begin_waiting(self) -> None:
        claims, self._waiting, self._waiting_events = self._waiting, [], 0
        if claims:
            self._begin(claims)

    def _begin(self, claims: list[Claim]) -> None:
        task = asyncio.get_running_loop().create_task(self._write(claims))
        self._writing.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._writing.discard(task)
        self._begin_waiting()

    async def _write(self, claims: list[Claim]) -> None:
        try:
            async with self._order:
                built = await self._build(claims)
                writing = self._append(claims, built)
            self._answer(claims, built, await writing)
        except BaseException as error:
            for claim in claims:
                if not claim.done.done():
                    claim.done.set_exception(error)
            if not isinstance(error, Exception):
                raise

    # Columns

    async def _build(self, claims: list[Claim]) -> BuiltBatch:
        what = _joined(claims)
        events = len(what.events)
        build, apart = self.judge.build, self.judge.build_apart
        built = build(what) if events <= INLINE_EVENTS else await asyncio.to_thread(build, what)
        if built is None:
            built = apart(what) if events <= INLINE_APART_EVENTS else await asyncio.to_thread(apart, what)
        self._settle(claims, built)
        return built

    def _settle(self, claims: list[Claim], built: BuiltBatch) -> None:
        """Hand every event without a row back to the request that it came from."""
        starts = _starts(claims)
        for claim in claims:
            claim.accepted = len(claim.decoded.events)
        for row, why in built.faults:
            owner = bisect_right(starts, row) - 1
            claim = claims[owner]
            place = claim.decoded.place(row - starts[owner])
            claim.rejections.append(Rejection(place, why.reason, why.detail, claim.decoded.raw(place)))
            claim.accepted -= 1
        for claim in claims if built.faults else ():
            claim.rejections.sort(key=lambda rejection: rejection.index)

    # Appends

    def _append(self, claims: list[Claim], built: BuiltBatch) -> Awaitable[Appended]:
        """On its way to the log when this returns."""
        letters = [Letter(self.stream.name, r, c.sender, c.producer) for c in claims for r in c.rejections]
        requires = claims[0].note.requires if claims[0].note else ()
        if built.batch.num_rows or claims[0].producer is not None or any(c.shed or c.repeats for c in claims):
            appends = [self._events(claims, built, requires)]
            if letters:
                appends.append(self._dead.append(letters, follows=True))
            return first_taken(self._group.append(appends))
        sets, replies = _noted(claims)
        nothing = {"ack": self.end.token(), "accepted": 0, "duplicates": 0}
        sets |= {key: {**value, **nothing} for _, key, value in replies}
        appends = [Append(sets=sets, requires=requires)] if sets else []
        if letters:
            appends.append(self._dead.append(letters, follows=bool(sets)))
        return self._bury(self._group.append(appends) if appends else None)

    async def _bury(self, written: asyncio.Future[list[Appended | Exception]] | None) -> Appended:
        """There is no event among them."""
        if written is not None:
            await first_taken(written)
        return Appended(self.end, 0, 0)

    def _events(self, claims: list[Claim], built: BuiltBatch, requires: tuple[Condition, ...]) -> Append:
        name, producer = self.stream.name, claims[0].producer
        skewed = () if built.skewed is None else tuple(np.flatnonzero(built.skewed).tolist())
        counts = (
            *counted(name, duplicates=Share("duplicates")),
            *counted(name, duplicates=sum(c.repeats for c in claims), shed=sum(c.shed for c in claims)),
            *counted(name, skewed=Share("accepted", skewed) if skewed else 0),
            *counted(name, duplicates=sum(c.received for c in claims) if producer else 0, repeated=True),
        )
        sets, replies = _noted(claims)
        rows = _rows(claims) if replies else []
        outcomes = tuple(OutcomeKey(key, value, rows[number]) for number, key, value in replies)
        complete_us: int | None = None
        if self.promises is not None and producer is not None:
            promised, complete_us = self.promises.taken(producer.id, claims[0].sender.promise)
            sets = {**sets, **promised}
        return Append(self.stream, built.batch, None, producer, False, requires, sets, outcomes, counts, complete_us)

    # Answers

    def _answer(self, claims: list[Claim], built: BuiltBatch, appended: Appended) -> None:
        if appended.position.covers(self.end):
            self.end = appended.position
        outcomes = self._outcomes(claims, built, appended)
        for way in {claim.sender.way for claim in claims}:
            self._signals(self._taken(way, [o for c, o in zip(claims, outcomes, strict=True) if c.sender.way == way]))
        if skewed := 0 if appended.repeated else built.skewed_without(appended.duplicates):
            self._signals(EventsSkewed(self.stream.name, skewed))
        for claim, outcome in zip(claims, outcomes, strict=True):
            if not claim.done.done():
                claim.done.set_result(outcome)

    def _outcomes(self, claims: list[Claim], built: BuiltBatch, appended: Appended) -> list[Outcome]:
        at, token = appended.position, appended.position.token()
        duplicates = [0] * len(claims)
        if len(claims) == 1:
            duplicates = [len(appended.duplicates)]
        elif appended.duplicates:
            starts = _starts(claims)
            for row in appended.duplicates:
                duplicates[bisect_right(starts, built.rows[row]) - 1] += 1
        if appended.repeated:
            return [Outcome(at, 0, c.received, repeated=True, token=token) for c in claims]
        plain: dict[int, Outcome] = {}  # the same for nearly all requests, so that it is made once
        outcomes = []
        for claim, repeats in zip(claims, duplicates, strict=True):
            if repeats or claim.repeats or claim.shed or claim.rejections:
                new, old = claim.accepted - repeats, repeats + claim.repeats
                outcomes.append(Outcome(at, new, old, claim.rejections, shed=claim.shed, token=token))
            else:
                outcome = plain.get(claim.accepted)
                if outcome is None:
                    outcome = plain[claim.accepted] = Outcome(at, claim.accepted, token=token)
                outcomes.append(outcome)
        return outcomes

    def _taken(self, way: Way, outcomes: Sequence[Outcome]) -> EventsTaken:
        return EventsTaken(
            self.stream.name,
            way,
            sum(outcome.accepted for outcome in outcomes),
            sum(outcome.duplicates for outcome in outcomes),
            sum(len(outcome.rejections) for outcome in outcomes),
            sum(outcome.shed for outcome in outcomes),
        )


def _joined(claims: list[Claim]) -> ArrivedEvents:
    """The events of all requests, and what came with each."""
    if len(claims) == 1:
        return _arrived(claims[0])
    events: list[Any] = []
    received: list[int] = []
    for claim in claims:
        events += claim.decoded.events
        received += [claim.received_us] * len(claim.decoded.events)
    return ArrivedEvents(
        events,
        received,
        _each(claims, lambda claim: claim.decoded.unknown),
        _each(claims, _sent),
        _each(claims, lambda claim: claim.decoded.ids),
        _each(claims, lambda claim: claim.decoded.times),
        first=_each(claims, lambda claim: claim.decoded.first),
    )


def _arrived(claim: Claim) -> ArrivedEvents:
    decoded, sent_us, rows = claim.decoded, claim.sender.sent_us, len(claim.decoded.events)
    received = np.full(rows, claim.received_us)
    sent = _sent(claim) if sent_us is None else np.full(rows, sent_us)
    return ArrivedEvents(
        decoded.events, received, decoded.unknown, sent, decoded.ids, decoded.times, decoded.columns, decoded.first
    )


def _sent(claim: Claim) -> list[int | None] | None:
    if claim.sender.sent_us is None:
        return None if claim.decoded.sent is None else list(claim.decoded.sent)
    return [claim.sender.sent_us] * len(claim.decoded.events)


def _each(claims: list[Claim], facts: Callable[[Claim], Sequence[Any] | None]) -> list[Any] | None:
    """What is known of each event of all requests; None when it is known of none."""
    by_claim = [facts(claim) for claim in claims]
    if all(values is None for values in by_claim):
        return None
    whole = (values or [None] * len(claim.decoded.events) for claim, values in zip(claims, by_claim, strict=True))
    return [value for values in whole for value in values]


def _starts(claims: list[Claim]) -> list[int]:
    """The row at which each request's events begin."""
    starts, at = [], 0
    for claim in claims:
        starts.append(at)
        at += len(claim.decoded.events)
    return starts


def _noted(claims: list[Claim]) -> tuple[dict[str, Any | None], list[tuple[int, str, Mapping[str, Any]]]]:
    """Keys that are set, and keys that get the reply to a request, each with the request's number."""
    sets: dict[str, Any | None] = {}
    replies: list[tuple[int, str, Mapping[str, Any]]] = []
    for number, claim in enumerate(claims):
        if claim.note is not None:
            keys = claim.note.keys(claim.rejections, claim.shed)
            sets |= keys.sets
            if keys.reply is not None:
                replies.append((number, *keys.reply))
    return sets, replies


def _rows(claims: list[Claim]) -> list[range]:
    """Which rows of the batch are each request's."""
    ends = list(accumulate(claim.accepted for claim in claims))
    return [range(end - claim.accepted, end) for claim, end in zip(claims, ends, strict=True)]
