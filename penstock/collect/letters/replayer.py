"""Sends dead letters again, as they are or mended, into the stream that they were meant for: each letter once.

1. A letter is replayed whole or not at all: if one of its events is rejected again, none is taken, nothing is written,
   and the caller is told why. It stays open, and makes no second letter.
2. That a letter was replayed is remembered in the commit of its events (`Replayed`). A replay that was answered, or
   was not because somebody was killed, is found there by the next one, which leaves the letter alone.
3. One replay runs at a time, and its streams one after another: no two commits can mark the same letters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import pyarrow as pa

from penstock.clock import Clock
from penstock.collect.contents.cloudevents import BAD_ENVELOPE, decode_envelopes, is_envelope
from penstock.collect.intake import Intake, Outcome
from penstock.collect.judging.incoming_events import ArrivedEvents, DecodedEvents
from penstock.collect.judging.json_events import split
from penstock.collect.judging.judge import Judge
from penstock.collect.judging.rejection import Rejection
from penstock.collect.letters.stored_letters import Replayed, StoredLetter, StoredLetters, unknown_letter
from penstock.collect.pulling.pull_events import PullEvents
from penstock.collect.sender import Sender
from penstock.collect.tables.row_changes import RowChanges, RowJudge
from penstock.collect.tables.table_writer import CurrentRows, TableWriter
from penstock.declaration import PullDef
from penstock.errors import (
    BadBodyError,
    BadRequestError,
    ConditionError,
    ReadOnlyStreamError,
    TooLargeError,
    UnknownLetterError,
)

Verdict = Literal["replayed", "acceptable", "already_replayed", "rejected", "unknown_letter"]
MOST_LETTERS = 1_000
"""In one request."""


class LetterReader:
    """Reads what a dead letter holds as its way in did: envelopes are opened, and what a pull brought is mapped again.

    A letter keeps what was sent, not how it was read. A CloudEvent shows what it is, unless the class has its
    attributes for fields; what was pulled names its source as the sender. Events that somebody mended are not mapped:
    they are what `map` should have made. Stateless: any thread may ask.
    """

    def __init__(self, pulls: Iterable[PullDef] = ()) -> None:
        self._maps: Mapping[tuple[str, str | None], Callable[[Any], Any]] = {
            (pull.stream, pull.url): pull.map for pull in pulls if pull.map is not None
        }

    def decode(self, letter: StoredLetter, judge: Judge, mended: Sequence[bytes] | None) -> DecodedEvents:
        """The events of a letter, or what to take in their place. Raises `BadBodyError` and `TooLargeError`."""
        raws = _raws(letter) if mended is None else list(mended)
        bad_envelope = mended is None and letter.reason == BAD_ENVELOPE
        if bad_envelope or (raws and all(is_envelope(judge, raw) for raw in raws)):
            return decode_envelopes(judge, raws)
        map = self._maps.get((letter.stream, letter.sender)) if mended is None else None
        if map is not None:
            return PullEvents(judge, map, judge.limits.event_bytes).decode_here(raws)
        return judge.decode_each(raws)


def _raws(letter: StoredLetter) -> list[bytes]:
    """The events of a letter: one, unless it is a whole body that could not be read."""
    if letter.reason != "bad_body":
        return [letter.raw]
    try:
        return split(letter.raw, "json")
    except BadBodyError:
        return split(letter.raw, "lines")


@dataclass(frozen=True, slots=True)
class Wish:
    """A letter to be replayed; `events` are what to send in its place."""

    name: str
    events: Sequence[bytes] | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one letter."""

    name: str
    verdict: Verdict
    stream: str | None = None
    reason: str | None = None
    detail: str | None = None

    def body(self) -> dict[str, Any]:
        body = {"letter": self.name, "result": self.verdict, "stream": self.stream}
        return body if self.reason is None else body | {"reason": self.reason, "detail": self.detail}


@dataclass(frozen=True, slots=True)
class LetterReplay:
    """What became of one request: a result for each letter, in its order."""

    results: list[Result]
    accepted: int
    duplicates: int
    acks: dict[str, str]
    """By stream."""


@dataclass(frozen=True, slots=True)
class _Ready:
    """A letter whose events were judged and found good."""

    letter: StoredLetter
    decoded: DecodedEvents


@dataclass(frozen=True, slots=True)
class _ReadyRows:
    """The same of a table's rows."""

    letter: StoredLetter
    changes: RowChanges


class Replayer:
    """Lives on the edge's loop."""

    def __init__(
        self,
        letters: StoredLetters,
        replayed: Replayed,
        intakes: Mapping[str, Intake],
        clock: Clock,
        reader: LetterReader | None = None,
        tables: Mapping[str, TableWriter] | None = None,
    ) -> None:
        self._tables = tables or {}
        self._letters, self._replayed, self._intakes, self._clock = letters, replayed, intakes, clock
        self._reader = reader or LetterReader()
        self._one_at_a_time = asyncio.Lock()

    async def replay(
        self, wishes: Sequence[Wish], sender: Sender, may: Callable[[str], bool], *, dry_run: bool = False
    ) -> LetterReplay:
        """Durable on return. `may` says whether the letters of a stream are the caller's business: others
        are unknown to it."""
        _refuse_twice(wishes)
        async with self._one_at_a_time:
            try:
                return await self._replay(wishes, sender, may, dry_run)
            except ConditionError:  # a replay whose outcome was unknown has been written meanwhile
                return await self._replay(wishes, sender, may, dry_run)

    async def _replay(
        self, wishes: Sequence[Wish], sender: Sender, may: Callable[[str], bool], dry_run: bool
    ) -> LetterReplay:
        now_us = self._clock.now_us()
        judged = await asyncio.to_thread(lambda: [self._judged(wish, now_us, may) for wish in wishes])
        ready = [letter for letter in judged if isinstance(letter, _Ready)]
        rows = [letter for letter in judged if isinstance(letter, _ReadyRows)]
        outcomes = {} if dry_run else await self._taken(ready, now_us, sender) | await self._set(rows, sender)
        return _replay(judged, outcomes, dry_run)

    async def _taken(self, ready: Sequence[_Ready], now_us: int, sender: Sender) -> dict[str, Outcome]:
        outcomes = {}
        for stream in dict.fromkeys(one.letter.stream for one in ready):
            theirs = [one for one in ready if one.letter.stream == stream]
            decoded, note = (
                _joined([one.decoded for one in theirs]),
                self._replayed.note([one.letter.place for one in theirs]),
            )
            outcomes[stream] = await self._intakes[stream].take(decoded, now_us, sender, note=note)
        return outcomes

    async def _set(self, ready: Sequence[_ReadyRows], sender: Sender) -> dict[str, Outcome]:
        outcomes = {}
        for table in dict.fromkeys(one.letter.stream for one in ready):
            theirs = [one for one in ready if one.letter.stream == table]
            changes = RowChanges(pa.concat_batches([one.changes.batch for one in theirs]))
            note = self._replayed.note([one.letter.place for one in theirs])
            outcomes[table], _ = await self._tables[table].write(partial(_unconditional, changes), sender, note=note)
        return outcomes

    # In a thread

    def _judged(self, wish: Wish, now_us: int, may: Callable[[str], bool]) -> _Ready | _ReadyRows | Result:
        try:
            letter = self._letters.find(wish.name)
            if not may(letter.stream):
                raise unknown_letter(wish.name)
        except UnknownLetterError as error:
            return Result(wish.name, "unknown_letter", None, error.code, error.message)
        if letter.place in self._replayed:
            return Result(wish.name, "already_replayed", letter.stream)
        intake, table = self._intakes.get(letter.stream), self._tables.get(letter.stream)
        if intake is None and table is None:
            detail = f"the app has no stream '{letter.stream}' that can be posted to"
            return Result(wish.name, "rejected", letter.stream, ReadOnlyStreamError.code, detail)
        if wish.events is None and letter.cut:
            return Result(wish.name, "rejected", letter.stream, "too_large", "only its beginning was kept")
        if table is not None:
            return self._of_rows(letter, table.judge, wish)
        assert intake is not None
        return self._of(letter, intake.judge, wish, now_us)

    def _of_rows(self, letter: StoredLetter, judge: RowJudge, wish: Wish) -> _ReadyRows | Result:
        try:
            changes = judge.each(_raws(letter) if wish.events is None else wish.events)
        except (BadBodyError, TooLargeError) as error:
            return Result(wish.name, "rejected", letter.stream, error.code, error.detail or error.message)
        if changes.rejections:
            fault = changes.rejections[0]
            return Result(wish.name, "rejected", letter.stream, fault.reason, fault.detail)
        return _ReadyRows(letter, changes)

    def _of(self, letter: StoredLetter, judge: Judge, wish: Wish, now_us: int) -> _Ready | Result:
        try:
            decoded = self._reader.decode(letter, judge, wish.events)
        except (BadBodyError, TooLargeError) as error:
            return Result(wish.name, "rejected", letter.stream, error.code, error.detail or error.message)
        decoded.first = [letter.received_us] * len(decoded.events)
        decoded.sent = None if letter.sent_us is None else [letter.sent_us] * len(decoded.events)
        fault = decoded.rejections[0] if decoded.rejections else _misfit(judge, decoded, now_us)
        if fault is not None:
            return Result(wish.name, "rejected", letter.stream, fault.reason, fault.detail)
        if not decoded.events:
            return Result(wish.name, "rejected", letter.stream, "bad_body", "it holds no event")
        return _Ready(letter, decoded)


def _misfit(judge: Judge, decoded: DecodedEvents, now_us: int) -> Rejection | None:
    """The first event that its columns cannot hold, as the intake would find it at this moment."""
    came = [now_us] * len(decoded.events)
    arrived = ArrivedEvents(
        decoded.events, came, decoded.unknown, decoded.sent, decoded.ids, decoded.times, first=decoded.first
    )
    built = judge.build(arrived) or judge.build_apart(arrived)
    if not built.faults:
        return None
    row, why = built.faults[0]
    return Rejection(row, why.reason, why.detail, b"")


def _joined(parts: Sequence[DecodedEvents]) -> DecodedEvents:
    """The events of several letters as those of one request."""
    if len(parts) == 1:
        return parts[0]
    events = [event for part in parts for event in part.events]
    raws = [part.raw(part.place(row)) for part in parts for row in range(len(part.events))]
    unknown = None if parts[0].unknown is None else [text for part in parts for text in part.unknown or ()]
    ids, times, first, sent = (_each(parts, name) for name in ("ids", "times", "first", "sent"))
    return DecodedEvents(events, raws.__getitem__, [], unknown, None, ids, times, first=first, sent=sent)


def _each(parts: Sequence[DecodedEvents], name: str) -> list[Any] | None:
    """What is known of each event of all letters; None when it is known of none."""
    columns = [(getattr(part, name), len(part.events)) for part in parts]
    if all(values is None for values, _ in columns):
        return None
    return [value for values, events in columns for value in values or [None] * events]


def _unconditional(changes: RowChanges, rows: CurrentRows | None) -> RowChanges:
    return changes


def _replay(
    judged: Sequence[_Ready | _ReadyRows | Result], outcomes: Mapping[str, Outcome], dry_run: bool
) -> LetterReplay:
    verdict: Verdict = "acceptable" if dry_run else "replayed"
    results = [
        one if isinstance(one, Result) else Result(one.letter.name, verdict, one.letter.stream) for one in judged
    ]
    return LetterReplay(
        results,
        sum(outcome.accepted for outcome in outcomes.values()),
        sum(outcome.duplicates for outcome in outcomes.values()),
        {stream: outcome.token or outcome.position.token() for stream, outcome in outcomes.items()},
    )


def _refuse_twice(wishes: Sequence[Wish]) -> None:
    names = [wish.name for wish in wishes]
    if len(names) > MOST_LETTERS:
        raise BadRequestError(f"a request replays at most {MOST_LETTERS} letters", hint="send several requests")
    if len(set(names)) < len(names):
        twice = next(name for at, name in enumerate(names) if name in names[:at])
        raise BadRequestError(f"the letter '{twice}' is named twice", hint="name each letter once")
