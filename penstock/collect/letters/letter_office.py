"""Shows and replays dead letters over HTTP: `GET /dead`, `GET /dead/{letter}` and `POST /dead/replay`."""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any

import msgspec
from aiohttp import web

from penstock.clock import Clock, rfc3339
from penstock.collect.collect_routes import ROUTES
from penstock.collect.intake import Intake
from penstock.collect.letters.replayer import LetterReader, Replayer, Wish
from penstock.collect.letters.stored_letters import (
    LetterQuery,
    Mask,
    Replayed,
    StoredLetter,
    StoredLetters,
    as_it_is,
    masked,
)
from penstock.collect.limits.room import Room
from penstock.collect.sender import sender_of
from penstock.collect.tables.table_writer import TableWriter
from penstock.collect.ways.door_replies import error_reply, json_reply
from penstock.collect.ways.request_body import RequestBody, SlowBodies
from penstock.config import Limits
from penstock.declaration import PullDef
from penstock.errors import BadBodyError, BadRequestError, LogUnavailableError, PenstockError, StaleTermError
from penstock.log.folder_log import FolderLog
from penstock.observe.signals import CollectFailed, Signals
from penstock.position import Position
from penstock.rights.credential import credential_of
from penstock.rights.guard import bind

PAGE_LETTERS = 100
MOST_LETTERS = 1_000
_NO_STORE = {"Cache-Control": "no-store"}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class _Letter(msgspec.Struct, forbid_unknown_fields=True):
    letter: str
    events: list[msgspec.Raw] | None = None


class _ReplayOrder(msgspec.Struct, forbid_unknown_fields=True):
    letters: list[_Letter]
    dry_run: bool = False


_orders = msgspec.json.Decoder(_ReplayOrder)


class DeadLetterOffice:
    """Made beside `Collect`; its handlers live on the edge's loop, its reading in threads."""

    def __init__(
        self,
        log: FolderLog,
        memory: Mapping[str, Any],
        intakes: Mapping[str, Intake],
        limits: Limits,
        clock: Clock,
        signals: Signals,
        mask: Mask | None = None,
        pulls: Iterable[PullDef] = (),
        room: Room | None = None,
        slow: SlowBodies | None = None,
        filtered: Collection[str] = (),
        tables: Mapping[str, TableWriter] | None = None,
    ) -> None:
        """`memory` is that of the edge's own log, `room` and `slow` those of its door; `pulls` are the app's, whose
        letters are mapped again. `filtered` are the streams of which each reader sees its own events only: their
        letters are an administrator's."""
        replayed = Replayed(memory)
        self._letters = StoredLetters(log, replayed)
        self._replayer = Replayer(self._letters, replayed, intakes, clock, LetterReader(pulls), tables or {})
        self._limits, self._signals = limits, signals
        kinds = {name: intake.judge.stream.events.kind for name, intake in intakes.items()}
        kinds |= {name: writer.judge.table.events.kind for name, writer in (tables or {}).items()}
        self._mask = mask or masked(kinds)
        self._room = room or Room(limits.unwritten_bytes, limits.unwritten_events, clock)
        self._slow, self._filtered = slow, frozenset(filtered)

    def add_routes(self, app: web.Application, *, replays: bool = True) -> None:
        """`replays`: False on an edge that only reads."""
        bind(app, ROUTES, dead_letters=self._guarded(self._list), dead_letter=self._guarded(self._show))
        if replays:
            bind(app, ROUTES, replay_dead_letters=self._guarded(self._replay))

    def _guarded(self, handler: Handler) -> Handler:
        async def guarded(request: web.Request) -> web.StreamResponse:
            try:
                return await handler(request)
            except StaleTermError as error:
                reply = error_reply(LogUnavailableError("another process writes this log now", detail=error.message))
            except PenstockError as error:
                reply = error_reply(error)
            except ConnectionError:
                raise
            except Exception as error:
                self._signals(CollectFailed(request.path, error))
                reply = error_reply(PenstockError("the server met an error of its own", hint="see the server's log"))
            if not request.content.is_eof():
                reply.force_close()
            return reply

        return guarded

    async def _list(self, request: web.Request) -> web.StreamResponse:
        query = request.query
        filters = LetterQuery(
            query.get("stream"), query.get("reason"), _since(query.get("since")), _flag(query, "replayed")
        )
        after = Position.parse(query["after"], "stream", "dead") if query.get("after") else None
        page = await asyncio.to_thread(self._letters.page, filters, after, _limit(query.get("limit")))
        shown = as_it_is if _flag(query, "masked") is False else self._mask
        letters = [self._body(letter, shown(letter)) for letter in page.letters]
        return json_reply(200, {"letters": letters, "next": page.next.token(), "more": page.more}, _NO_STORE)

    async def _show(self, request: web.Request) -> web.StreamResponse:
        letter = await asyncio.to_thread(self._letters.find, request.match_info["letter"])
        return json_reply(200, self._body(letter, letter.raw), _NO_STORE)

    async def _replay(self, request: web.Request) -> web.StreamResponse:
        sender = sender_of(request, "replay")
        body = RequestBody(request, self._limits, self._room, sender.account, self._slow)
        try:
            order = _order(await _read(body))
            wishes = [Wish(a.letter, None if a.events is None else [bytes(e) for e in a.events]) for a in order.letters]
            done = await self._replayer.replay(wishes, sender, self._may(request), dry_run=order.dry_run)
        finally:
            body.close()
        results = [result.body() for result in done.results]
        counts = {"accepted": done.accepted, "duplicates": done.duplicates, "acks": done.acks}
        return json_reply(200, {"letters": results} | counts)

    def _may(self, request: web.Request) -> Callable[[str], bool]:
        """Whether the caller may know and settle the letters of a stream: to write there is not enough, because what
        others sent would be told from a replay, or used up by it."""
        credential = credential_of(request)

        def may(stream: str) -> bool:
            allowed = credential.may("write", stream) and credential.may("read", "dead")
            return allowed and (stream not in self._filtered or credential.sees_all)

        return may

    def _body(self, letter: StoredLetter, raw: bytes) -> dict[str, Any]:
        return {
            "letter": letter.name,
            "stream": letter.stream,
            "reason": letter.reason,
            "detail": letter.detail,
            "received": rfc3339(letter.received_us),
            "sent_at": None if letter.sent_us is None else rfc3339(letter.sent_us),
            "sender": letter.sender,
            "flow": letter.flow,
            "replayed": self._letters.is_replayed(letter),
            "cut": letter.cut,
            "raw": base64.b64encode(raw).decode(),
        }


async def _read(body: RequestBody) -> bytes:
    try:
        return await body.read()
    except BadBodyError as error:  # which is kept in `dead` elsewhere, and not here
        raise BadRequestError(error.message, detail=error.detail, hint=error.hint) from None


def _order(raw: bytes) -> _ReplayOrder:
    try:
        return _orders.decode(raw)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise BadRequestError(
            "the body is not a request to replay",
            detail=str(error),
            hint='send {"letters": [{"letter": "0-17"}]}; "events": [...] replaces what the letter holds',
        ) from None
    except RecursionError:
        raise BadRequestError("the body is nested deeper than can be read") from None


def _since(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        moment = dt.datetime.fromisoformat(text)
        return round(moment.replace(tzinfo=moment.tzinfo or dt.UTC).timestamp() * 1_000_000)
    except (ValueError, OverflowError):
        raise BadRequestError(f"since='{text[:40]}' is not a time", hint="write 2026-05-01T10:00:00Z") from None


def _flag(query: Mapping[str, str], name: str) -> bool | None:
    text = query.get(name)
    if text not in (None, "true", "false"):
        raise BadRequestError(f"{name}='{text[:40]}' is neither true nor false", hint="leave it out for the default")
    return None if text is None else text == "true"


def _limit(text: str | None) -> int:
    if text is None:
        return PAGE_LETTERS
    if not (text.isascii() and text.isdigit() and 0 < int(text[:9]) <= MOST_LETTERS):
        raise BadRequestError(f"limit='{text[:40]}' is not a number of letters", hint=f"use 1 to {MOST_LETTERS}")
    return int(text)
