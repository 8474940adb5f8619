"""Writes the changes of a table, many requests in one commit, each judged against the rows that it really changes.

1. Requests are taken in their order. One sees what those before it have changed, in the same commit too.
2. The commit requires that nobody else has appended to the table since its rows were looked at; if somebody has, all of
   it is judged again. So a condition on a row holds when the row is written.
3. What changes nothing is not written.
4. What has a note (a condition, keys that are written with it) is a commit of its own: the note stands for it alone.
5. A request is answered when its changes are durable and, unless that takes too long, in the rows that are read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import pyarrow as pa

from penstock.change import Key, Row
from penstock.clock import Clock
from penstock.collect.intake import INLINE_EVENTS, Keys, Note, Outcome
from penstock.collect.letters.dead_letters import DeadLedger, Letter
from penstock.collect.limits.stream_guard import StreamGuard
from penstock.collect.sender import Sender
from penstock.collect.tables.row_changes import RowChanges, RowJudge
from penstock.errors import ConditionError, NotReadyError
from penstock.log.builds import BatchMeta
from penstock.log.group_commit import GroupCommit, first_taken
from penstock.log.log import Append, EndsAt, OutcomeKey, Stream
from penstock.observe.signals import EventsTaken, Signals
from penstock.position import Position
from penstock.views.store import Captured, View

LEVEL_S = 1.0
"""How long is waited for the rows to show what was committed; it takes a few milliseconds."""
TRIES = 20
"""How often changes are judged again because somebody else has written the table."""


class CurrentRows:
    """The rows of a table at the end of its stream, and what the requests before have changed."""

    def __init__(self, rows: Mapping[Key, Row], offset: int) -> None:
        self.offset = offset
        self._rows = rows
        self._changed: dict[Key, Row | None] = {}

    def get(self, key: Key) -> Row | None:
        return self._changed[key] if key in self._changed else self._rows.get(key)

    def set(self, key: Key, row: Row | None) -> bool:
        """Whether that is a change."""
        if self.get(key) == row:
            return False
        self._changed[key] = row
        return True


Edit = Callable[[CurrentRows | None], RowChanges]
"""From the rows as they are (None: they are not known) to what becomes of them. It may be called again, with others."""


Written = tuple[Outcome, RowChanges]


@dataclass(eq=False, slots=True)
class _Claim:
    """One request on its way into the log."""

    edit: Edit
    sender: Sender
    received_us: int
    done: asyncio.Future[Written]
    guard: StreamGuard | None = None
    note: Note | None = None
    changes: RowChanges | None = None
    shed: int = 0
    counted: bool = False
    """Its rows count against the sender's rate already."""
    fresh: Sequence[int] = field(default_factory=tuple)
    """Rows of its batch that change something."""


class TableWriter:
    """The way into one table; lives on the edge's loop."""

    def __init__(
        self,
        judge: RowJudge,
        stream: Stream,
        end: Position,
        group: GroupCommit,
        dead: DeadLedger,
        view: View,
        wake: Callable[[str], None],
        clock: Clock,
        signals: Signals,
    ) -> None:
        """`view` has the rows, and follows when it is told to `wake`."""
        self.judge, self.stream, self.end = judge, stream, end
        self._group, self._dead, self._view, self._wake = group, dead, view, wake
        self._clock, self._signals = clock, signals
        self._waiting: list[_Claim] = []
        self._writing: asyncio.Task[None] | None = None

    async def write(
        self, edit: Edit, sender: Sender, guard: StreamGuard | None = None, note: Note | None = None
    ) -> Written:
        """Durable on return. Raises what `edit` raises, what the log raises, and what the table's guard raises;
        `ConditionError` where what the note requires does not hold."""
        done: asyncio.Future[Written] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Claim(edit, sender, self._clock.now_us(), done, guard, note))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_all(), name=f"table {self.stream.name}")
        return await done

    async def drain(self) -> None:
        """Return when nothing is on its way into the log."""
        while self._writing is not None:
            await asyncio.wait([self._writing])

    async def rows(self) -> tuple[Captured, int]:
        """All rows as they are, and the offset at which they are. Raises why they are not known."""
        if await self._level() is None or self._view.content is None:
            raise self.unknown_rows()
        return self._view.content.captured(), self._view.content.offset

    def unknown_rows(self) -> Exception:
        """Why the rows are not known."""
        return self._view.problem or NotReadyError(
            f"the table '{self.stream.name}' is still loading", hint="send it again in a moment"
        )

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                claims = self._next()
                try:
                    await self._write(claims)
                except Exception as error:
                    for claim in claims:
                        if not claim.done.done():
                            claim.done.set_exception(error)
        finally:
            self._writing = None

    def _next(self) -> list[_Claim]:
        """The requests of the next commit."""
        noted = next((at for at, claim in enumerate(self._waiting) if claim.note is not None), len(self._waiting))
        end = max(noted, 1)
        claims, self._waiting = self._waiting[:end], self._waiting[end:]
        return claims

    async def _write(self, claims: list[_Claim]) -> None:
        for _ in range(TRIES):
            claims = [claim for claim in claims if not claim.done.done()]  # who was refused was told so
            rows = await self._level()
            taken = [claim for claim in claims if await self._judged(claim, rows)]
            try:
                position = await self._commit(taken, rows)
            except ConditionError:
                continue
            self.end = position
            self._wake(self.stream.name)
            await self._level()
            self._answer(taken)
            return
        raise ConditionError(f"the table '{self.stream.name}' is being written elsewhere", hint="send it again")

    async def _level(self) -> CurrentRows | None:
        """The rows, once they hold all that is committed."""
        view, end = self._view, self.end.offsets[0]

        def level() -> bool:
            return view.problem is not None or (view.content is not None and view.content.offset >= end)

        if not await view.until(level, LEVEL_S) or view.content is None:
            return None
        return CurrentRows(view.content.rows, view.content.offset)

    async def _judged(self, claim: _Claim, rows: CurrentRows | None) -> bool:
        try:
            changes = claim.changes = claim.edit(rows)
            if claim.guard is not None:
                received = 0 if claim.counted else changes.received
                batch, claim.shed = claim.guard.admit_rows(changes.batch, received, claim.sender)
                claim.counted = True
                claim.changes = RowChanges(batch, changes.rejections)
            many = claim.changes.batch.num_rows > INLINE_EVENTS
            fresh = self._fresh
            claim.fresh = await asyncio.to_thread(fresh, claim.changes, rows) if many else fresh(claim.changes, rows)
        except Exception as error:
            if not claim.done.done():
                claim.done.set_exception(error)
            return False
        return True

    def _fresh(self, changes: RowChanges, rows: CurrentRows | None) -> Sequence[int]:
        if rows is None:
            return range(changes.batch.num_rows)
        new = zip(self.judge.keys(changes.batch), self.judge.rows(changes.batch), strict=True)
        return [number for number, (key, row) in enumerate(new) if rows.set(key, row)]

    async def _commit(self, claims: Sequence[_Claim], rows: CurrentRows | None) -> Position:
        """The end of the table behind what they change."""
        batches = [c.changes.batch.take(pa.array(c.fresh, pa.int64())) for c in claims if c.changes and c.fresh]
        rejected = [(claim, r) for claim in claims if claim.changes for r in claim.changes.rejections]
        letters = [Letter(self.stream.name, r, claim.sender, once=claim.sender.way == "pull") for claim, r in rejected]
        note = claims[0].note if claims else None
        noted = note.requires if note else ()
        keys, reply = note.keys([r for _, r in rejected], claims[0].shed) if note else Keys({})
        appends = []
        if batches:
            meta = BatchMeta(batch=self.end.offsets[0], start={}, end={}, accepted_us=claims[0].received_us)
            requires = noted if rows is None else (EndsAt(self.stream, rows.offset), *noted)
            batch = pa.concat_batches(batches)
            outcomes = () if reply is None else (OutcomeKey(*reply, range(batch.num_rows)),)
            facts = msgspec.to_builtins(meta)
            appends.append(Append(self.stream, batch, facts, requires=requires, sets=keys, outcomes=outcomes))
        elif keys or noted or reply:
            unchanged = {"ack": self.end.token(), "accepted": 0, "duplicates": _unchanged(claims[0])}
            sets = {**keys, **({} if reply is None else {reply[0]: {**reply[1], **unchanged}})}
            appends.append(Append(sets=sets, requires=noted))
        if letters:
            appends.append(self._dead.append(letters, follows=bool(appends)))
        if not appends:
            return self.end
        appended = await first_taken(self._group.append(appends))
        return appended.position if batches else self.end

    def _answer(self, claims: Sequence[_Claim]) -> None:
        token = self.end.token()
        for claim in claims:
            assert claim.changes is not None
            rejections, accepted = claim.changes.rejections, len(claim.fresh)
            same, shed = _unchanged(claim), claim.shed
            self._signals(EventsTaken(self.stream.name, claim.sender.way, accepted, same, len(rejections), shed))
            if not claim.done.done():
                outcome = Outcome(self.end, accepted, same, rejections, shed=shed, token=token)
                claim.done.set_result((outcome, claim.changes))


def _unchanged(claim: _Claim) -> int:
    """How many of its rows the table had already."""
    return 0 if claim.changes is None else int(claim.changes.batch.num_rows) - len(claim.fresh)
