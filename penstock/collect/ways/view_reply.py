"""Answers a POST with the row that its event has led to: `?reply=<view>`, a decision in the same call.

The row is read at the first commit of the view that has absorbed the event. Its key must be made of fields of the
event, because that is how the row is found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from aiohttp import web

from penstock.collect.intake import Intake
from penstock.collect.judging.incoming_events import DecodedEvents
from penstock.errors import BadRequestError
from penstock.position import Position
from penstock.rights.credential import Credential, credential_of

MayRead = Callable[[web.Request, str], None]
"""Raises what the sender is told when it may not read the view of that name."""


class RowAnswer(Protocol):
    """A view's row at one of its positions."""

    @property
    def row(self) -> Mapping[str, Any] | None:
        """None when there is none of that key."""

    @property
    def position(self) -> str: ...


class ViewRows(Protocol):
    """What the views tell: `penstock.views.views.RowsAfter`."""

    def key(self, view: str, stream: str) -> tuple[str, ...]:
        """The columns by which a view's rows are found. Raises `UnknownViewError`, and `BadRequestError` when the view
        does not read the stream."""

    def rule(self, view: str, reader: Credential) -> object:
        """Raises `ForbiddenError` when a claim is missing that decides what `reader` sees of the view."""

    async def after(
        self, view: str, key: Mapping[str, Any], position: Position, wait_s: float, reader: Credential
    ) -> RowAnswer | None:
        """The row at the first commit that has absorbed `position`; None when that was not within `wait_s`. A row that
        is hidden from `reader` is none."""


class ViewReplies:
    """Finds the rows that senders ask for."""

    def __init__(self, rows: ViewRows | None, may_read: MayRead) -> None:
        self._rows, self._may_read = rows, may_read

    def check(self, request: web.Request, view: str, intake: Intake) -> None:
        """Before anything is taken."""
        if self._rows is None:
            raise BadRequestError("this process has no views", hint="leave out reply=")
        self._may_read(request, view)
        self._rows.rule(view, credential_of(request))
        fields = intake.judge.stream.events.names
        missing = [name for name in self._rows.key(view, intake.stream.name) if name not in fields]
        if missing:
            raise BadRequestError(
                f"the row of '{view}' cannot be found by the event",
                detail=f"its key has {', '.join(missing)}, which is no field of the event",
                hint="use reply= with a view whose key is made of fields of the event; else ack=applied, then read it",
            )

    def check_one(self, decoded: DecodedEvents) -> None:
        if decoded.received != 1:
            raise BadRequestError(
                "reply= answers for one event", detail=f"the body holds {decoded.received}", hint="send them one by one"
            )

    async def body(
        self, reader: Credential, view: str, intake: Intake, decoded: DecodedEvents, position: Position, wait_s: float
    ) -> dict[str, Any] | None:
        """What the reply has beside the outcome, once the view has absorbed `position`; None when the time is over."""
        assert self._rows is not None
        schema = intake.judge.stream.events
        columns = schema.columns(decoded.events) if decoded.columns is None else decoded.columns.columns
        event = {name: column[0].as_py() for name, column in zip(schema.names, columns, strict=True)}
        key = {name: event[name] for name in self._rows.key(view, intake.stream.name)}
        answer = await self._rows.after(view, key, position, wait_s, reader)
        return None if answer is None else {"view": view, "row": answer.row, "position": answer.position}


def by_credential(request: web.Request, view: str) -> None:
    """Whoever has the right `read:<view>`."""
    credential_of(request).require("read", view)
