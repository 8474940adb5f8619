"""Describes the paths of webhooks for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.serve.documented import Thing
from penstock.serve.openapi_parts import Spec, answers, array, obj, text

_NULLABLE: Spec = {"type": ["string", "null"]}
_SELECT: Spec = {"oneOf": [text("With commas between."), array(text()), {"type": "null"}]}
_ANYTHING: Spec = {"description": "Values for the parameters of `where`."}
_SHAPE: Spec = {"type": "string", "enum": ["change", "batch", "digest"], "default": "change"}
_SECONDS: Spec = {"type": ["number", "null"], "minimum": 1, "maximum": 86_400}
_WRITES = (400, 404, 408, 413, 503, 507)

_WEBHOOK = obj(
    id=text(),
    url=text(),
    view=text(),
    stream=text(),
    channel=text(),
    where=_NULLABLE,
    params=_ANYTHING,
    select=_SELECT,
    shape=_SHAPE,
    digest_s=_SECONDS,
    owner=text("The name of the key that made it."),
    created=text(),
    enabled={"type": "boolean"},
    disabled={
        "type": ["object", "null"],
        "properties": {
            "reason": {"type": "string", "enum": ["owner", "gone", "failing", "rights"]},
            "detail": text(),
            "at": text(),
        },
    },
    state={"type": "string", "enum": ["level", "delivering", "paused", "blocked", "disabled"]},
    position=_NULLABLE,
    lag_s={"type": "number"},
    problem=_NULLABLE,
    failing={
        "type": ["object", "null"],
        "properties": {"since": text(), "attempts": {"type": "integer"}, "retry": text(), "error": text()},
    },
)
_ATTEMPT = obj(
    at=text(), status={"type": ["integer", "null"]}, failure=_NULLABLE, error=_NULLABLE, ms={"type": "number"}
)
_DELIVERY = obj(
    id=text("The header `webhook-id`."),
    type=text(),
    position=text(),
    delivered={"type": "boolean"},
    attempts={"type": "integer"},
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
    "where": _NULLABLE,
    "params": _ANYTHING,
    "select": _SELECT,
    "shape": _SHAPE,
    "digest_s": _SECONDS,
}
"""What its maker says of a webhook, and may say anew."""
_CHANGED: Spec = obj(**_CHOSEN, enabled={"type": "boolean"}) | {"required": [], "additionalProperties": False}


_OF_ONE = ("webhook", "change_webhook", "deliveries", "new_secret", "test_delivery", "delete_webhook")
"""Operations that lead on from a new one."""


def webhook_paths(things: Sequence[Thing]) -> Spec:
    """`/webhooks` and everything below it."""
    secret = text("`whsec_` and base64; told this once.")
    told = _WEBHOOK | {"properties": _WEBHOOK["properties"] | {"secret": secret}}
    rotated = obj(id=text(), secret=text(), old_until=_NULLABLE)
    overlap: Spec = {"type": ["number", "null"], "minimum": 0, "maximum": 604_800}
    tested = obj(
        delivered={"type": "boolean"},
        status={"type": ["integer", "null"]},
        failure=_NULLABLE,
        error=_NULLABLE,
        ms={"type": "number"},
    )
    created = answers(None, 400, 404, 408, 409, 413, 503, 507) | _reply(201, "Made", told)
    created["201"]["links"] = {
        name: {"operationId": name, "parameters": {"id": "$response.body#/id"}} for name in _OF_ONE
    }
    replayed = answers(None, *_WRITES) | _reply(202, "It begins at once", _WEBHOOK)
    return {
        "/webhooks": {
            "get": _asks("webhooks", "Your webhooks", answers(obj(webhooks=array(_WEBHOOK)))),
            "post": _asks("make_webhook", "Post changes or events to an address", created, _new(things)),
        },
        "/webhooks/{id}": {
            "get": _of("webhook", "One webhook", answers(_WEBHOOK, 404)),
            "patch": _of("change_webhook", "Change, enable or disable one", answers(_WEBHOOK, *_WRITES, 409), _CHANGED),
            "delete": _of(
                "delete_webhook", "Forget one", answers(None, 404, 503, 507) | {"204": {"description": "Forgotten"}}
            ),
        },
        "/webhooks/{id}/deliveries": {
            "get": _of(
                "deliveries",
                "What became of the newest deliveries",
                answers(obj(webhook=text(), deliveries=array(_DELIVERY)), 404),
            )
        },
        "/webhooks/{id}/secret": {
            "post": _of("new_secret", "Replace the secret", answers(rotated, *_WRITES), obj(overlap_s=overlap))
        },
        "/webhooks/{id}/replay": {
            "post": _of(
                "replay",
                "Deliver again from a position on",
                replayed,
                obj(since=text("A position, or `start`.")) | {"required": ["since"]},
            )
        },
        "/webhooks/{id}/test": {"post": _of("test_delivery", "Send a test at once", answers(tested, 404))},
    }


def _new(things: Sequence[Thing]) -> Spec:
    """What makes one: of exactly one view, stream or channel that the one who asks may read."""
    names = {
        "view": [thing.target for thing in things if thing.kind == "view" and thing.channel is None],
        "stream": [thing.target for thing in things if thing.kind == "stream" and thing.channel is None],
        "channel": [thing.channel for thing in things if thing.channel is not None],
    }
    made = obj(
        **_CHOSEN,
        **{kind: {"type": "string", "enum": known} if known else text() for kind, known in names.items()},
        since={"type": ["string", "null"], "description": "A position, `start` or `now`; left out: now."},
    )
    return made | {
        "required": ["url"],
        "oneOf": [{"required": [kind]} for kind in names],
        "additionalProperties": False,
        **_DIGEST,
    }


def _asks(operation: str, summary: str, responses: Spec, body: Spec | None = None) -> Spec:
    found: Spec = {"operationId": operation, "summary": summary, "responses": responses}
    if body is not None:
        found["requestBody"] = {"content": {"application/json": {"schema": body}}}
    return found


def _of(operation: str, summary: str, responses: Spec, body: Spec | None = None) -> Spec:
    name: Spec = {"name": "id", "in": "path", "required": True, "schema": text()}
    return _asks(operation, summary, responses, body) | {"parameters": [name]}


def _reply(status: int, description: str, schema: Spec) -> Spec:
    return {str(status): {"description": description, "content": {"application/json": {"schema": schema}}}}
