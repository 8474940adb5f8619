"""Makes up what senders may send on one connection, good and broken, the same for each number: for both ways in."""

from __future__ import annotations

from random import Random

STREAMS = ("orders", "once", "kept", "strict", "visits")
PLACES = ("large", "dead", "nope", "", "or%64ers", "orders/", "orders?ack=logged", "orders?ack=applied&wait=0", "../x")
NAMES = (b"User-Agent", b"Accept", b"X-Request-Id", b"Accept-Encoding", b"X-Forwarded-For")
KINDS = (
    *("application/json", "application/json; charset=utf-8", "application/x-ndjson", "text/plain", "text/csv"),
    *("application/JSON", "application/xml", "application/json; charset=latin-1", "application/x-www-form-urlencoded"),
)
ODD = (
    *(b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity", b"Content-Length: 3", b"Content-Length: +14"),
    *(b"Expect: 100-continue", b"Expect: x", b"Connection: close", b"Connection: keep-alive", b"Connection: Upgrade"),
    *(b"Upgrade: websocket", b"Upgrade: h2c", b"Content-Encoding: gzip", b"Content-Encoding: identity"),
    *(b"Idempotency-Key: %d", b"Producer-Id: p%d", b"Producer-Epoch: 0", b"Producer-Seq: 0", b"Prefer: respond-async"),
    *(b"Penstock-Sent: 1750000000000", b"Penstock-Sent: x", b"Origin: https://shop.example", b"Origin: null"),
    *(b"Sec-Fetch-Site: cross-site", b"ce-id: 1", b"ce-specversion: 1.0", b"Host: example.com", b"Host: 127.0.0.1"),
    *(b"X-A : 1", b" X-Fold: 1", b"X-A:1", b"X-A:\t1", b"X-A: 1 ", b"X-A:", b"X\x00A: 1", b"X-A: \xff", b": x", b"no"),
    *(b"X-Request-Id: 7", b"traceparent: 00-1-1-01", b"User-Agent: a b", b"Accept: */*", b"Cookie: a=b"),
    *(b"Authorization: Bearer nope", b"Authorization: Basic eDp5", b"authorization: bearer  ", b"TE: trailers"),
    *(b"X-Long: " + b"x" * 5000, b"Keep-Alive: 5"),
)
ODDEST = (
    *(b"Content-Length: 9" * 2, b"Content-Length: 0x0e", b"Content-Length: 014", b"Content-Length: 1,1"),
    b"content-length: 2",
)
PIECES = (
    *(b"\r\n", b"\n", b"\r", b" ", b"\t", b"\x00", b":", b"{", b"}", b'"', b"0", b"\xff"),
    *(b"HTTP/1.0", b"HTTP/2.0", b"GET "),
)


END = b"GET /acks/end HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"


def script(number: int, credentials: tuple[bytes, ...]) -> list[list[bytes]]:
    """What one sender sends on one connection: the parts of each request, the next when the one before is answered.

    Several at once are all plain: what aiohttp does with a good request in front of a broken one depends on whether
    both come in one packet.
    """
    random = Random(number)
    several = random.random() < 0.3
    requests = [_request(random, number, at, credentials, plain=several) for at in range(random.randint(1, 4))]
    if several:
        return [_cut(random, b"".join(requests) + END)]
    mutated = [_mutated(random, one) if random.random() < 0.15 else one for one in requests]
    return [_cut(random, one) for one in [*mutated, END]]


def _request(random: Random, number: int, at: int, credentials: tuple[bytes, ...], *, plain: bool) -> bytes:
    plain = plain or random.random() < 0.6
    stream = random.choice(STREAMS if plain or random.random() < 0.6 else PLACES)
    kind = random.choice(KINDS[:3] if plain else KINDS)
    body = _body(random, number * 10 + at, kind, plain=random.random() < 0.7)
    method = b"POST" if plain else random.choice((b"POST", b"POST", b"POST", b"GET", b"PUT", b"post"))
    version = b"HTTP/1.1" if plain or random.random() < 0.8 else b"HTTP/1.0"
    lines = [b"Host: 127.0.0.1", b"Content-Type: " + kind.encode(), b"Content-Length: %d" % len(body)]
    lines += [b"Authorization: Bearer " + key for key in [random.choice(credentials)] if key]
    if plain:
        lines += [b"%s: %s" % (name, b"a; q=1") for name in random.sample(NAMES, random.randint(0, 2))]
    else:
        odd = random.sample(ODD, random.randint(0, 2)) + random.sample(ODDEST, random.random() < 0.1)
        lines += [line % number if b"%d" in line else line for line in odd]
    random.shuffle(lines)
    return b"%s /streams/%s %s\r\n%s\r\n\r\n%s" % (method, stream.encode(), version, b"\r\n".join(lines), body)


def _body(random: Random, number: int, kind: str, *, plain: bool) -> bytes:
    count = random.choice((1, 1, 1, 2, 5))
    events = [_event(random, number * 10 + at, plain=plain or random.random() < 0.5) for at in range(count)]
    if "ndjson" in kind:
        return b"\n".join(events) + random.choice((b"", b"\n", b"\r\n", b"\n\n"))
    if count > 1:
        return b"[" + b", ".join(events) + b"]"
    return random.choice((events[0], b" " + events[0], b"[" + events[0] + b"]"))


def _event(random: Random, number: int, *, plain: bool) -> bytes:
    """No two senders send the same id: which of them is the duplicate would depend on who is first."""
    if plain:
        return b'{"order_id": %d, "visit": "v%d", "country": "%s"}' % (number, number, random.choice((b"de", b"fr")))
    return random.choice(
        (
            b'{"order_id": %d, "visit": "v%d"}' % (number - number % 10, number - number % 10),  # the same again
            b'{"order_id": %d, "visit": "v%d", "at": 1750000000000, "price": "1.5"}' % (number, number),
            b'{"order_id": %d, "visit": "v%d", "at": 9990000000000, "when": "2099-01-01T00:00:00Z"}' % (number, number),
            b'{"order_id": %d, "visit": "e%d", "price": "1e99"}' % (number, number),
            b'{"order_id": %d, "visit": "x%d", "odd": {"a": [1, 2]}}' % (number, number),
            b'{"order_id": 9999999999999999999999, "visit": 3}',
            b'{"order_id": "%d"}' % number,
            b'{"order_id": %d, "country": "\xff"}' % number,
            b'{"order_id": %d, "place": {"city": "\\ud83d\\ude00", "lat": 1}, "visit": "p%d"}' % (number, number),
            b'{"order_id": %d, "tags": [' % number + b"[" * 80 + b"]" * 80 + b"]}",
            b"{",
            b"null",
            b"",
            b"NaN",
        )
    )


def _mutated(random: Random, sent: bytes) -> bytes:
    for _ in range(random.randint(1, 3)):
        at = random.randrange(len(sent))
        cut = random.choice((0, 0, 1, 1, 2, 20))
        sent = sent[:at] + random.choice((b"", random.choice(PIECES))) + sent[at + cut :]
    return sent


def _cut(random: Random, sent: bytes) -> list[bytes]:
    if random.random() < 0.7:
        return [sent]
    places = sorted(random.randrange(len(sent)) for _ in range(random.randint(1, 4)))
    return [part for part in (sent[a:b] for a, b in zip([0, *places], [*places, len(sent)], strict=True)) if part]
