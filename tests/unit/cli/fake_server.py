"""A door and a view as small as they can be, so that the verbs can be tested against what a server may answer."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from penstock.cli.remote import Remote

Answer = tuple[int, dict[str, str], bytes]


class FakeServer:
    """Answers with what `answer(method, path, query, headers, body)` gives, and remembers what it was asked."""

    def __init__(self, answer: Callable[..., Answer]) -> None:
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler(answer))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        self.remotes: list[Remote] = []
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def _handler(self, answer: Callable[..., Answer]) -> type[BaseHTTPRequestHandler]:
        asked = self.asked

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                query = {key: value[0] for key, value in parse_qs(parts.query).items()}
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                asked.append((self.command, parts.path, query))
                status, headers, reply = answer(self.command, parts.path, query, self.headers, body)
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                if status != 204 and "Content-Length" not in headers:
                    self.send_header("Content-Length", str(len(reply)))
                self.end_headers()
                if status != 204:
                    self.wfile.write(reply)

            do_POST = do_GET

            def log_message(self, format: str, *args: Any) -> None:
                pass

        return Handler

    def remote(self) -> Remote:
        """A client that is closed with this server."""
        self.remotes.append(Remote(self.url))
        return self.remotes[-1]

    def close(self) -> None:
        for remote in self.remotes:
            remote.__exit__()
        self._server.shutdown()
        self._server.server_close()


def json_answer(status: int, body: Any, **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return status, named, json.dumps(body).encode()
