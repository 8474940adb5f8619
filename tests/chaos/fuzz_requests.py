"""Makes up requests that no client would send: bytes for a socket, from a seed and a number, the same every time."""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from collections.abc import Callable, Sequence
from random import Random
from urllib.parse import quote

import msgspec
import pyarrow as pa

from penstock.collect import collect_routes
from penstock.serve.describe import serve_routes
from tests.chaos import fuzz_contents

ROUTES = (*collect_routes.ROUTES, *serve_routes.ROUTES)
STREAMS = ("orders", "steps", "strict", "dead", "late", "made", "nope", "", "_control", "or%64ers", "%00", "a/b", "..")
GOOD = (
    b'{"order_id": 1}',
    b'{"order_id": 2, "at": "2026-11-16T00:00:00Z", "price": "1.50", "kind": "b", "inner": {"x": 1, "names": ["a"]}}',
    b'{"n": 1, "at": 1763251200000}',
    b'{"order_id": 3, "tags": {"a": 1}, "raw": "AAEC", "day": "2026-11-16", "ok": false}',
)
PIECES = (
    *(
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b"\n",
        b'"',
        b"\\",
        b"\\u",
        b"\\ud800",
        b"\x00",
        b"\xff",
        b"\xf0\x9f\x98\x80",
    ),
    *(b"1e999", b"-0", b"NaN", b"null", b"true", b"9" * 30, b"9" * 5000, b"1." + b"0" * 400, b"[" * 300, b'{"a":' * 80),
    *(b'"order_id":', b'"at":', b'"price": "1e-99999"', b'"inner":', b'"day": "0000-00-00"', b'"raw": "===="'),
    *(b'{"at": -99999999999999999}', b'{"at": "9999-12-31T23:59:59Z", "order_id": 4}', b'"kind": "zzz"'),
)
METHODS = (
    "GET",
    "POST",
    "HEAD",
    "PUT",
    "DELETE",
    "OPTIONS",
    "PATCH",
    "TRACE",
    "CONNECT",
    "get",
    "P\x00ST",
    "",
    "X" * 300,
)
TYPES = ("application/json", "application/x-ndjson", "text/plain", "", "text/csv", "application/json; charset=utf-16")
ENCODINGS = ("gzip", "zstd", "br", "identity", "deflate", "gzip, gzip", "", "GZIP")
VALUES = (
    "",
    "0",
    "1",
    "-1",
    "null",
    "nan",
    "inf",
    "1e9",
    "0.01",
    "9" * 30,
    "9" * 5000,
    "'",
    "%00",
    "%ff",
    "\u20ac",
    "start",
    "end",
)
QUERIES = (
    "ack",
    "wait",
    "after",
    "since",
    "limit",
    "where",
    "select",
    "order_by",
    "key",
    "version",
    "for",
    "reason",
    "replayed",
    "at_least",
    "stream",
    "masked",
)
WHERES = (
    *("kind = 'a'", "1 = 1", "count > ", "((((", "'" * 99, "a" * 3000, "kind LIKE '%%%%%%a'", "NOT " * 500 + "true"),
    *(
        "1/0 = 1",
        "order_id IN (1, 2",
        "CAST(kind AS int) > 0",
        "count(*) > 1",
        "(SELECT 1)",
        "x; DROP TABLE y",
        "--",
        "\x00",
    ),
)
PATHS = (
    *(
        "/",
        "/views",
        "/streams",
        "/status",
        "/graph",
        "/healthz",
        "/readyz",
        "/metrics",
        "/openapi.json",
        "/asyncapi.json",
        "/socket",
    ),
    *("/views/kinds", "/views/nope", "/views/kinds/socket", "/acks/x", "/acks/", "/dead", "/dead/0-0", "/dead/9-9"),
    *(
        "/dead/replay",
        "/dead/0-" + "9" * 30,
        "//",
        "/../../etc/passwd",
        "/%2e%2e/x",
        "/assets/x",
        "*",
        "http://a/",
        "x",
    ),
)


LARGE = gzip.compress(b"0" * 20_000_000, 1, mtime=0)
"""More than a body may have."""


class Shot:
    """One attack: bytes, perhaps in parts, and what to do with the connection behind them."""

    def __init__(self, parts: list[bytes], what: str, *, socket: bool = False) -> None:
        self.parts, self.what, self.socket = parts, what, socket


def shot(seed: int, number: int) -> Shot:
    """The request of that number."""
    chance = Random(f"{seed}/{number}")
    (make,) = chance.choices(MAKERS, WEIGHTS)
    return make(chance)


def _request(chance: Random, method: str, target: str, headers: dict[str, str], body: bytes = b"") -> bytes:
    lines = [f"{method} {target} HTTP/1.1", "Host: localhost", *(f"{name}: {value}" for name, value in headers.items())]
    if body or method == "POST":
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode("utf-8", "replace") + b"\r\n\r\n" + body


def _json(chance: Random) -> bytes:
    """Something like JSON."""
    base = chance.choice((*GOOD, b"[" + b",".join(GOOD) + b"]", b"\n".join(GOOD)))
    for _ in range(chance.choice((0, 0, 1, 1, 2, 8))):
        at = chance.randrange(len(base) + 1)
        how = chance.randrange(5)
        if how == 0:
            base = base[:at] + chance.choice(PIECES) + base[at:]
        elif how == 1:
            base = base[:at] + base[at + chance.randrange(1, 9) :]
        elif how == 2:
            base = base[:at] + bytes([chance.randrange(256)]) + base[at + 1 :]
        elif how == 3:
            base = base[:at] + base[: chance.randrange(len(base) + 1)]
        else:
            base = base[:at]
    return base


def _packed(chance: Random, body: bytes, encoding: str) -> bytes:
    if chance.random() < 0.2:
        return body
    packed = body
    if encoding == "gzip":
        packed = gzip.compress(body, mtime=0)
    elif encoding == "zstd":
        packed = pa.Codec("zstd").compress(body, asbytes=True)
    elif encoding == "deflate":
        packed = zlib.compress(body)
    if chance.random() < 0.1:
        packed = LARGE
    return packed[: chance.randrange(len(packed) + 1)] if chance.random() < 0.3 else packed


def _query(chance: Random, taken: Sequence[str] = (), *, waits: bool = True) -> str:
    """Mostly what a path takes, each once: anything else gets no further than the guard."""
    given = []
    likely = taken if taken and chance.random() < 0.8 else QUERIES
    for name in chance.sample(likely, min(chance.choice((0, 0, 1, 1, 2, 5)), len(likely))):
        if name == "wait" and not waits:
            continue
        value = chance.choice(WHERES) if name == "where" else chance.choice((*VALUES, _token(chance)))
        given.append(f"{name}={quote(value) if chance.random() < 0.7 else value.replace(' ', '+')}")
    return f"?{'&'.join(given)}" if given else ""


def _token(chance: Random) -> str:
    """A position, more or less."""
    name = chance.choice(("orders", "dead", "steps", "kinds", "\x00", ""))
    numbers = [chance.choice((0, 1, 2**31, 2**62, 2**63 - 1, -1, -(2**63))) for _ in range(chance.randrange(4))]
    epoch = chance.choice(("a1", "-.-", "", "x" * 99))
    raw = msgspec.msgpack.encode((chance.choice((0, 1, 2, 3, -1)), name, epoch, numbers))
    if chance.random() < 0.3:
        at = chance.randrange(len(raw))
        raw = raw[:at] + bytes([chance.randrange(256)]) + raw[at + 1 :]
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


# Kinds of attacks


def post(chance: Random) -> Shot:
    headers = {"Content-Type": chance.choice(TYPES)} if chance.random() < 0.8 else {}
    body = _json(chance)
    if chance.random() < 0.25:
        encoding = chance.choice(ENCODINGS)
        headers["Content-Encoding"] = encoding
        body = _packed(chance, body, encoding)
    if chance.random() < 0.15:
        values = ("p", "", "0", "1", "-1", "9" * 40, "\u00e9", "x" * 300)
        headers |= {n: chance.choice(values) for n in ("Producer-Id", "Producer-Epoch", "Producer-Seq")}
        if chance.random() < 0.3:
            headers.pop(chance.choice(("Producer-Id", "Producer-Epoch", "Producer-Seq")))
    stream = chance.choice(STREAMS[:3] if chance.random() < 0.8 else STREAMS)
    ack = chance.choice(("", "", "?ack=none", "?ack=applied&wait=0", "?ack=nope", _query(chance)))
    return Shot([_request(chance, "POST", f"/streams/{stream}{ack}", headers, body)], "post")


def get(chance: Random) -> Shot:
    path = chance.choice((*PATHS, f"/streams/{chance.choice(STREAMS)}", f"/acks/{_token(chance)}"))
    path += chance.choice(("", "", "", "/", "/schema", "/socket", "/rebuild", "%20"))
    taken = _taken(path)
    target = path + _query(chance, taken, waits=False)
    if "wait" in taken:
        target += "&wait=0" if "?" in target else "?wait=0"
    method = "GET" if chance.random() < 0.8 else chance.choice(METHODS)
    return Shot([_request(chance, method, target, {})], "get")


def _taken(path: str) -> tuple[str, ...]:
    """The parameters of the route that a path leads to, if it leads to one."""
    kind, *rest = path.strip("/").split("/")
    named = {"views": "{view}", "streams": "{stream}", "channels": "{channel}", "acks": "{token}"}.get(kind)
    parts = [kind, named, *rest[1:]] if named and rest else [kind, *rest]
    return next((route.taken for route in ROUTES if route.request == f"GET /{'/'.join(parts)}"), ())


def replay(chance: Random) -> Shot:
    names = ("0-0", "0-1", "1-0", "0-999999", "x", "", "0-" + "9" * 18, "0-" + "9" * 99)
    letters = [{"letter": chance.choice(names)} for _ in range(chance.randrange(4))]
    if letters and chance.random() < 0.5:
        letters[0]["events"] = chance.choice(([{"order_id": 9}], [], [1], "x", [{"order_id": "x"}], None))  # type: ignore[assignment]
    body = json.dumps({"letters": letters, "dry_run": chance.choice((True, False, "x"))}).encode()
    if chance.random() < 0.3:
        at = chance.randrange(len(body))
        body = body[:at] + chance.choice(PIECES) + body[at + 2 :]
    return Shot([_request(chance, "POST", "/dead/replay", {"Content-Type": "application/json"}, body)], "replay")


def lying_length(chance: Random) -> Shot:
    body = _json(chance)
    said = chance.choice((0, 1, len(body) + 1, len(body) + 5_000, 2**31, 2**63, -1, "x", "1, 1", "+5", "0x10"))
    head = f"POST /streams/steps HTTP/1.1\r\nHost: localhost\r\nContent-Length: {said}\r\n\r\n"
    return Shot([head.encode() + body], "length")


def chunked(chance: Random) -> Shot:
    head = b"POST /streams/steps HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
    if chance.random() < 0.2:
        head += chance.choice(
            (b"Content-Length: 3\r\n", b"Transfer-Encoding: gzip\r\n", b"Transfer-Encoding: chunked\r\n")
        )
    body = _json(chance)
    sizes = (
        b"%x" % len(body),
        b"0",
        b"-1",
        b"fffffffffffffffff",
        b"zz",
        b"",
        b"%x;ext=" % len(body) + b"e" * 9000,
        b"1",
    )
    parts = [chance.choice(sizes) + b"\r\n" + body + b"\r\n" for _ in range(chance.randrange(1, 4))]
    end = chance.choice((b"0\r\n\r\n", b"", b"0\r\nTrailer: x\r\n\r\n", b"\r\n\r\n", b"0\n\n"))
    return Shot([head + b"\r\n", *parts, end], "chunked")


def headers(chance: Random) -> Shot:
    flood = {
        0: b"".join(b"X-%d: y\r\n" % n for n in range(chance.choice((50, 1_000, 5_000)))),
        1: b"X: " + b"y" * chance.choice((5_000, 20_000, 200_000)) + b"\r\n",
        2: b"X\r\n",
        3: b": y\r\n",
        4: b"X: a\r\n b\r\n",
        5: b"X: \x00\x01\r\n",
        6: b"X: \xff\xfe\r\n",
        7: b"X : y\r\n",
        8: b"X: y\nY: z\n",
        9: b"Host: a\r\nHost: b\r\n",
        10: b"Expect: 100-continue\r\nContent-Length: 3\r\n",
        11: b"Connection: upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\n",
        12: b"Content-Type: " + b"a" * 3000 + b"; charset=\x22\r\n",
        13: b"Range: bytes=0-,1-\r\nIf-None-Match: " + b'"' * 99 + b"\r\n",
        14: b"Last-Event-ID: \xff\r\n",
    }[chance.randrange(15)]
    line = chance.choice(
        (b"GET / HTTP/1.1", b"GET /status HTTP/1.0", b"POST /streams/steps HTTP/1.1", b"GET / HTTP/9.9")
    )
    return Shot([line + b"\r\nHost: localhost\r\n" + flood + b"\r\n"], "headers")


def garbage(chance: Random) -> Shot:
    kinds = (
        lambda: chance.randbytes(chance.randrange(1, 400)),
        lambda: b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + chance.randbytes(200),
        lambda: b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + chance.randbytes(30),
        lambda: b"PROXY TCP4 1.1.1.1 2.2.2.2 1 2\r\n" + _request(chance, "GET", "/", {}),
        lambda: b"\r\n" * chance.randrange(1, 99),
        lambda: b"GET " + b"/" * chance.choice((9_000, 90_000)) + b" HTTP/1.1\r\n\r\n",
        lambda: b"GET /\r\n\r\n",
        lambda: b"GET / HTTP/1.1\r\n" * 20,
    )
    return Shot([chance.choice(kinds)()], "garbage")


def flipped(chance: Random) -> Shot:
    """A good request with a few bytes changed, or cut anywhere, or sent in pieces."""
    raw = post(chance).parts[0] if chance.random() < 0.7 else get(chance).parts[0]
    for _ in range(chance.randrange(4)):
        at = chance.randrange(len(raw))
        raw = raw[:at] + bytes([chance.randrange(256)]) + raw[at + 1 :]
    if chance.random() < 0.4:
        raw = raw[: chance.randrange(1, len(raw) + 1)]
    cut = chance.randrange(len(raw))
    return Shot([raw[:cut], raw[cut:]] if chance.random() < 0.3 else [raw], "flipped")


def pipelined(chance: Random) -> Shot:
    makers = [post if chance.random() < 0.6 else get for _ in range(chance.randrange(2, 6))]
    return Shot([b"".join(make(chance).parts[0] for make in makers)], "pipelined")


def asking(chance: Random) -> Shot:
    return Shot([fuzz_contents.asking(chance)], "asking")


def columns(chance: Random) -> Shot:
    return Shot([fuzz_contents.columns(chance)], "columns")


def socket(chance: Random) -> Shot:
    path = chance.choice(
        (
            "/socket",
            "/streams/steps/publish",
            "/streams/orders/socket",
            "/views/kinds/socket",
            "/streams/dead/socket",
            "/",
            "/nope/socket",
        )
    )
    given = {
        "Upgrade": chance.choice(("websocket", "websocket", "websocket", "h2c", "")),
        "Connection": chance.choice(("Upgrade", "Upgrade", "Upgrade", "close", "keep-alive, Upgrade")),
        "Sec-WebSocket-Key": chance.choice((base64.b64encode(b"0123456789abcdef").decode(), "x", "")),
        "Sec-WebSocket-Version": chance.choice(("13", "13", "13", "8", "x")),
    }
    if chance.random() < 0.2:
        given["Sec-WebSocket-Extensions"] = chance.choice(
            ("permessage-deflate", "permessage-deflate; server_max_window_bits=99", "x")
        )
    frames = [_frame(chance) for _ in range(chance.randrange(6))]
    return Shot([_request(chance, "GET", path, given), *frames, b"\x88\x80\x00\x00\x00\x00"], "socket", socket=True)


def _frame(chance: Random) -> bytes:
    messages = (
        b'{"type": "subscribe"}',
        b'{"type": "subscribe", "id": "s1", "view": "kinds", "where": "kind = 1"}',
        b'{"type": "subscribe", "id": "s1", "stream": "orders", "since": "%s"}' % _token(chance).encode(),
        b'{"type": "subscribe", "id": 1, "stream": ["x"], "limit": -1, "select": {}}',
        b'{"type": "unsubscribe", "id": "s9"}',
        b'{"type": "pace"}',
        b'{"type": "publish", "id": 1, "event": {"n": 1, "at": 1763251200000}}',
        b'{"type": "publish", "id": 2, "events": [%s]}' % _json(chance),
        b'{"type": "ack", "position": 1}',
        b'{"a":' * 3000,
        b'{"type": null}',
        b"\xff\xfe",
        _json(chance),
    )
    body = chance.choice(messages)
    opcode = chance.choice((0x81, 0x81, 0x81, 0x82, 0x01, 0x80, 0x89, 0x8A, 0x88, 0x83, 0xF1))
    if chance.random() < 0.1:
        return chance.randbytes(chance.randrange(1, 60))
    if chance.random() < 0.1:
        return (
            bytes([opcode, 0xFF]) + chance.choice((2**20, 2**40, 2**63)).to_bytes(8, "big") + b"\x00\x00\x00\x00" + body
        )
    masked = chance.random() < 0.9
    mask = bytes(4)
    length = (
        bytes([(128 if masked else 0) | len(body)])
        if len(body) < 126
        else bytes([(128 if masked else 0) | 126]) + len(body).to_bytes(2, "big")
    )
    return bytes([opcode]) + length + (mask if masked else b"") + body


MAKERS: tuple[Callable[[Random], Shot], ...] = (
    *(post, get, replay, lying_length, chunked, headers, garbage, flipped, pipelined, socket, asking, columns),
)
WEIGHTS = (30, 20, 4, 6, 8, 5, 5, 12, 4, 6, 6, 6)
