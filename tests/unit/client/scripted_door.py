"""A real HTTP server whose answers are written down beforehand: for answers that a good edge gives seldom or never."""

from __future__ import annotations

import gzip
import json
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


@dataclass
class Answer:
    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: bool = False
    """Take the request and close the connection without an answer."""


def taken(rejected: tuple[Mapping[str, Any], ...] = ()) -> Answer:
    return Answer(200, {"accepted": 1, "duplicates": 0, "rejected": list(rejected), "ack": "t", "level": "logged"})


def refusal(status: int, code: str, **headers: str) -> Answer:
    error = {"code": code, "message": f"it is {code}", "detail": None, "hint": None}
    return Answer(status, {"error": error}, {name.replace("_", "-"): value for name, value in headers.items()})


@dataclass
class Request:
    headers: dict[str, str]
    raw: bytes

    @property
    def number(self) -> tuple[int, int]:
        return int(self.headers["Producer-Epoch"]), int(self.headers["Producer-Seq"])

    @property
    def events(self) -> list[Any]:
        raw = gzip.decompress(self.raw) if self.headers.get("Content-Encoding") == "gzip" else self.raw
        return [json.loads(line) for line in raw.splitlines()]


class ScriptedDoor:
    """Gives the answers in order, then 200 for ever; `gate` holds all of them up while it is cleared."""

    def __init__(self) -> None:
        self.answers: deque[Answer] = deque()
        self.requests: list[Request] = []
        self.gate = threading.Event()
        self.gate.set()
        door = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers["Content-Length"]))
                door.note(Request(dict(self.headers), raw))
                answer = door.answers.popleft() if door.answers else taken()
                door.gate.wait(60)
                if answer.cut:
                    self.close_connection = True
                    return
                body = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
                body = b"" if answer.status == 204 else body
                self.send_response(answer.status)
                for name, value in {"Content-Length": str(len(body)), **answer.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    def note(self, request: Request) -> None:
        """Called when a request was read, before it is answered."""
        self.requests.append(request)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.gate.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
