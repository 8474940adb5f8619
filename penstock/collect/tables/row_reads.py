"""Answers `GET /tables/{table}/{key}`: one row with its ETag, as far as the one who asks may see it."""

from __future__ import annotations

import datetime as dt

from aiohttp import web

from penstock.collect.tables.row_changes import RowJudge
from penstock.collect.tables.table_door import raw_key, unknown_row, unknown_table
from penstock.collect.ways.door_replies import json_reply
from penstock.config import Limits
from penstock.declaration import Application
from penstock.errors import BadRequestError
from penstock.rights.credential import credential_of
from penstock.views.views import RowsAfter, Views, row_tag
from penstock.views.where.sql_types import parse_timestamp

WAIT_S = 5.0
"""How long is waited for a table that is still loading."""


class RowReads:
    """The handler; lives on the edge's loop."""

    def __init__(self, application: Application, views: Views, limits: Limits) -> None:
        self._judges = {table.name: RowJudge(table, limits) for table in application.tables}
        self._views, self._rows = views, RowsAfter(views)

    async def get(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["table"]
        if name not in self._judges:
            raise unknown_table(name, self._judges)
        key, view = self._judges[name].key_in(raw_key(request)), self._views.view(name)
        rule = self._rows.rule(name, credential_of(request))
        content = await view.loaded(WAIT_S)
        if (at := request.query.get("at")) is not None:
            was = await self._rows.row_at(view, key, self._moment_us(name, at), rule)
            if was is None:
                raise unknown_row(name)
            return json_reply(200, was)
        shown, row = self._rows.row(view, key, rule), content.rows.get(key)
        if shown is None or row is None:
            raise unknown_row(name)
        tag = None if rule.columns is not None else row_tag(row)  # who sees a part must not guess at the rest
        headers = {} if tag is None else {"ETag": tag}
        if tag is not None and tag in request.headers.get("If-None-Match", ""):
            return web.Response(status=304, headers=headers)
        return json_reply(200, shown, headers)

    def _moment_us(self, name: str, text: str) -> int:
        """A time in an address. Raises `BadRequestError`, also where the table keeps no versions."""
        if self._judges[name].table.versions_us is None:
            raise BadRequestError(
                f"the table '{name}' keeps no old rows",
                hint='declare versions="30 days" on app.table, or leave out at=',
            )
        try:
            return int(text) * 1000 if text.lstrip("-").isdigit() else _microseconds(parse_timestamp(text))
        except (ValueError, OverflowError) as error:
            raise BadRequestError(
                f"at={text[:80]!r} is no time", detail=str(error), hint="write 2026-05-01T10:00:00Z, or milliseconds"
            ) from None


def _microseconds(moment: dt.datetime) -> int:
    return (moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)
