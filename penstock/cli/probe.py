"""Asks the edge from outside whether it is well, as anybody would: over HTTP, from a thread of its own.

What it finds is read by the supervisor's main thread, which must not wait for a door that does not answer.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

Address = tuple[str, int]

ANSWER_S = 2.0
"""Longer than a healthy edge ever takes; hung is only what stays silent for several of these."""
BEFORE_READY_S = 0.05
AFTER_READY_S = 1.0


class EdgeProbe:
    """The edge's pulse, its readiness and the errors of its flows, each as of the last answer."""

    def __init__(self, address: Callable[[], Address | None]) -> None:
        self._address = address
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="edge-probe", daemon=True)
        self.answers = 0
        self.ready = False
        self.flow_errors: dict[str, dict[str, Any]] = {}

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(2 * ANSWER_S)

    def pulse(self) -> int:
        return self.answers

    def _watch(self) -> None:
        while not self._stop.wait(AFTER_READY_S if self.ready else BEFORE_READY_S):
            address = self._address()
            if address is None or ask(address, "/healthz") is None:
                continue
            self.answers += 1
            reply = ask(address, "/readyz")
            if reply is not None:
                self.ready = self.ready or reply[0] == 200
                self.flow_errors = _errors(reply[1])


def ask(address: Address, path: str) -> tuple[int, dict[str, Any]] | None:
    """Status and JSON body; None when there is no answer in time."""
    connection = http.client.HTTPConnection(*address, timeout=ANSWER_S)
    try:
        connection.request("GET", path)
        reply = connection.getresponse()
        body = reply.read()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    try:
        value = json.loads(body)
    except ValueError:
        value = {}
    return reply.status, value if isinstance(value, dict) else {}


def _errors(body: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The flows that are retrying or stopped, with their error bodies."""
    flows = body.get("flows") or {}
    if not isinstance(flows, dict):
        return {}
    return {name: flow["error"] for name, flow in flows.items() if isinstance(flow, dict) and flow.get("error")}


def beat(path: Path) -> int:
    """A pulse from a file that is touched by whoever lives: the time of its last touch."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
