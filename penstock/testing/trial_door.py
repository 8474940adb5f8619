"""The door of a trial: what a test sends is judged, rejected or taken as the edge does it, one commit for each call.

Nothing here needs Spark or a socket. Time is in the test's hand: the clock stands still unless the test moves it, or
sends an event that has not happened yet.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.collect.collection import make_stream, make_table
from penstock.collect.judging.incoming_events import ArrivedEvents, BuiltBatch, DecodedEvents
from penstock.collect.judging.judge import Judge
from penstock.collect.judging.rejection import Rejection
from penstock.collect.judging.time_columns import LAST_US
from penstock.collect.letters.dead_letters import DeadLedger, Letter
from penstock.collect.sender import Sender
from penstock.collect.tables.row_changes import RowJudge
from penstock.config import Limits, duration_us
from penstock.declaration import Application, StreamDef, TableDef
from penstock.errors import UnknownStreamError
from penstock.log.folder_log import DEAD
from penstock.log.group_commit import GroupCommit
from penstock.log.log import Append, Appended, Stream, StreamSpec
from penstock.log.opening import open_log
from penstock.schema import TIME

BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)
"""When a trial begins, unless the test says otherwise or sends an event that is older."""
_SENDER = Sender("post", "a test")


class HandClock:
    """Wall time in the test's hand; intervals are the machine's, since real queries wait for real ones."""

    def __init__(self, start: datetime | None) -> None:
        self.strict = start is not None
        """The test said when it begins: then no event moves the clock."""
        self._moved = False
        self._us = _us(start or BEGINNING)

    def now_us(self) -> int:
        return self._us

    def monotonic(self) -> float:
        return time.monotonic()

    def advance(self, by_us: int) -> None:
        self._us += by_us
        self._moved = True

    def meet(self, newest_us: int) -> None:
        """An event happened at this time: it is at least as late as that. The first one says when the trial begins."""
        if not self.strict and (newest_us > self._us or not self._moved):
            self._us = newest_us
        self._moved = True


@dataclass(frozen=True)
class SendOutcome:
    """What became of the events of one `send`."""

    accepted: int
    duplicates: int
    rejected: list[str]
    """Reasons, as the door gives them."""


class TrialDoor:
    """The only writer of a trial's edge log."""

    def __init__(self, application: Application, place: str, clock: HandClock) -> None:
        self.application = application
        self.clock = clock
        self.log = open_log(place, app=application.name, clock=clock)
        self.group = GroupCommit(self.log)
        dead = self.group.run(lambda: self.log.create(StreamSpec("dead", DEAD, unique=True))).result()
        self._dead = DeadLedger(dead, self.group, clock)
        self.streams: dict[str, Stream] = {
            **{each.name: make_stream(self.log, self.group, each) for each in application.streams},
            **{each.name: make_table(self.log, self.group, each) for each in application.tables},
        }
        self._judges = {each.name: Judge(each, Limits()) for each in application.streams}
        self._row_judges = {each.name: RowJudge(each, Limits()) for each in application.tables}

    def close(self) -> None:
        self.group.close()
        self.log.close()

    def send(self, name: str, events: Sequence[Any]) -> SendOutcome:
        """Events of a stream, or rows of a table."""
        stream, table = self.application.stream(name), self.application.table(name)
        if stream is not None:
            return self._take(stream, _raws(stream, events))
        if table is not None:
            return self._set(table, _raws(table.entry, events))
        known = ", ".join(entry.name for entry in self.application.entries)
        raise UnknownStreamError(f"the app has no stream or table '{name}'", hint=f"it has: {known}")

    def delete(self, name: str, keys: Iterable[Any]) -> SendOutcome:
        """Rows of a table by their keys: a value, or a tuple of them."""
        judge = self._row_judges.get(name)
        if judge is None:
            raise UnknownStreamError(f"the app has no table '{name}'", hint="rows of a table can be deleted")
        tuples = [key if isinstance(key, tuple) else (key,) for key in keys]
        return self._commit(name, judge.deleted(tuples).batch, [])

    def _take(self, stream: StreamDef, raws: list[bytes]) -> SendOutcome:
        judge = self._judges[stream.name]
        decoded = judge.decode_each(raws)
        self._meet(stream, decoded)
        built = self._built(judge, decoded)
        rejections = [*decoded.rejections]
        for row, why in built.faults:
            place = decoded.place(row)
            rejections.append(Rejection(place, why.reason, why.detail, decoded.raw(place)))
        return self._commit(stream.name, built.batch, rejections)

    def _built(self, judge: Judge, decoded: DecodedEvents) -> BuiltBatch:
        received = [self.clock.now_us()] * len(decoded.events)
        arrived = ArrivedEvents(decoded.events, received, unknown=decoded.unknown)
        return judge.build(arrived) or judge.build_apart(arrived)

    def _meet(self, stream: StreamDef, decoded: DecodedEvents) -> None:
        """Let the clock reach the newest of these events, as far as any could be taken."""
        if stream.time is None or stream.max_skew_us is not None or not decoded.events:
            return
        far = ArrivedEvents(decoded.events, [LAST_US] * len(decoded.events), unknown=decoded.unknown)
        judge = self._judges[stream.name]
        times = (judge.build(far) or judge.build_apart(far)).batch.column(TIME).cast(pa.int64())
        newest = pc.max(times.filter(pc.less(times, LAST_US))).as_py()  # what has no time has the time of its arrival
        if newest is not None:
            self.clock.meet(newest)

    def _set(self, table: TableDef, raws: list[bytes]) -> SendOutcome:
        judge = self._row_judges[table.name]
        changes = judge.rows_read(judge.events.decode_each(raws))
        return self._commit(table.name, changes.batch, changes.rejections)

    def _commit(self, name: str, batch: pa.RecordBatch, rejections: Sequence[Rejection]) -> SendOutcome:
        letters = [Letter(name, rejection, _SENDER) for rejection in rejections]
        appends = [Append(self.streams[name], batch)] if batch.num_rows else []
        if letters:
            appends.append(self._dead.append(letters, follows=bool(appends)))
        results = self.group.submit(appends).result() if appends else []
        for result in results:
            if isinstance(result, Exception):
                raise result
        taken = results[0] if batch.num_rows and isinstance(results[0], Appended) else None
        return SendOutcome(
            accepted=taken.accepted if taken else 0,
            duplicates=len(taken.duplicates) if taken else 0,
            rejected=[f"{rejection.reason}: {rejection.detail}" for rejection in rejections],
        )


def _raws(stream: StreamDef, events: Sequence[Any]) -> list[bytes]:
    """Each event as it would be sent. An instance is of the stream's class, so that a test fails when that changes."""
    kind = stream.events.kind
    for event in events:
        if isinstance(event, msgspec.Struct) and not isinstance(event, kind):
            raise TypeError(
                f"events of '{stream.name}' are instances of {kind.__name__} or dicts, not {type(event).__name__}"
            )
    return [_raw(event) for event in events]


def _raw(event: Any) -> bytes:
    if isinstance(event, str):
        return event.encode()
    return event if isinstance(event, bytes) else msgspec.json.encode(event)


def _us(moment: datetime) -> int:
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (aware - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def moment_of(given: str | datetime | None) -> datetime | None:
    """A time that a test gives: a datetime or RFC 3339; without a zone it is UTC."""
    return datetime.fromisoformat(given) if isinstance(given, str) else given


def span_us(given: str | timedelta) -> int:
    """A duration as everywhere else."""
    return duration_us(given)
