"""A payment service in a thread that does what a test says.

`charge`; `die` after it; `die_first`; `half` or `drip` an answer; or a status.
"""

from __future__ import annotations

import json
import socket
import time
from collections import deque
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


class Bank:
    """Notes every charge, also the second one under the same key."""

    def __init__(self) -> None:
        self.charges: list[tuple[str, Any]] = []
        self.asked: list[str] = []
        self.next: deque[str | int] = deque()
        bank = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                bank.post(self)

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}/charges"

    def __enter__(self) -> Bank:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def post(self, request: BaseHTTPRequestHandler) -> None:
        body = json.loads(request.rfile.read(int(request.headers["Content-Length"])))
        key = request.headers["Idempotency-Key"]
        self.asked.append(key)
        what = self.next.popleft() if self.next else "charge"
        if what in ("charge", "die", "half", "drip"):
            self.charges.append((key, body))
        if what in ("die", "die_first"):
            request.connection.shutdown(socket.SHUT_RDWR)
            request.close_connection = True
            return
        reply = json.dumps({"charge": len(self.charges)}).encode()
        request.send_response(what if isinstance(what, int) else 201)
        request.send_header("Content-Length", str(len(reply) + 50 * (what in ("half", "drip"))))
        request.end_headers()
        request.wfile.write(reply)
        if what == "drip":
            with suppress(OSError):
                for _ in range(50):
                    time.sleep(0.02)
                    request.wfile.write(b" ")
        request.close_connection = what in ("half", "drip")

    def find(self, key: str) -> Any:
        return next((body for known, body in self.charges if known == key), None)
