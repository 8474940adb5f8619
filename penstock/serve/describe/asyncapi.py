"""Describes what goes over sockets, events and long polls of one app as AsyncAPI 3.0, from the table of routes.

The document speaks from the edge's side: `send` is what clients get, `receive` what they may say. Everything that holds
over several messages (order, positions, resuming) is in docs/reference/protocol.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.metadata import version

from penstock.json_schema import Spec, obj, text
from penstock.rights.guard import SUBPROTOCOL
from penstock.route import Parameter, Route, Subject, Talk, schema_for
from penstock.serve.describe.audience import Audience
from penstock.serve.describe.components import SCHEMAS, SECURITY
from penstock.serve.describe.talks import deliveries

_SECURITY = {
    "key": SECURITY["key"],
    "token": SECURITY["token"],
    "ticket": SECURITY["ticket"] | {"type": "httpApiKey"},
}


def asyncapi(routes: Iterable[Route], audience: Audience, servers: Spec) -> Spec:
    """The whole document for one who asks, as JSON types."""
    channels: Spec = {}
    operations: Spec = {}
    for route in routes:
        for subject in audience.subjects(route) if route.talk else ():
            shown = route.shown_as.get(subject.thing.kind, route)
            assert shown.talk is not None
            name = f"{subject.thing.name}.{shown.talk.way}" if route.of else shown.talk.way
            sends, takes = shown.talk.sends(subject), shown.talk.takes(subject)
            words = (shown.talk.words or shown.summary).format(thing=subject.thing.words, Thing=_begun(subject))
            query = _query(shown, subject)
            channels[name] = _channel(route.address(subject.thing), words, shown.talk, {**sends, **takes}, query)
            binding = {} if shown.talk.server == "socket" else {"bindings": {"http": _binding("GET", query, "0.3.0")}}
            for action, messages in (("send", sends), ("receive", takes)):
                if messages:
                    operations[f"{name}.{action}"] = _operation(name, action, messages) | binding
    for thing in audience.things:
        name, posted = f"webhook.{thing.name}", deliveries(thing)
        words = f"{thing.words[0].upper()}{thing.words[1:]}, posted to an address of yours"
        channels[name] = {"address": None, "summary": words, "messages": posted}
        binding = {"bindings": {"http": _binding("POST", {}, "0.3.0")}}
        operations[f"{name}.send"] = _operation(name, "send", posted) | binding
    return {
        "asyncapi": "3.0.0",
        "info": {"title": audience.application.name, "version": version("penstock")},
        "defaultContentType": "application/json",
        "servers": servers,
        "channels": channels,
        "operations": operations,
        "components": {
            "schemas": {name: SCHEMAS[name] for name in ("Position", "Error")} | audience.schemas,
            "securitySchemes": _SECURITY,
        },
    }


def servers_at(host: str, *, secure: bool, open: bool) -> Spec:
    """This edge, as whoever asks has reached it. `open`: nobody needs a credential here."""
    needs: Spec = {} if open else {"security": [{"$ref": f"#/components/securitySchemes/{n}"} for n in _SECURITY]}
    end = "s" if secure else ""
    return {
        "http": {"host": host, "protocol": f"http{end}", **needs},
        "socket": {"host": host, "protocol": f"ws{end}", **needs},
    }


def _begun(subject: Subject) -> str:
    """The words of a thing at the beginning of a sentence."""
    return subject.thing.words[0].upper() + subject.thing.words[1:]


def _query(route: Route, subject: Subject) -> Spec:
    """The parameters of an address, as the properties of an object."""
    without = route.talk.without if route.talk else frozenset()
    return {
        parameter.name: _value(parameter, subject) | {"description": parameter.words}
        for parameter in route.parameters
        if parameter.place == "query" and parameter.name not in without
    }


def _value(parameter: Parameter, subject: Subject) -> Spec:
    """A list has commas between its elements, which no schema can say."""
    return schema_for(parameter.schema, subject) if parameter.form == "plain" else text()


def _channel(address: str, words: str, talk: Talk, messages: Mapping[str, Spec], query: Spec) -> Spec:
    servers = [{"$ref": f"#/servers/{talk.server}"}]
    channel: Spec = {"address": address, "summary": words, "messages": messages, "servers": servers}
    if talk.server == "http":
        return channel
    offers = text(f"`{SUBPROTOCOL}`; a browser that needs a key offers `bearer.<key>` too.")
    headers = obj(**{"Sec-WebSocket-Protocol": offers, "Authorization": text("Bearer <key or token>")})
    return channel | {"bindings": {"ws": _binding("GET", query, "0.1.0") | {"headers": headers}}}


def _binding(method: str, query: Spec, version: str) -> Spec:
    parameters = {"query": {"type": "object", "properties": query}} if query else {}
    return {"method": method, **parameters, "bindingVersion": version}


def _operation(channel: str, action: str, messages: Iterable[str]) -> Spec:
    return {
        "action": action,
        "channel": {"$ref": f"#/channels/{channel}"},
        "messages": [{"$ref": f"#/channels/{channel}/messages/{name}"} for name in messages],
    }
