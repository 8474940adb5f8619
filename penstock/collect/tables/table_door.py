"""Takes rows of tables in over HTTP: one by its key in the address, or many in the body of a POST.

1. A 200 means that the change, or the dead letter of what was rejected, is on the disk.
2. `If-Match` and `If-None-Match` are judged against the row that the write replaces, and nothing comes between.
3. Every write may be sent again: the same row once more changes nothing.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from aiohttp import web

from penstock.change import Key, Row
from penstock.collect.intake import Note
from penstock.collect.judging.json_events import Form
from penstock.collect.judging.rejection import Rejection
from penstock.collect.letters.dead_letters import DeadLedger, Letter
from penstock.collect.limits.pressure import Pressure
from penstock.collect.reception import INLINE_BYTES
from penstock.collect.sender import Sender, sender_of
from penstock.collect.tables.row_changes import RowChanges
from penstock.collect.tables.table_writer import CurrentRows, Edit, TableWriter
from penstock.collect.ways.door import WaitAbsorbed
from penstock.collect.ways.door_replies import outcome_reply, replayed_reply
from penstock.collect.ways.idempotency import Idempotency, body_digest
from penstock.collect.ways.kept_replies import KeptReply
from penstock.collect.ways.request_body import RequestBody, SlowBodies
from penstock.collect.ways.request_options import APPLIED_WAIT_S, ack_level, once_key, wait_s
from penstock.config import Limits
from penstock.errors import (
    BadBodyError,
    BadRequestError,
    ConditionError,
    OutcomeUnknownError,
    PenstockError,
    UnknownRowError,
    UnknownTableError,
    UnsupportedContentError,
)
from penstock.observe.signals import EventsTaken, RequestRefused, Signals
from penstock.position import Position
from penstock.rights.credential import NOBODY, credential_of, leave
from penstock.rights.signatures import Signatures
from penstock.views.views import row_tag

_TAGS = re.compile(r'(W/)?("[^"]*")')
Forms = Mapping[str, Form]
_ROW: Forms = {"": "json", "application/json": "json", "application/x-www-form-urlencoded": "json"}
_PATCH: Forms = {**_ROW, "application/merge-patch+json": "json"}
_MANY: Forms = {
    **_ROW,
    "application/x-ndjson": "lines",
    "application/ndjson": "lines",
    "application/jsonl": "lines",
}
"""What bodies may be, by their content type."""
Make = Callable[[bytes, Form], Edit]
"""From a body to what it does with the table."""


@dataclass(frozen=True, slots=True)
class _Condition:
    """What a request requires of the row as it is."""

    match: str | None
    none_match: str | None

    @staticmethod
    def of(request: web.Request) -> _Condition:
        def given(name: str) -> str | None:
            return ",".join(request.headers.getall(name)) if name in request.headers else None

        return _Condition(given("If-Match"), given("If-None-Match"))

    def check(self, writer: TableWriter, rows: CurrentRows | None, key: Key) -> None:
        """Raises `ConditionError`."""
        if self.match is None and self.none_match is None:
            return
        row = _known(writer, rows).get(key)
        if self.match is not None and not _names(self.match, row, weak=False):
            raise _refused("If-Match", "there is no such row" if row is None else f"its ETag is {row_tag(row)}")
        if self.none_match is not None and _names(self.none_match, row, weak=True):
            raise _refused("If-None-Match", "there is such a row")


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a request asks for beside its change."""

    level: str
    wait_s: float
    once: str | None
    """The Idempotency-Key."""
    key: Key | None
    """Of the one row that it is about."""


class TableDoor:
    """The handlers of what changes tables; lives on the edge's loop."""

    def __init__(
        self,
        writers: Mapping[str, TableWriter],
        dead: DeadLedger,
        idempotency: Idempotency,
        wait_absorbed: WaitAbsorbed,
        limits: Limits,
        signals: Signals,
        pressure: Pressure,
        slow: SlowBodies,
        signatures: Signatures,
    ) -> None:
        self._idempotency, self._signatures = idempotency, signatures
        self._writers, self._dead, self._wait_absorbed = writers, dead, wait_absorbed
        self._limits, self._signals, self._pressure, self._slow = limits, signals, pressure, slow
        self.replicates = False
        """Whether what the log acknowledges is on two machines."""

    # What is asked for

    async def put(self, request: web.Request) -> web.StreamResponse:
        """Set a row."""
        writer = self._writer(request)
        key = writer.judge.key_in(raw_key(request))
        return await self._take(request, writer, _ROW, lambda raw, form: _always(writer.judge.one(raw, key)), key)

    async def patch(self, request: web.Request) -> web.StreamResponse:
        """Change fields of a row that is there."""
        writer = self._writer(request)
        key = writer.judge.key_in(raw_key(request))

        def edit(patch: bytes, rows: CurrentRows | None) -> RowChanges:
            row = _known(writer, rows).get(key)
            if row is None:
                raise unknown_row(writer.stream.name)
            return writer.judge.patched(patch, key, row)

        return await self._take(request, writer, _PATCH, lambda raw, form: partial(edit, raw), key)

    async def delete(self, request: web.Request) -> web.StreamResponse:
        """Delete a row; one that is not there stays away."""
        writer = self._writer(request)
        key = writer.judge.key_in(raw_key(request))
        return await self._take(request, writer, _ROW, lambda raw, form: _always(writer.judge.deleted([key])), key)

    async def post(self, request: web.Request) -> web.StreamResponse:
        """Set and delete rows, in one commit."""
        writer = self._writer(request)
        return await self._take(request, writer, _MANY, lambda raw, form: _always(writer.judge.many(raw, form)))

    # How it is taken

    def _writer(self, request: web.Request) -> TableWriter:
        name = request.match_info["table"]
        writer = self._writers.get(name)
        if writer is None:
            raise unknown_table(name, self._writers)
        return writer

    async def _take(
        self, request: web.Request, writer: TableWriter, forms: Forms, make: Make, key: Key | None = None
    ) -> web.StreamResponse:
        try:
            return await self._taken(request, writer, forms, make, key)
        except PenstockError as error:
            if not isinstance(error, BadBodyError):  # its bytes are in `dead`: it was received
                self._signals(RequestRefused(writer.stream.name, error.code))
            raise

    async def _taken(
        self, request: web.Request, writer: TableWriter, forms: Forms, make: Make, key: Key | None
    ) -> web.StreamResponse:
        asked = _Asked(
            self._level(request), wait_s(request, APPLIED_WAIT_S, self._limits.wait_s), once_key(request), key
        )
        account = sender_of(request, "table").account
        self._pressure.guards[writer.stream.name].check(account)
        body = RequestBody(request, self._limits, self._pressure.room, account, self._slow, form=_form(request, forms))
        try:
            await body.receive()
            sender = await self._sender(writer, body)
            raw = await self._read(writer, body, sender)
            edit = await self._edit(writer, body, raw, make, sender)
            if key is not None:
                edit = partial(_required, _Condition.of(request), writer, edit, key)
            if asked.once is None:
                return await self._written(writer, edit, sender, asked)
            return await self._once(request, body.form, raw, writer, edit, sender, asked)
        finally:
            body.close()

    async def _sender(self, writer: TableWriter, body: RequestBody) -> Sender:
        """Raises `SignatureError` when only a signature could tell who sends, and does not."""
        request, name = body.request, writer.stream.name
        if name in self._signatures and credential_of(request, NOBODY) == NOBODY:
            leave(request, await asyncio.to_thread(self._signatures.check, name, request.headers, body.packed))
        return sender_of(request, "table")

    async def _written(
        self, writer: TableWriter, edit: Edit, sender: Sender, asked: _Asked, note: Note | None = None
    ) -> web.StreamResponse:
        outcome, changes = await writer.write(edit, sender, self._pressure.guards[writer.stream.name], note)
        reply = outcome_reply(outcome, await self._reached(outcome.position, asked), None)
        one = asked.key is not None and changes.batch.num_rows
        row = writer.judge.rows(changes.batch)[0] if one else None
        if row is not None:
            reply.headers["ETag"] = row_tag(row)
        return reply

    async def _once(
        self,
        request: web.Request,
        form: Form,
        raw: bytes,
        writer: TableWriter,
        edit: Edit,
        sender: Sender,
        asked: _Asked,
    ) -> web.StreamResponse:
        """By its Idempotency-Key, which stands for the method and the address too."""
        name, digest = writer.stream.name, body_digest(form, f"{request.method} {request.path_qs}\n".encode() + raw)
        assert asked.once is not None
        begun = self._idempotency.begin(name, sender, asked.once, digest)
        if isinstance(begun, KeptReply):
            return await self._replayed(writer, begun, sender, asked)
        try:
            return await self._written(writer, edit, sender, asked, begun.note)
        except ConditionError:  # it may be that an attempt whose outcome was unknown has been written meanwhile
            self._idempotency.end(begun)
            again = self._idempotency.begin(name, sender, asked.once, digest)
            if isinstance(again, KeptReply):
                return await self._replayed(writer, again, sender, asked)
            raise
        except OutcomeUnknownError:
            self._idempotency.doubt(begun)
            raise
        finally:
            self._idempotency.end(begun)

    async def _replayed(
        self, writer: TableWriter, kept: KeptReply, sender: Sender, asked: _Asked
    ) -> web.StreamResponse:
        self._signals(EventsTaken(writer.stream.name, sender.way, 0, kept.received, 0))
        return replayed_reply(kept, await self._reached(kept.position, asked))

    def _level(self, request: web.Request) -> str:
        level = ack_level(request, replicates=self.replicates)
        if level == "none":
            raise BadRequestError(
                "a table answers when a row is written", detail="ack=none", hint="use logged or applied"
            )
        return level

    async def _reached(self, position: Position, asked: _Asked) -> str:
        if asked.level != "applied":
            return asked.level
        views = await self._wait_absorbed(position, asked.wait_s)
        return "applied" if all(view["applied"] for view in views.values()) else "logged"

    async def _read(self, writer: TableWriter, body: RequestBody, sender: Sender) -> bytes:
        """Raises `BadBodyError` after the body is in `dead`."""
        try:
            return await body.unpacked()
        except BadBodyError as error:
            await self._bury(writer, error, body.packed, sender)
            raise

    async def _edit(self, writer: TableWriter, body: RequestBody, raw: bytes, make: Make, sender: Sender) -> Edit:
        """Raises what `_read` raises."""
        try:
            inline = len(raw) <= INLINE_BYTES
            return make(raw, body.form) if inline else await asyncio.to_thread(make, raw, body.form)
        except BadBodyError as error:
            await self._bury(writer, error, raw, sender)
            raise

    async def _bury(self, writer: TableWriter, error: BadBodyError, raw: bytes, sender: Sender) -> None:
        name = writer.stream.name
        await self._dead.keep([Letter(name, Rejection(0, "bad_body", error.detail or error.message, raw), sender)])
        self._signals(EventsTaken(name, sender.way, 0, 0, 1))


def _always(changes: RowChanges) -> Edit:
    return lambda rows: changes


def _required(condition: _Condition, writer: TableWriter, edit: Edit, key: Key, rows: CurrentRows | None) -> RowChanges:
    condition.check(writer, rows, key)
    return edit(rows)


def raw_key(request: web.Request) -> str:
    """What stands behind the name of the table in the address, as it was sent: `%2F` is part of a key."""
    return request.rel_url.raw_path.split("/", 3)[3]


def unknown_table(name: str, known: Iterable[str]) -> UnknownTableError:
    names = ", ".join(known) or "none; declare one with app.table(...)"
    return UnknownTableError(f"no table is called '{name[:80]}'", hint=f"the tables are: {names}")


def unknown_row(table: str) -> UnknownRowError:
    return UnknownRowError(f"the table '{table}' has no row of this key", hint="PUT sets one")


def _known(writer: TableWriter, rows: CurrentRows | None) -> CurrentRows:
    if rows is None:
        raise writer.unknown_rows()
    return rows


def _names(tags: str, row: Row | None, *, weak: bool) -> bool:
    """Whether a header names the row as it is; `*` names any row."""
    if row is None:
        return False
    named = [tag for mark, tag in _TAGS.findall(tags) if weak or not mark]
    return tags.strip() == "*" or row_tag(row) in named


def _refused(header: str, detail: str) -> ConditionError:
    return ConditionError(
        f"the row is not what {header} requires", detail=detail, hint="read the row again, and decide anew"
    )


def _form(request: web.Request, forms: Forms) -> Form:
    given = request.headers.get("Content-Type", "")
    kind, _, parameters = given.partition(";")
    form = forms.get(kind.strip().lower())
    charset = parameters.lower().partition("charset=")[2].strip(' "')
    if form is None or charset not in ("", "utf-8", "utf8"):
        raise UnsupportedContentError(
            f"'{given[:80]}' is not a content type that is taken here",
            hint=f"send -H 'Content-Type: {' or '.join(name for name in forms if '/' in name and 'www' not in name)}'",
        )
    return form
