"""Leaves out of what an edge says of itself whatever the one who asks may not read.

Of a view or stream of which each reader sees its own rows only, nobody but an administrator is told how many rows,
events or errors there are, nor how many events the ledgers hold: the numbers are null. A list of columns leaves out the
names of the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from penstock.declaration import LEDGERS, Application
from penstock.rights.credential import Credential

Body = dict[str, Any]
_NAMES = ("stream", "view")
_COUNTED = ("rows", "filter_errors", "batch_ms", "rate", "lag_events")
"""Numbers that tell of rows which a reader may not see."""


class StatusFilter:
    """What one credential is told of an app."""

    def __init__(self, application: Application, credential: Credential) -> None:
        self._credential = credential
        filtered = frozenset() if credential.sees_all else application.filtered()
        self._filtered = filtered | frozenset(LEDGERS if filtered else ())

    def views(self, bodies: Iterable[Body]) -> list[Body]:
        return [self._uncounted(self._narrowed(body, body["view"]), "view") for body in self._readable(bodies, "view")]

    def streams(self, bodies: Iterable[Body]) -> list[Body]:
        return [self._stream(body) for body in self._readable(bodies, "stream")]

    def channels(self, bodies: Iterable[Body]) -> list[Body]:
        return [self._narrowed(body, body["channel"]) for body in self._readable(bodies, "channel")]

    def flows(self, bodies: Iterable[Body]) -> list[Body]:
        return [self._uncounted(body, "flow") for body in self._readable(bodies, "flow")]

    def status(self, body: Body) -> Body:
        """How everything is. How the processes are is for those who may read everything."""
        lists = {
            "streams": self.streams(body["streams"]),
            "views": self.views(body["views"]),
            "flows": self.flows(body["flows"]),
        }
        if self._credential.may("read", "*"):
            return body | lists
        return body | lists | {"processes": {}} | self._rest(body)

    def graph(self, body: Body) -> Body:
        """The graph with the nodes that may be read and the edges between them; a source counts as its stream."""
        if self._credential.may("read", "*"):
            return body
        sources = {node["name"] for node in body["nodes"] if node["kind"] == "source"}
        named = {node["name"] for node in body["nodes"]} - sources
        shown = {name for name in named if self._credential.may("read", name)}
        shown |= {edge["from"] for edge in body["edges"] if edge["from"] in sources and edge["to"] in shown}
        return body | {
            "nodes": [node for node in body["nodes"] if node["name"] in shown],
            "edges": [edge for edge in body["edges"] if edge["from"] in shown and edge["to"] in shown],
        }

    def _readable(self, bodies: Iterable[Body], name: str) -> Iterator[Body]:
        return (body for body in bodies if self._credential.may("read", body[name]))

    def _rest(self, body: Body) -> Body:
        """Ways in and who waits and why, as far as it is about what may be read."""
        found: Body = {n: list(self._readable(body[n], "stream")) for n in ("udp", "pulls") if n in body}
        if "published" in body:
            found["published"] = list(self._readable(body["published"], "name"))
        if "pressure" in body:
            because = [b for b in body["pressure"]["because"] if self._may_know(b)]
            found["pressure"] = body["pressure"] | {"because": because, "room": {}}
        return found

    def _may_know(self, reason: Body) -> bool:
        names = [reason[name] for name in _NAMES if name in reason]
        return all(self._credential.may("read", name) and name not in self._filtered for name in names)

    def _uncounted(self, body: Body, name: str) -> Body:
        """Without numbers, and without the words of an error, which may quote a row."""
        if body[name] not in self._filtered:
            return body
        told = body | {count: None for count in _COUNTED if count in body}
        if "error" in body:
            told["error"] = _only_code(body["error"])
        if isinstance(body.get("flow"), dict):
            told["flow"] = body["flow"] | {"error": _only_code(body["flow"]["error"])}
        return told

    def _stream(self, body: Body) -> Body:
        body = self._narrowed(body, body["stream"])
        if body["stream"] not in self._filtered:
            return body
        return (
            body | {part: dict.fromkeys(body[part]) for part in ("totals", "rates")} | {"horizon": None, "hint": None}
        )

    def _narrowed(self, body: Body, name: str) -> Body:
        """Without the names of columns that are hidden."""
        columns = self._credential.columns(name)
        if columns is None:
            return body
        names = {part: _among(body[part], columns) for part in ("key", "order_by", "private") if body.get(part)}
        if "columns" in body:
            names["columns"] = [column for column in body["columns"] if column["name"] in columns]
        return body | names | ({} if body.get("time") in columns or "time" not in body else {"time": None})


def _among(names: Iterable[str], columns: frozenset[str]) -> list[str]:
    return [name for name in names if name.removeprefix("-").partition(".")[0].rstrip("[]{}") in columns]


def _only_code(error: Body | None) -> Body | None:
    return None if error is None else {"code": error.get("code"), "message": "***"}


def only_states(body: Body) -> Body:
    """What `/readyz` says to anybody: which parts are ready, and the state of each flow, without rows and errors."""
    return {
        "ready": body["ready"],
        "for": body["for"],
        "errors": {name: {"code": error["code"]} for name, error in body["errors"].items()},
        "views": {name: {"loaded": view["loaded"]} for name, view in body["views"].items()},
        "flows": {name: {"state": flow["state"]} for name, flow in body["flows"].items()},
    }


def uncounted_views(body: Body, filtered: frozenset[str]) -> Body:
    """What `/readyz` says, without how many rows there are that not everybody sees."""
    return body | {
        "views": {n: v | {"rows": None} if n in filtered and "rows" in v else v for n, v in body["views"].items()}
    }
