"""Webhooks over HTTP: made, listed, changed, deleted, replayed, tested, and what became of their deliveries."""

from __future__ import annotations

import asyncio

from aiohttp import web

from penstock.rights.credential import Credential, credential_of
from penstock.serve.replies import json_reply
from penstock.serve.webhooks.endpoint import Endpoint
from penstock.serve.webhooks.signing import OVERLAP_S
from penstock.serve.webhooks.webhook_registry import Webhooks
from penstock.serve.webhooks.webhook_request import (
    ChangedWebhook,
    NewSecret,
    NewWebhook,
    Replay,
    body_of,
    checked_overlap,
)

_NO_STORE = {"Cache-Control": "no-store"}
_AT_ONCE = 200
"""Webhooks that are listed between two steps of the loop."""


class WebhookRoutes:
    """The handlers. Who asks sees and changes its own webhooks, an administrator all of them."""

    def __init__(self, webhooks: Webhooks, pause_s: float) -> None:
        """A body must be there within `pause_s`."""
        self._webhooks, self._pause_s = webhooks, pause_s

    def add_routes(self, app: web.Application) -> None:
        app.router.add_post("/webhooks", self._create)
        app.router.add_get("/webhooks", self._list)
        app.router.add_get("/webhooks/{id}", self._show)
        app.router.add_patch("/webhooks/{id}", self._change)
        app.router.add_delete("/webhooks/{id}", self._delete)
        app.router.add_get("/webhooks/{id}/deliveries", self._deliveries)
        app.router.add_post("/webhooks/{id}/secret", self._secret)
        app.router.add_post("/webhooks/{id}/replay", self._replay)
        app.router.add_post("/webhooks/{id}/test", self._test)

    def _found(self, request: web.Request) -> Endpoint:
        return self._webhooks.find(*_who(request))

    async def _create(self, request: web.Request) -> web.Response:
        asked = await body_of(request, NewWebhook, self._pause_s)
        endpoint, secret = await self._webhooks.create(asked, credential_of(request))
        return json_reply(endpoint.body() | {"secret": secret}, 201, _NO_STORE)

    async def _list(self, request: web.Request) -> web.Response:
        bodies = []
        for number, endpoint in enumerate(self._webhooks.of(credential_of(request)), 1):
            bodies.append(endpoint.body())
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
        return json_reply({"webhooks": bodies}, headers=_NO_STORE)

    async def _show(self, request: web.Request) -> web.Response:
        return json_reply(self._found(request).body(), headers=_NO_STORE)

    async def _change(self, request: web.Request) -> web.Response:
        self._found(request)
        asked = await body_of(request, ChangedWebhook, self._pause_s, '{"enabled": true}')
        endpoint = await self._webhooks.change(*_who(request), asked)
        return json_reply(endpoint.body(), headers=_NO_STORE)

    async def _delete(self, request: web.Request) -> web.Response:
        await self._webhooks.delete(*_who(request))
        return web.Response(status=204)

    async def _deliveries(self, request: web.Request) -> web.Response:
        endpoint = self._found(request)
        body = {"webhook": endpoint.webhook.id, "deliveries": endpoint.attempts.body()}
        return json_reply(body, headers=_NO_STORE)

    async def _secret(self, request: web.Request) -> web.Response:
        id, credential = _who(request)
        self._webhooks.find(id, credential)
        asked = await body_of(request, NewSecret, self._pause_s, '{"overlap_s": 86400}')
        overlap_s = checked_overlap(asked.overlap_s, OVERLAP_S)
        secret, until = await self._webhooks.rotate(id, credential, overlap_s)
        return json_reply({"id": id, "secret": secret, "old_until": until}, headers=_NO_STORE)

    async def _replay(self, request: web.Request) -> web.Response:
        self._found(request)
        asked = await body_of(request, Replay, self._pause_s, '{"since": "<position>"}')
        endpoint = await self._webhooks.replay(*_who(request), asked.since)
        return json_reply(endpoint.body(), 202, _NO_STORE)

    async def _test(self, request: web.Request) -> web.Response:
        outcome = await self._webhooks.test(self._found(request))
        said = None if outcome.taken else outcome.text()
        body = {"delivered": outcome.taken, "status": outcome.status, "failure": outcome.failure}
        return json_reply(body | {"error": said, "ms": outcome.ms}, headers=_NO_STORE)


def _who(request: web.Request) -> tuple[str, Credential]:
    return request.match_info["id"], credential_of(request)
