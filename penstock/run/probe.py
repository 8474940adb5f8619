"""Asks the edge from outside whether it is well, as anybody would: over HTTP, from a thread of its own.

What it finds is read by the supervisor's main thread, which must not wait for a door that does not answer.
"""

from __future__ import annotations

import http.client
import json
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Address = tuple[str, int]

ANSWER_S = 2.0
"""Longer than a healthy edge ever takes; hung is only what stays silent for several of these."""
CLOSE_S = 0.2
"""For a question that is under way: it holds nothing up, and a run that stops does not wait for its answer."""
BEFORE_READY_S = 0.05
AFTER_READY_S = 1.0


class EdgeProbe:
    """The edge's pulse, its readiness and the states of its flows, each as of the last answer."""

    def __init__(self, address: Callable[[], Address | None], *, secret: str | None = None, tls: bool = False) -> None:
        """`secret` is what the edge knows its supervisor by: without it `/readyz` tells states and no errors."""
        self._address = address
        self._asking = Asking(secret, _unasked() if tls else None)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="edge-probe", daemon=True)
        self.answers = 0
        self.ready = False
        self.flows: dict[str, dict[str, Any]] = {}

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(CLOSE_S)

    def pulse(self) -> int:
        return self.answers

    def _watch(self) -> None:
        while not self._stop.wait(AFTER_READY_S if self.ready else BEFORE_READY_S):
            address = self._address()
            if address is None or ask(address, "/healthz", self._asking) is None:
                continue
            self.answers += 1
            reply = ask(address, "/readyz", self._asking)
            if reply is not None:
                self.ready = self.ready or reply[0] == 200
                self.flows = _flows(reply[1])


@dataclass(frozen=True)
class Asking:
    """How the edge is asked: with which secret, and over TLS or not."""

    secret: str | None = None
    tls: ssl.SSLContext | None = None


def ask(address: Address, path: str, asking: Asking = Asking()) -> tuple[int, dict[str, Any]] | None:  # noqa: B008
    """Status and JSON body; None when there is no answer in time."""
    connection = (
        http.client.HTTPSConnection(*address, timeout=ANSWER_S, context=asking.tls)
        if asking.tls
        else http.client.HTTPConnection(*address, timeout=ANSWER_S)
    )
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {asking.secret}"} if asking.secret else {})
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


def _unasked() -> ssl.SSLContext:
    """The certificate is in the server's public name, not in that of its loopback address: it is not looked at."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _flows(body: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The `state` and `error` of each flow by its name; whoever listens on the port may say anything."""
    flows = body.get("flows")
    return {name: flow for name, flow in flows.items() if isinstance(flow, dict)} if isinstance(flows, dict) else {}


def beat(path: Path) -> int:
    """A pulse from a file that is touched by whoever lives: the time of its last touch."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
