"""What is said over sockets, Server-Sent Events, long polls and webhooks, as messages of AsyncAPI.

A function here gives the messages of one direction on one kind of route, by name: `sends` are the edge's.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.json_schema import Spec, array, message, obj, one_of, record, ref, text
from penstock.route import Subject, Thing
from penstock.serve.describe.message_schemas import (
    ACK,
    OF_STREAMS,
    OF_VIEWS,
    PACE,
    PING,
    UNSUBSCRIBE,
    polled_names,
    subscribe,
)

_TALK = {
    kind: message(kind, schema)
    for kind, schema in (("unsubscribe", UNSUBSCRIBE), ("ack", ACK), ("pace", PACE), ("ping", PING))
}


def _own(thing: Thing) -> dict[str, str]:
    """By type, the schemas of the messages that are its own."""
    return {kind: f"{thing.name}.{kind}" for kind in (OF_VIEWS if thing.kind == "view" else OF_STREAMS)}


# Sockets


def to_socket(subject: Subject) -> Mapping[str, Spec]:
    own = {kind: _on_socket(schema) for kind, schema in _own(subject.thing).items()}
    return own | _shared(subject.thing.kind)


def from_socket(subject: Subject) -> Mapping[str, Spec]:
    return {"subscribe": message("subscribe", subscribe(named=False)), **_TALK}


def to_socket_for_all(subject: Subject) -> Mapping[str, Spec]:
    """A channel speaks with the messages of what it shows, unless that may not be read under its own name."""
    own = {thing.target for thing in subject.readable if thing.channel is None}
    shown = [thing for thing in subject.readable if thing.channel is None or thing.target not in own]
    schemas = dict.fromkeys(schema for thing in shown for schema in _own(thing).values())
    return {schema: _on_socket(schema) for schema in schemas} | _shared("stream")


def from_socket_for_all(subject: Subject) -> Mapping[str, Spec]:
    return {"subscribe": message("subscribe", subscribe(named=True)), **_TALK}


def _on_socket(schema: str, *, named: bool = True) -> Spec:
    """A message of a subscription as a socket brings it; `named`: always with the subscription's id."""
    payload = {"allOf": [ref(schema), {"required": ["id"]}]} if named else ref(schema)
    return message(schema.rpartition(".")[2], payload)


def _shared(kind: str) -> dict[str, Spec]:
    also = ("position", "reset", "stall", "acked", *(("subscribed",) if kind == "stream" else ()))
    named = {kind: _on_socket(f"message.{kind}") for kind in also}
    return named | {kind: _on_socket(f"message.{kind}", named=False) for kind in ("error", "pong")}


# Server-Sent Events

_MOVED: Spec = message(
    "position",
    {"type": "null", "description": "An `id:` block without data."},
    headers=obj(id=ref("Position")) | {"required": ["id"]},
)
"""Server-Sent Events have a way of their own to move the position."""


def as_events(subject: Subject) -> Mapping[str, Spec]:
    own = {kind: _event(schema, id=ref("Position")) for kind, schema in _own(subject.thing).items()}
    own["reset"] = _event("message.reset", id={"const": "", "description": "What the browser remembered is gone."})
    return own | {kind: _event(f"message.{kind}") for kind in ("stall", "error")} | {"position": _MOVED}


def _event(schema: str, **id: Spec) -> Spec:
    """A message as a Server-Sent Event: its name, its data, and its id if it has one."""
    kind = schema.rpartition(".")[2]
    return message(kind, ref(schema), headers=obj(event={"const": kind}, **id))


# Polls


def polled(subject: Subject) -> Spec:
    """The body of a long poll of a view."""
    return record("position: Position", messages=array(one_of(polled_names(subject.thing))))


def page(subject: Subject) -> Spec:
    """The body of a page of a stream."""
    thing = subject.thing
    return record("next: Position", stream={"const": thing.target}, events=array(ref(thing.name)))


# Webhooks: they have headers with an id and a signature (Standard Webhooks), and a `reset` says where to read from
# instead of being followed by a snapshot.

_HEADERS = record(
    **{
        "webhook-id": text("The same whenever the content is: over retries, crashes and replays."),
        "webhook-timestamp": text("When this try was sent: seconds since 1970."),
        "webhook-signature": text("`v1,` and base64; several with blanks between while the secret is changed."),
    }
)


def deliveries(thing: Thing) -> Mapping[str, Spec]:
    """What webhooks of this post, in all shapes."""
    what: Spec = {thing.kind: {"const": thing.target}}
    named: Spec = {"channel": {"const": thing.channel}} if thing.channel else what
    reason = text("Why what you hold may be out of date: read the view or stream, from this position on.")
    both: Spec = {
        "reset": record(type={"const": "reset"}, **what, position=ref("Position"), reason=reason),
        "test": record(type={"const": "test"}, webhook=text(), **named, at=text()),
    }
    own = _of_view(thing) if thing.kind == "view" else _of_stream(thing)
    return {kind: message(kind, payload, headers=_HEADERS) for kind, payload in (own | both).items()}


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
