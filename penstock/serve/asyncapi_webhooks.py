"""Describes for AsyncAPI what webhooks deliver: requests to addresses that clients chose, in three shapes.

Deliveries are not subscriptions: they have headers with an id and a signature (Standard Webhooks), and a `reset` says
where to read from instead of being followed by a snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from penstock.serve.asyncapi_parts import Channel, message
from penstock.serve.documented import Thing
from penstock.serve.openapi_parts import Spec, array, record, ref, text

_HEADERS = record(
    **{
        "webhook-id": text("The same whenever the content is: over retries, crashes and replays."),
        "webhook-timestamp": text("When this try was sent: seconds since 1970."),
        "webhook-signature": text("`v1,` and base64; several with blanks between while the secret is changed."),
    }
)


def webhook_channels(things: Iterable[Thing]) -> Iterator[Channel]:
    for thing in things:
        own = _of_view(thing) if thing.kind == "view" else _of_stream(thing)
        made = {k: message(k, payload, headers=_HEADERS) for k, payload in (own | _of_both(thing)).items()}
        summary = f"{thing.words[0].upper()}{thing.words[1:]}, posted to an address of yours"
        yield Channel(f"webhook.{thing.name}", None, summary, None, made, method="POST")


def _of_view(thing: Thing) -> Spec:
    row, key = ref(thing.name), ref(f"{thing.name}.key")
    head: Spec = {"view": {"const": thing.target}, "position": ref("Position")}
    return {
        "upsert": record(type={"const": "upsert"}, **head, row=row),
        "delete": record(type={"const": "delete"}, **head, key=key),
        "changes": ref(f"{thing.name}.changes"),
        "snapshot": ref(f"{thing.name}.snapshot"),
        "digest": record(
            type={"const": "digest"}, **head, since=ref("Position"), upserts=array(row), deletes=array(key)
        ),
    }


def _of_stream(thing: Thing) -> Spec:
    event = ref(thing.name)
    head: Spec = {"stream": {"const": thing.target}, "position": ref("Position")}
    return {
        "event": record(type={"const": "event"}, **head, event=event),
        "events": record(type={"const": "events"}, **head, events=array(event)),
    }


def _of_both(thing: Thing) -> Spec:
    reason = text("Why what you hold may be out of date: read the view or stream, from this position on.")
    what: Spec = {thing.kind: {"const": thing.target}}
    named: Spec = {"channel": {"const": thing.channel}} if thing.channel else what
    return {
        "reset": record(type={"const": "reset"}, **what, position=ref("Position"), reason=reason),
        "test": record(type={"const": "test"}, webhook=text(), **named, at=text()),
    }
