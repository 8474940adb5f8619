"""A client that was written from docs/reference/protocol.md alone: a plain socket, and nothing of ours imported.

    python plain_client.py HOST PORT VIEW KEY[,KEY] [WHERE]

It prints the rows it holds as one line of JSON whenever they change, reconnects, resumes, and ends with its input.
"""

from __future__ import annotations

import base64
import json
import os
import random
import socket
import struct
import sys
import threading
import time
from typing import Any

PAUSE_S = float(os.environ.get("PAUSE_S", "1"))


class Closed(Exception):
    """The connection has ended; the first argument is the close code, 1006 if there was none."""


class Frames:
    """RFC 6455, as much of it as a client needs."""

    def __init__(self, host: str, port: int, path: str) -> None:
        self._socket = socket.create_connection((host, port), timeout=60)
        key = base64.b64encode(os.urandom(16)).decode()
        self._socket.sendall(
            f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n"
            "Sec-WebSocket-Protocol: penstock\r\n\r\n".encode()
        )
        self._in = self._socket.makefile("rb")
        status = self._in.readline()
        while self._in.readline() not in (b"\r\n", b""):
            pass
        if b" 101 " not in status:
            raise Closed(1006, status)

    def say(self, text: bytes, opcode: int = 1) -> None:
        mask, length = os.urandom(4), len(text)
        size = struct.pack("!BBH", 0x80 | opcode, 0x80 | 126, length)
        body = bytes(byte ^ mask[at % 4] for at, byte in enumerate(text))
        self._socket.sendall((size if length > 125 else bytes((0x80 | opcode, 0x80 | length))) + mask + body)

    def hear(self) -> dict[str, Any]:
        """The next message; pings of the server are answered on the way."""
        whole = b""
        while True:
            first, second = self._read(2)
            length = second & 127
            if length > 125:
                length = int.from_bytes(self._read(2 if length == 126 else 8))
            body, opcode = self._read(length), first & 15
            if opcode == 8:
                raise Closed(int.from_bytes(body[:2]) if body else 1005)
            if opcode == 9:
                self.say(body, 10)
            elif opcode in (0, 1):
                whole += body
                if first & 0x80:
                    return dict(json.loads(whole))

    def close(self) -> None:
        self._socket.close()

    def _read(self, size: int) -> bytes:
        found = self._in.read(size)
        if found is None or len(found) < size:
            raise Closed(1006)
        return found


class Copy:
    """The rows of a view, by the state machine of the page."""

    def __init__(self, key: list[str]) -> None:
        self._key = key
        self.rows: dict[str, Any] = {}
        self.since: str | None = None
        self._parts: list[Any] = []

    def take(self, message: dict[str, Any]) -> bool:
        """Whether there is something new to show."""
        kind = message["type"]
        if kind == "snapshot":
            self._parts += message["rows"]
            if message.get("part") != message.get("parts"):
                return False
            self.rows, self._parts = {self._name(row): row for row in self._parts}, []
        elif kind == "changes":
            for gone in message["deletes"]:
                del self.rows[self._name(gone)]
            self.rows |= {self._name(row): row for row in message["upserts"]}
        elif kind == "reset":
            self._parts, self.since = [], None
            return False
        elif kind == "error":
            if message["error"]["code"] in ("not_ready", "not_yet"):
                raise Closed(1006)
            sys.exit(f"{message['error']['code']}: {message['error']['message']}")
        if "position" in message:
            self.since = message["position"]
        return kind in ("snapshot", "changes")

    def broken(self) -> None:
        self._parts = []

    def _name(self, row: dict[str, Any]) -> str:
        return json.dumps([row[column] for column in self._key])


def follow(host: str, port: int, view: str, copy: Copy, where: str | None) -> None:
    pause_s = PAUSE_S
    while True:
        code, frames = 1006, None
        try:
            frames = Frames(host, port, "/socket")
            asked = {"type": "subscribe", "view": view, "where": where, "limit": None, "since": copy.since}
            frames.say(json.dumps(asked).encode())
            while True:
                if copy.take(frames.hear()):
                    print(json.dumps(list(copy.rows.values())), flush=True)
                pause_s = PAUSE_S
        except Closed as closed:
            code = closed.args[0]
        except OSError:
            pass
        finally:
            copy.broken()
            if frames is not None:
                frames.close()
        if code in (4401, 1002, 1007, 1009):
            sys.exit(f"closed for good: {code}")
        if code not in (4007, 4008):
            time.sleep(pause_s * random.uniform(0.5, 1))
            pause_s = min(30 * PAUSE_S, 2 * pause_s)


def main() -> None:
    host, port, view, key, *where = sys.argv[1:]
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    follow(host, int(port), view, Copy(key.split(",")), where[0] if where else None)


if __name__ == "__main__":
    main()
