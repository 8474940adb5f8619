"""The pieces of an AsyncAPI document: a channel is one address with what goes over it in each direction.

An area of the interface gives its channels; `asyncapi.py` makes the document of them. To describe a new area, write a
function that yields `Channel`s and name it there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from penstock.rights.guard import SUBPROTOCOL
from penstock.serve.openapi_parts import Spec, array, obj, ref, text

Server = Literal["socket", "http"]


@dataclass(frozen=True)
class Channel:
    """`sends` and `takes` are the edge's messages and the client's, by name."""

    name: str
    address: str | None
    """None: an address that the client chose."""
    summary: str
    server: Server | None
    sends: Mapping[str, Spec]
    takes: Mapping[str, Spec] = field(default_factory=dict)
    query: Spec | None = None
    """Parameters of the address, as the properties of an object."""
    method: str = "GET"


def message(kind: str, payload: Spec, **more: Spec) -> Spec:
    return {"name": kind, "contentType": "application/json", "payload": payload, **more}


def on_socket(schema: str, *, named: bool = True) -> Spec:
    """A message of a subscription as a socket brings it; `named`: always with the subscription's id."""
    payload = {"allOf": [ref(schema), {"required": ["id"]}]} if named else ref(schema)
    return message(schema.rpartition(".")[2], payload)


def as_event(schema: str, **id: Spec) -> Spec:
    """A message as a Server-Sent Event: its name, its data, and its id if it has one."""
    kind = schema.rpartition(".")[2]
    headers = obj(event={"const": kind}, **id)
    return message(kind, ref(schema), headers=headers)


MOVED: Spec = message(
    "position",
    {"type": "null", "description": "An `id:` block without data."},
    headers=obj(id=ref("Position")) | {"required": ["id"]},
)
"""Server-Sent Events have a way of their own to move the position."""


# The document's sections


def channels_of(channels: Iterable[Channel]) -> Spec:
    return {channel.name: _channel(channel) for channel in channels}


def operations_of(channels: Iterable[Channel]) -> Spec:
    """The edge's side: what it sends, and what it takes."""
    made: Spec = {}
    for channel in channels:
        for action, messages in (("send", channel.sends), ("receive", channel.takes)):
            if messages:
                made[f"{channel.name}.{action}"] = _operation(channel, action, messages)
    return made


def _channel(channel: Channel) -> Spec:
    made: Spec = {
        "address": channel.address,
        "summary": channel.summary,
        "messages": {**channel.sends, **channel.takes},
    }
    if channel.server is not None:
        made["servers"] = [{"$ref": f"#/servers/{channel.server}"}]
    return made | ({"bindings": {"ws": _switched(channel)}} if channel.server == "socket" else {})


def _switched(channel: Channel) -> Spec:
    offers = text(f"`{SUBPROTOCOL}`; a browser that needs a key offers `bearer.<key>` too.")
    headers = obj(**{"Sec-WebSocket-Protocol": offers, "Authorization": text("Bearer <key or token>")})
    query = {"query": {"type": "object", "properties": channel.query}} if channel.query else {}
    return {"method": "GET", "headers": headers, **query, "bindingVersion": "0.1.0"}


def _operation(channel: Channel, action: str, messages: Mapping[str, Spec]) -> Spec:
    made: Spec = {
        "action": action,
        "channel": {"$ref": f"#/channels/{channel.name}"},
        "messages": [{"$ref": f"#/channels/{channel.name}/messages/{name}"} for name in messages],
    }
    if channel.server == "socket":
        return made
    query = {"query": {"type": "object", "properties": channel.query}} if channel.query else {}
    return made | {"bindings": {"http": {"method": channel.method, **query, "bindingVersion": "0.3.0"}}}


def batch_of(schemas: Iterable[str]) -> Spec:
    """Messages one after the other, each of one of these."""
    return array({"oneOf": [ref(schema) for schema in schemas]})
