"""Tells what became of a request after its reply: `GET /acks/{token}`, for receipts and for positions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from penstock.clock import Clock
from penstock.collect.ways.door import WaitAbsorbed
from penstock.collect.ways.door_replies import error_reply, json_reply
from penstock.collect.ways.kept_replies import KeptReply
from penstock.collect.ways.receipts import Receipts
from penstock.collect.ways.request_options import wait_s
from penstock.config import Limits
from penstock.errors import BadPositionError, PenstockError, UnknownAckError
from penstock.observe.signals import CollectFailed, Signals
from penstock.position import Position
from penstock.rights.credential import Credential, credential_of


class Acks:
    """The handler of `GET /acks/{token}`; lives on the edge's loop."""

    def __init__(
        self,
        end_of: Callable[[str], Awaitable[Position | None]],
        receipts: Receipts,
        wait_absorbed: WaitAbsorbed,
        limits: Limits,
        clock: Clock,
        signals: Signals,
        refusal: Callable[[], PenstockError] | None = None,
    ) -> None:
        """`end_of` says where a stream ends, None of one that is not the door's. An edge that only reads does not know
        what is under way at the door: for a receipt that it does not know it has `refusal`."""
        self._end_of, self._receipts, self._wait_absorbed = end_of, receipts, wait_absorbed
        self._limits, self._clock, self._signals, self._refusal = limits, clock, signals, refusal

    async def get(self, request: web.Request) -> web.StreamResponse:
        try:
            position = Position.parse(request.match_info["token"])
            patience_s = wait_s(request, 0.0, self._limits.wait_s)
            body = _shown_to(credential_of(request), await self._answer(position, patience_s))
            return json_reply(200, body, {"Cache-Control": "no-store"})
        except PenstockError as error:
            return error_reply(error)
        except Exception as error:
            self._signals(CollectFailed(request.path, error))
            return error_reply(PenstockError("the server met an error of its own", hint="see the server's log"))

    async def _answer(self, position: Position, patience_s: float) -> dict[str, Any]:
        if position.kind == "view" and await self._end_of(position.name) is None:
            raise BadPositionError("this token is a position of a view", hint="pass the 'ack' of a POST to a stream")
        if position.kind != "receipt":
            return await self._of_position(await self._known(position), patience_s)
        until = self._clock.monotonic() + patience_s
        receipt = await self._receipts.find(position.epoch, patience_s)
        if receipt is None:
            return self._without_receipt(position)
        return await self._of_receipt(receipt, max(0.0, until - self._clock.monotonic()))

    async def _of_position(self, position: Position, patience_s: float) -> dict[str, Any]:
        views = await self._wait_absorbed(position, patience_s)
        level = "applied" if all(view["applied"] for view in views.values()) else "logged"
        return {"ack": position.token(), "level": level, "views": views}

    async def _of_receipt(self, receipt: KeptReply, patience_s: float) -> dict[str, Any]:
        body = await self._of_position(await self._known(receipt.position), patience_s)
        body |= {"accepted": receipt.accepted, "duplicates": receipt.duplicates, "rejected": receipt.rejected}
        if receipt.rejected_in_all > len(receipt.rejected):
            body["rejected_in_all"] = receipt.rejected_in_all
        if receipt.shed:
            body["shed"] = receipt.shed
        return body if receipt.error is None else body | {"error": receipt.error}

    def _without_receipt(self, position: Position) -> dict[str, Any]:
        if self._receipts.pending(position.epoch):
            return {"ack": position.token(), "level": "pending"}
        if self._refusal is not None:
            raise self._refusal()
        lost = self._receipts.lost(position.epoch)
        detail = f"{lost['code']}: {lost['message']}" if lost else None
        raise _unknown(detail)

    async def _known(self, position: Position) -> Position:
        """A position of ours that is durable; anything else was never given out by this log."""
        end = await self._end_of(position.name)
        if end is None or not end.covers(position):
            raise _unknown(None)
        return position


def _shown_to(credential: Credential, body: dict[str, Any]) -> dict[str, Any]:
    """Without the names and positions of views that who asks may not read; the level is that of all views."""
    views = body.get("views", {})
    return body | ({"views": {n: v for n, v in views.items() if credential.may("read", n)}} if views else {})


def _unknown(detail: str | None) -> UnknownAckError:
    return UnknownAckError(
        "no request is known under this token",
        detail=detail,
        hint="a receipt of ack=none is kept for an hour; if its events were lost in a crash, send them again",
    )
