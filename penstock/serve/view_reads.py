"""Answers `GET /views/{view}`: rows at one position, after waiting for what the caller has written."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from penstock.clock import Clock
from penstock.config import Limits
from penstock.errors import BadRequestError, NotYetError, PositionGoneError
from penstock.position import Position, frontier_body
from penstock.protocol import encode
from penstock.rights.credential import credential_of
from penstock.rights.rights import Rights
from penstock.serve.describe.serve_routes import OF_ROWS
from penstock.serve.fanout.answers import answer, json_parts, prepare, written
from penstock.serve.fanout.hub import Hub
from penstock.serve.fanout.messages import RowCodec, complete_of
from penstock.serve.longpoll import Replies, poll
from penstock.serve.question import Question, key_in, seconds
from penstock.serve.replies import JSON, cache_of, has_tag
from penstock.views.read_query import Query
from penstock.views.store import Content, View
from penstock.views.views import Views


class ViewReads:
    """Reading views, one request at a time."""

    def __init__(self, views: Views, hub: Hub, limits: Limits, clock: Clock, rights: Rights) -> None:
        """`rights` tell when one ends, which may happen while a request waits."""
        self._views = views
        self._rights = rights
        self._hub = hub
        self._limits = limits
        self._clock = clock
        self._replies = Replies()

    async def read(self, request: web.Request, view: View, question: Question) -> web.StreamResponse:
        """`question` is what the request asks, under the rule of who asks."""
        deadline = self._clock.monotonic() + seconds(request.query, self._limits)
        if "since" in request.query:
            position = Position.parse(request.query["since"], "view", view.name)
            if also := next((name for name in request.query if name in OF_ROWS), None):
                raise BadRequestError(
                    f"since= gives the messages behind a position, and {also}= is of rows", hint=f"leave {also}= out"
                )
            credential = credential_of(request)
            return await poll(
                request,
                self._hub,
                view,
                question,
                position,
                self._left(deadline),
                self._replies,
                shared=credential.is_anonymous,
                still=lambda: self._rights.still(credential),
                ended=self._rights.watch(credential),
            )
        question.query(view, await view.loaded(self._left(deadline)))  # what is wrong with it is told before waiting
        await self.reached(view, request.query, self._left(deadline))
        content = await view.loaded(self._left(deadline))
        await prepare(question.query(view, content), content)
        if view.content is not content:  # rebuilt meanwhile
            content = await view.loaded(self._left(deadline))
        return await self._answer(request, view, content, question)

    async def reached(self, view: View, fields: Mapping[str, Any], wait_s: float) -> None:
        """Wait for what the caller has written (`after`) and for what it has seen elsewhere (`at_least`).

        A subscription that begins with it shows both in its snapshot. Raises `NotYetError` when time is up.
        """
        deadline = self._clock.monotonic() + wait_s
        if (after := _token(fields, "after")) is not None:
            position = Position.parse(after)
            if self._views.application.table(position.name) is None:
                Position.parse(after, "stream")  # says what is wrong with it
            await self._views.wait_after(view, position, wait_s)
        if (at_least := _token(fields, "at_least")) is not None:
            await self._wait_at_least(view, Position.parse(at_least, "view", view.name), self._left(deadline))

    def _left(self, deadline: float) -> float:
        return max(0.0, deadline - self._clock.monotonic())

    async def _wait_at_least(self, view: View, position: Position, timeout_s: float) -> None:
        def reached() -> bool:
            return view.content is not None and view.content.position.covers(position)

        if await view.until(reached, timeout_s):
            return
        if view.content is not None and view.content.shown != position.epoch:
            raise PositionGoneError(
                f"the view '{view.name}' was rebuilt since this position was given",
                hint="leave at_least out, and keep the new position",
            )
        raise NotYetError(
            f"the view '{view.name}' has not reached this position within {timeout_s:g} s",
            detail=f"its frontier is {frontier_body(view.frontier)}",
            hint="ask again with a longer wait=",
        )

    async def _answer(
        self, request: web.Request, view: View, content: Content, question: Question
    ) -> web.StreamResponse:
        """The rows, position and frontier of one moment: nothing is awaited between taking them."""
        query = question.query(view, content)
        head = {"view": view.name, "position": content.position.token(), "frontier": frontier_body(view.frontier)}
        if (complete := complete_of(content.meta)) is not None:
            head["complete"] = complete
        key = request.query.get("key")
        headers = cache_of(request) | {"ETag": _etag(head, query, key)}
        if has_tag(request, headers["ETag"]):
            return web.Response(status=304, headers=headers)
        if key is not None:
            row = content.rows.get(key_in(key, content))
            rows = [query.project(row)] if row is not None and query.passes(row) else []
        else:
            rows = await answer(query, content)
        return await self._send(request, head, RowCodec(query), rows, headers)

    async def _send(
        self, request: web.Request, head: dict[str, Any], codec: RowCodec, rows: list[Any], headers: dict[str, str]
    ) -> web.StreamResponse:
        start = encode(head)[:-1] + b',"rows":['
        if len(rows) <= self._limits.snapshot_part_rows:
            parts = [part async for part in json_parts(codec, rows, self._limits.snapshot_part_rows)]
            body = start + encode(parts[0])[1:-1] + b"]}"
            return web.Response(body=body, content_type=JSON, charset="utf-8", headers=headers)
        self._rights.still(credential_of(request))
        response = web.StreamResponse(headers=headers | {"Content-Type": f"{JSON}; charset=utf-8"})
        await response.prepare(request)
        if request.method == "HEAD":
            return response
        async for part in json_parts(codec, rows, self._limits.snapshot_part_rows):
            await written(response, start + encode(part)[1:-1], self._limits)
            start = b","
        await response.write(b"]}")
        await response.write_eof()
        return response


def _token(fields: Mapping[str, Any], name: str) -> str | None:
    value = fields.get(name)
    if value is None or isinstance(value, str):
        return value
    raise BadRequestError(f"'{name}' must be a text", hint="pass a token as the server gave it")


def _etag(head: dict[str, Any], query: Query, key: str | None) -> str:
    """It holds the rule too: equal tags are equal answers, whoever asks."""
    wheres = [str(where) for where in (*query.rule, query.where)]
    facts = (head, wheres, query.select, [str(item) for item in query.order_by], query.limit, key)
    return f'"{hashlib.blake2b(encode(facts), digest_size=12).hexdigest()}"'
