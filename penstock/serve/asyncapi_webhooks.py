"""Describes for AsyncAPI what webhooks deliver: requests to addresses that clients chose, in three shapes.

Deliveries are not subscriptions: they have headers with an id and a signature (Standard Webhooks), and a `reset` says
where to read from instead of being followed by a snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from penstock.serve.asyncapi_parts import Channel, message
from penstock.serve.openapi_parts import Spec, array, record, ref, text

_HEADERS = record(
    **{
        "webhook-id": text("The same whenever the content is: over retries, crashes and replays."),
        "webhook-timestamp": text("When this try was sent: seconds since 1970."),
        "webhook-signature": text("`v1,` and base64; several with blanks between while the secret is changed."),
    }
)


def webhook_channels(things: Iterable[tuple[str, str]]) -> Iterator[Channel]:
    """Of views and streams: `("view", "topics")`."""
    for kind, name in things:
        own = _of_view(name) if kind == "view" else _of_stream(name)
        made = {k: message(k, payload, headers=_HEADERS) for k, payload in (own | _of_both(kind, name)).items()}
        summary = f"The {kind} {name}, posted to an address of yours"
        yield Channel(f"webhook.{kind}.{name}", None, summary, None, made, method="POST")


def _of_view(view: str) -> Spec:
    row, key = ref(f"view.{view}"), ref(f"view.{view}.key")
    head: Spec = {"view": {"const": view}, "position": ref("Position")}
    return {
        "upsert": record(type={"const": "upsert"}, **head, row=row),
        "delete": record(type={"const": "delete"}, **head, key=key),
        "changes": ref(f"view.{view}.changes"),
        "snapshot": ref(f"view.{view}.snapshot"),
        "digest": record(
            type={"const": "digest"}, **head, since=ref("Position"), upserts=array(row), deletes=array(key)
        ),
    }


def _of_stream(stream: str) -> Spec:
    event = ref(f"stream.{stream}")
    head: Spec = {"stream": {"const": stream}, "position": ref("Position")}
    return {
        "event": record(type={"const": "event"}, **head, event=event),
        "events": record(type={"const": "events"}, **head, events=array(event)),
    }


def _of_both(kind: str, name: str) -> Spec:
    reason = text("Why what you hold may be out of date: read the view or stream, from this position on.")
    named: Spec = {kind: {"const": name}}
    return {
        "reset": record(type={"const": "reset"}, **named, position=ref("Position"), reason=reason),
        "test": record(type={"const": "test"}, webhook=text(), **named, at=text()),
    }
