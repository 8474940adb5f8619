"""Webhooks over HTTP: made, listed, changed, deleted, replayed, tested, and what became of their deliveries.

The table of their routes comes first, then the handlers.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

import msgspec
from aiohttp import web

from penstock.errors import BadRequestError, SlowBodyError
from penstock.json_schema import FLAG, NULLABLE, Spec, also, array, choice, obj, text
from penstock.rights.credential import Credential, credential_of
from penstock.rights.guard import bind
from penstock.route import Link, Parameter, Reply, Route, Schema, Subject, json_body
from penstock.serve.replies import json_reply
from penstock.serve.webhooks.endpoint import Endpoint
from penstock.serve.webhooks.webhook import EXAMPLE, OVERLAP_S, ChangedWebhook, NewWebhook
from penstock.serve.webhooks.webhook_registry import Webhooks

_SELECT: Spec = {"oneOf": [text("With commas between."), array(text()), {"type": "null"}]}
_PARAMS: Spec = {"description": "Values for the parameters of `where`."}
_SHAPE: Spec = choice("change", "batch", "digest") | {"default": "change"}
_SECONDS: Spec = {"type": ["number", "null"], "minimum": 1, "maximum": 86_400}
_WEBHOOK = obj(
    "id, url, view, stream, channel, where?, created, enabled: flag, position?, lag_s: number, problem?,"
    "state: level|delivering|paused|blocked|disabled",
    params=_PARAMS,
    select=_SELECT,
    shape=_SHAPE,
    digest_s=_SECONDS,
    owner=text("The name of the key that made it."),
    disabled=obj("reason: owner|gone|failing|rights, detail, at") | {"type": ["object", "null"]},
    failing=obj("since, attempts: integer, retry, error") | {"type": ["object", "null"]},
)
_ATTEMPT = obj("at, status: integer?, failure?, error?, ms: number")
_DELIVERY = obj(
    "type, position, delivered: flag, attempts: integer",
    id=text("The header `webhook-id`."),
    newest=array(_ATTEMPT),
)
_URL: Spec = {"type": "string", "format": "uri", "pattern": "^https?://", "description": "Where to post to."}
_DIGEST: Spec = {
    "if": {"required": ["shape"], "properties": {"shape": {"const": "digest"}}},
    "then": {"required": ["digest_s"], "properties": {"digest_s": {"type": "number"}}},
    "else": {"properties": {"digest_s": {"type": "null"}}},
}
_CHOSEN: Spec = {
    "url": _URL,
    "where": NULLABLE,
    "params": _PARAMS,
    "select": _SELECT,
    "shape": _SHAPE,
    "digest_s": _SECONDS,
}
"""What its maker says of a webhook, and may say anew."""
_CHANGED: Spec = obj(**_CHOSEN, enabled=FLAG) | {"required": [], "additionalProperties": False}


def _new(subject: Subject) -> Spec:
    """What makes one: of exactly one view, stream or channel that the one who asks may read."""
    names: dict[str, list[str]] = {"view": [], "stream": [], "channel": []}
    for thing in subject.readable:
        names["channel" if thing.channel else thing.kind].append(thing.called)
    since = NULLABLE | {"description": "A position, `start` or `now`; left out: now."}
    targets = {kind: choice(*named) if named else text() for kind, named in names.items()}
    return obj(**_CHOSEN, **targets, since=since) | {
        "required": ["url"],
        "oneOf": [{"required": [kind]} for kind in names],
        "additionalProperties": False,
        **_DIGEST,
    }


_SECRET = text("`whsec_` and base64; told this once.")
_OVERLAP: Spec = {"type": ["number", "null"], "minimum": 0, "maximum": 604_800}
_TESTED = obj("delivered: flag, status: integer?, failure?, error?, ms: number")
_OF_ONE = ("webhook", "change_webhook", "deliveries", "new_secret", "test_delivery", "delete_webhook")
"""Operations that lead on from a new one."""


def _route(request: str, name: str, summary: str, reply: Reply, *errors: int, body: Schema | None = None) -> Route:
    """Everybody has webhooks of their own, and only the edge that delivers them knows how they are."""
    content = None if body is None else json_body(body, required=False)
    id = (Parameter("id", place="path"),) if "{id}" in request else ()
    return Route(request, "any", name, summary, id, content, (reply,), errors, needs_writer=True)


_WRITES = (404, 408, 413, 503, 507)
ROUTES = (
    _route(
        "POST /webhooks",
        "make_webhook",
        "Post changes or events to an address",
        Reply(201, also(_WEBHOOK, secret=_SECRET), "Made", links=tuple(Link(op, "id", "id", op) for op in _OF_ONE)),
        *(*_WRITES, 409),
        body=_new,
    ),
    _route("GET /webhooks", "webhooks", "Your webhooks", Reply(200, obj(webhooks=array(_WEBHOOK)))),
    _route("GET /webhooks/{id}", "webhook", "One webhook", Reply(200, _WEBHOOK), 404),
    _route(
        "PATCH /webhooks/{id}",
        "change_webhook",
        "Change, enable or disable one",
        Reply(200, _WEBHOOK),
        *(*_WRITES, 409),
        body=_CHANGED,
    ),
    _route("DELETE /webhooks/{id}", "delete_webhook", "Forget one", Reply(204, words="Forgotten"), 404, 503, 507),
    _route(
        "GET /webhooks/{id}/deliveries",
        "deliveries",
        "What became of the newest deliveries",
        Reply(200, obj("webhook", deliveries=array(_DELIVERY))),
        404,
    ),
    _route(
        "POST /webhooks/{id}/secret",
        "new_secret",
        "Replace the secret",
        Reply(200, obj("id, secret, old_until?")),
        *_WRITES,
        body=obj(overlap_s=_OVERLAP),
    ),
    _route(
        "POST /webhooks/{id}/replay",
        "replay",
        "Deliver again from a position on",
        Reply(202, _WEBHOOK, "It begins at once"),
        *_WRITES,
        body=obj(since=text("A position, or `start`.")) | {"required": ["since"]},
    ),
    _route("POST /webhooks/{id}/test", "test_delivery", "Send a test at once", Reply(200, _TESTED), 404),
)


_NO_STORE = {"Cache-Control": "no-store"}
_AT_ONCE = 200
"""Webhooks that are listed between two steps of the loop."""


T = TypeVar("T", bound=msgspec.Struct)
OVERLAP_MOST_S = 7 * 86_400.0


class NewSecret(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /webhooks/{id}/secret`."""

    overlap_s: float | None = None


class ReplayRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /webhooks/{id}/replay`."""

    since: str


class WebhookRoutes:
    """The handlers. Everybody sees and changes their own webhooks, an administrator all of them."""

    def __init__(self, webhooks: Webhooks, pause_s: float) -> None:
        """A body must be there within `pause_s`."""
        self._webhooks, self._pause_s = webhooks, pause_s

    def add_routes(self, app: web.Application) -> None:
        bind(
            app,
            ROUTES,
            make_webhook=self._create,
            webhooks=self._list,
            webhook=self._show,
            change_webhook=self._change,
            delete_webhook=self._delete,
            deliveries=self._deliveries,
            new_secret=self._secret,
            replay=self._replay,
            test_delivery=self._test,
        )

    def _endpoint(self, request: web.Request) -> Endpoint:
        return self._webhooks.find(*_who(request))

    async def _create(self, request: web.Request) -> web.Response:
        new = await _body_of(request, NewWebhook, self._pause_s)
        endpoint, secret = await self._webhooks.create(new, credential_of(request))
        return json_reply(endpoint.body() | {"secret": secret}, 201, _NO_STORE)

    async def _list(self, request: web.Request) -> web.Response:
        bodies = []
        for number, endpoint in enumerate(self._webhooks.of(credential_of(request)), 1):
            bodies.append(endpoint.body())
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
        return json_reply({"webhooks": bodies}, headers=_NO_STORE)

    async def _show(self, request: web.Request) -> web.Response:
        return json_reply(self._endpoint(request).body(), headers=_NO_STORE)

    async def _change(self, request: web.Request) -> web.Response:
        self._endpoint(request)
        change = await _body_of(request, ChangedWebhook, self._pause_s, '{"enabled": true}')
        endpoint = await self._webhooks.change(*_who(request), change)
        return json_reply(endpoint.body(), headers=_NO_STORE)

    async def _delete(self, request: web.Request) -> web.Response:
        await self._webhooks.delete(*_who(request))
        return web.Response(status=204)

    async def _deliveries(self, request: web.Request) -> web.Response:
        endpoint = self._endpoint(request)
        body = {"webhook": endpoint.webhook.id, "deliveries": endpoint.attempts.body()}
        return json_reply(body, headers=_NO_STORE)

    async def _secret(self, request: web.Request) -> web.Response:
        id, credential = _who(request)
        self._webhooks.find(id, credential)
        body = await _body_of(request, NewSecret, self._pause_s, '{"overlap_s": 86400}')
        overlap_s = _checked_overlap(body.overlap_s, OVERLAP_S)
        secret, until = await self._webhooks.rotate(id, credential, overlap_s)
        return json_reply({"id": id, "secret": secret, "old_until": until}, headers=_NO_STORE)

    async def _replay(self, request: web.Request) -> web.Response:
        self._endpoint(request)
        replay = await _body_of(request, ReplayRequest, self._pause_s, '{"since": "<position>"}')
        endpoint = await self._webhooks.replay(*_who(request), replay.since)
        return json_reply(endpoint.body(), 202, _NO_STORE)

    async def _test(self, request: web.Request) -> web.Response:
        outcome = await self._webhooks.test(self._endpoint(request))
        return json_reply({"delivered": outcome.taken} | outcome.body(), headers=_NO_STORE)


def _who(request: web.Request) -> tuple[str, Credential]:
    return request.match_info["id"], credential_of(request)


async def _body_of(request: web.Request, kind: type[T], pause_s: float, example: str = EXAMPLE) -> T:
    """The body as this class. Raises `BadRequestError`; one that is too large is a 413."""
    try:
        async with asyncio.timeout(pause_s):
            raw = await request.read()
        return msgspec.json.decode(raw or b"{}", type=kind)
    except TimeoutError:
        raise SlowBodyError("the body did not come in time", hint="send it again") from None
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise BadRequestError("the body is not what this takes", detail=str(error), hint=f"send {example}") from None
    except RecursionError:
        raise BadRequestError("the body is nested deeper than can be read") from None


def _checked_overlap(overlap_s: float | None, default_s: float) -> float:
    if overlap_s is None:
        return default_s
    if not 0 <= overlap_s <= OVERLAP_MOST_S:
        raise BadRequestError(f"overlap_s={overlap_s:g} is not possible", hint=f"use 0 to {OVERLAP_MOST_S:g} seconds")
    return overlap_s
