"""Makes up what asks for more than a plain POST: headers that the door reads with values that nobody would give them,
CloudEvents in headers, and columns of every kind."""

from __future__ import annotations

from random import Random

import pyarrow as pa

ASKING = (
    *(b"Idempotency-Key", b"Prefer", b"Penstock-Sent", b"Expect", b"Authorization", b"Origin", b"Accept", b"Cookie"),
    *(b"If-None-Match", b"Content-Type", b"Content-Encoding", b"Producer-Id", b"Producer-Epoch", b"Producer-Seq"),
    *(b"ce-time", b"ce-subject", b"ce-data", b"ce-datacontenttype", b"Sec-Fetch-Site", b"X-Forwarded-For"),
)
ENVELOPE = {b"ce-specversion": b"1.0", b"ce-id": b"1", b"ce-source": b"/fuzz", b"ce-type": b"t"}
VALUES = (
    *(b"", b"\xff", b"\xc3\xa9", b"\xed\xa0\x80", b"%FF", b"%00", b"%", b'"', b'""', b'"\\"', b"a,b", b"a;q=x"),
    *(b"null", b"0", b"1", b"-1", b"1.0", b"9" * 30, b"x" * 300, b"2026-11-16T00:00:00Z"),
    *(b"respond-async", b"100-continue"),
    *(b"gzip", b"application/json", b"application/cloudevents+json", b"text/csv", b"https://a.example", b"Bearer x"),
)
EVENT = b'{"n": 1, "at": 1763251200000}'


def asking(chance: Random) -> bytes:
    """A POST with a few headers that mean something."""
    lines = dict(ENVELOPE) if chance.random() < 0.4 else {}
    lines[b"Content-Type"] = b"application/json"
    for name in chance.sample((*ASKING, *ENVELOPE), chance.randrange(1, 4)):
        lines[name] = chance.choice(VALUES)
    if chance.random() < 0.2:
        lines.pop(chance.choice(list(lines)))
    given = b"".join(b"%s: %s\r\n" % line for line in lines.items())
    stream = chance.choice((b"steps", b"orders", b"strict"))
    size = b"Content-Length: %d\r\n" % len(EVENT)
    return b"POST /streams/%s HTTP/1.1\r\nHost: localhost\r\n%s%s\r\n%s" % (stream, size, given, EVENT)


def columns(chance: Random) -> bytes:
    """A POST of an Arrow stream: kinds that fit, that nearly fit, that fold much into little, and broken ones."""
    rows = chance.choice((0, 1, 3, 200))
    fields = {name: _column(chance, rows) for name in chance.sample(("n", "at", "order_id", "inner", "tags", "x"), 3)}
    if chance.random() < 0.7:
        fields |= {"n": pa.array(range(rows)), "at": pa.array([1_763_251_200_000] * rows)}
    body = _stream(chance, pa.table(fields))
    for _ in range(chance.choice((0, 0, 0, 1, 4))):
        at = chance.randrange(len(body))
        body = body[:at] + bytes([chance.randrange(256)]) + body[at + 1 :]
    body = chance.choice((body, body, body, body + body, body + b"x", body[: chance.randrange(len(body))]))
    kind = b"Content-Type: application/vnd.apache.arrow.stream\r\n"
    stream = chance.choice((b"steps", b"steps", b"orders", b"strict"))
    head = b"POST /streams/%s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n" % (stream, len(body))
    return head + kind + b"\r\n" + body


def _column(chance: Random, rows: int) -> pa.Array:
    long = "x" * chance.choice((0, 5, 90_000))
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int8()), pa.array([long]))
    offsets = pa.array(range(rows + 1), pa.int32())
    kinds = (
        lambda: texts,
        lambda: pa.ListArray.from_arrays(offsets, texts),
        lambda: pa.StructArray.from_arrays([texts], ["x"]),
        lambda: pa.array([long[:50]] * rows, pa.string_view()),
        lambda: pa.array([[long[:50]]] * rows, pa.large_list(pa.string_view())),
        lambda: pa.nulls(rows, chance.choice((pa.null(), pa.int64(), pa.string(), pa.list_(pa.int8())))),
        lambda: pa.array([2**63] * rows, pa.uint64()),
        lambda: pa.array([float("nan")] * rows),
        lambda: pa.array([2**62] * rows, pa.timestamp(chance.choice(("s", "ms", "us", "ns")), tz="Nowhere/Land")),
        lambda: pa.array([b"\xff"] * rows),
        lambda: pa.array([1] * rows, pa.duration("s")),
        lambda: pa.array([[("a", 1), ("a", 2)]] * rows, pa.map_(pa.string(), pa.int64())),
    )
    return chance.choice(kinds)()


def _stream(chance: Random, table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=chance.choice((None, None, "lz4", "zstd")))
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        for _ in range(chance.choice((1, 1, 3))):
            writer.write_table(table)
    return bytes(sink.getvalue())
