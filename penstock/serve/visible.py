"""Leaves out of what an edge says of itself whatever the one who asks may not read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock.rights.credential import Credential

Body = dict[str, Any]


def visible(things: Iterable[Body], name: str, credential: Credential) -> list[Body]:
    """Those of a list (of streams, views, flows) that may be read; `name` is the field with their name."""
    return [thing for thing in things if credential.may("read", thing[name])]


def visible_status(body: Body, credential: Credential) -> Body:
    """How everything is, for this one. How the processes are is for those who may read everything."""
    if credential.may("read", "*"):
        return body
    return body | {
        "processes": {},
        "streams": visible(body["streams"], "stream", credential),
        "views": visible(body["views"], "view", credential),
        "flows": visible(body["flows"], "flow", credential),
    }


def visible_graph(body: Body, credential: Credential) -> Body:
    """The graph with the nodes that may be read and the edges between them; a source counts as its stream."""
    if credential.may("read", "*"):
        return body
    sources = {node["name"] for node in body["nodes"] if node["kind"] == "source"}
    shown = {
        node["name"] for node in body["nodes"] if node["name"] not in sources and credential.may("read", node["name"])
    }
    shown |= {edge["from"] for edge in body["edges"] if edge["from"] in sources and edge["to"] in shown}
    return body | {
        "nodes": [node for node in body["nodes"] if node["name"] in shown],
        "edges": [edge for edge in body["edges"] if edge["from"] in shown and edge["to"] in shown],
    }


def only_states(body: Body) -> Body:
    """What `/readyz` says to anybody: which parts are ready, and the state of each flow, without rows and errors."""
    return {
        "ready": body["ready"],
        "for": body["for"],
        "errors": {name: {"code": error["code"]} for name, error in body["errors"].items()},
        "views": {name: {"loaded": view["loaded"]} for name, view in body["views"].items()},
        "flows": {name: {"state": flow["state"]} for name, flow in body["flows"].items()},
    }
