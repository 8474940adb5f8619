"""Tells a supervisor or load balancer whether this process lives and whether it should get requests.

`/healthz` answers as long as the loop runs. `/readyz` is 200 once the door is open and every view is served. How the
flows are stands in its body and never closes a healthy door: a stopped flow must not stop collection. What keeps a
part from being ready is in the body too, as an error with its code. Both are open to all; who may not read everything
is told states and codes, and no more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web

from penstock.errors import BadRequestError, PenstockError
from penstock.rights.credential import credential_of
from penstock.serve.replies import json_reply
from penstock.serve.status_filter import only_states, uncounted_views
from penstock.views.views import Views

Checks = Mapping[str, Callable[[], bool | PenstockError]]
"""By what a process is ready for (`collect`, `serve`, `flows`): whether it is, or what is wrong with it."""


def ready_body(views: Views, checks: Checks, asked: str | None) -> tuple[bool, dict[str, Any]]:
    """Whether this edge is ready for what was asked (None: for everything), and how its parts are."""
    if asked is not None and asked not in checks:
        raise BadRequestError(f"for={asked} is not known", hint=f"use one of: {', '.join(checks)}")
    said = {name: check() for name, check in checks.items()}
    each = {name: found is True for name, found in said.items()}
    ready = all(each.values()) if asked is None else each[asked]
    states = {node.name: views.flow_state(node.name) for node in views.application.nodes}
    return ready, {
        "ready": ready,
        "for": each,
        "errors": {name: found.body() for name, found in said.items() if isinstance(found, PenstockError)},
        "views": {
            view.name: {
                "loaded": view.content is not None,
                "rows": len(view.content.rows) if view.content else 0,
                "error": view.problem.body() if view.problem else None,
            }
            for view in views
        },
        "flows": {name: {"state": state.state, "error": state.error} for name, state in states.items()},
    }


async def alive(request: web.Request) -> web.Response:
    return json_reply({"status": "ok"})


def readiness(views: Views, checks: Checks) -> Callable[[web.Request], Any]:
    async def ready(request: web.Request) -> web.Response:
        is_ready, body = ready_body(views, checks, request.query.get("for"))
        credential = credential_of(request)
        body = body if credential.may("read", "*") else only_states(body)
        if not credential.sees_all:
            body = uncounted_views(body, views.application.filtered())
        headers = {} if is_ready else {"Retry-After": "1"}
        return json_reply(body, 200 if is_ready else 503, headers | {"Cache-Control": "no-store"})

    return ready
