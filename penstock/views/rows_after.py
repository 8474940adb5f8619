"""Finds the row that an event has led to, at the first commit of a view that has absorbed it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.errors import BadRequestError, ForbiddenError
from penstock.position import Position
from penstock.protocol import wire_row
from penstock.views.current import Views, covers
from penstock.views.rule import Reader, ReadRule, parse_ruled, read_rule
from penstock.views.store import View
from penstock.views.unpack import frozen


@dataclass(frozen=True, slots=True)
class RowAt:
    """A view's row in JSON's types, and the view's position."""

    row: Mapping[str, Any] | None
    position: str


class RowsAfter:
    """What senders that wait for a view's answer are told. Belongs to the edge's loop."""

    def __init__(self, views: Views) -> None:
        self._views = views

    def key(self, view: str, stream: str) -> tuple[str, ...]:
        """The columns by which a view's rows are found. Raises `UnknownViewError`, and `BadRequestError` when the view
        does not read the stream."""
        found = self._views.view(view)
        roots = self._views.application.roots(view)
        if stream not in roots:
            raise BadRequestError(
                f"the view '{view}' does not read the stream '{stream}'",
                detail=f"it reads {', '.join(sorted(roots))}",
                hint="ask for a view that is made from these events",
            )
        return found.content.key if found.content else found.definition.key

    def rule(self, view: str, reader: Reader) -> ReadRule:
        """What `reader` may see of a view. Raises `ForbiddenError` for who lacks a claim, `UnknownViewError`."""
        return read_rule(reader, view, self._views.view(view).definition.visible_where)

    async def after(
        self, view: str, key: Mapping[str, Any], position: Position, wait_s: float, reader: Reader
    ) -> RowAt | None:
        """The row at the first commit that has absorbed `position`; None when that was not within `wait_s`.

        A row that is hidden from `reader` is none. Raises `ForbiddenError` where nothing is visible to it.
        """
        found = self._views.view(view)
        answered: asyncio.Future[RowAt] = asyncio.get_running_loop().create_future()

        def look() -> None:
            """Called inside the step that makes a commit visible, so that no later one can be seen."""
            if not answered.done() and covers(found.frontier, position):
                try:
                    answered.set_result(_row(found, key, rule))
                except ForbiddenError as error:
                    answered.set_exception(error)

        rule = self.rule(view, reader)
        stop = found.listen(look)
        try:
            look()
            async with asyncio.timeout(wait_s):
                return await answered
        except TimeoutError:
            return None
        finally:
            stop()


def _row(view: View, key: Mapping[str, Any], rule: ReadRule) -> RowAt:
    content = view.content
    assert content is not None  # it has a frontier
    query = parse_ruled(rule, content.columns, content.key, errors=view.filter_errors)
    row = content.rows.get(tuple(frozen(key.get(name)) for name in content.key))
    names = [column.name for column in query.output]
    seen = row is not None and query.passes(row)
    return RowAt(wire_row(names, query.project(row)) if seen and row else None, content.position.token())
