from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from running_edge import Edge, running
from shop_app import shop

BRACKETS = (b"{", b"}", b"[", b"]", b",", b"\n", b'"', b"\\", b" ", b"[" * 200)
VALUES = (b"1", b"null", b"-0", b"1e400", b"9" * 30, b"NaN", b"\xff", b"\x00", b"\xf0\x9f\x98\x80")
STARTS = (b'{"order_id":', b'"place":', b"\x1f\x8b", b"(\xb5/\xfd")
EVENTS = (
    b'{"order_id": 1}',
    b'{"order_id": 2, "at": 9e3}',
    b'{"order_id": 3, "at": -999999999999999}',
    b'{"order_id": 4, "price": "1e99"}',
)
pieces = st.sampled_from([*BRACKETS, *VALUES, *STARTS, *EVENTS])
bodies = st.binary(max_size=200) | st.lists(pieces, max_size=12).map(b"".join)
CONTENTS = ("text/csv", "application/vnd.apache.arrow.stream", "application/cloudevents-batch+json")
kinds = st.sampled_from(["application/json", "application/x-ndjson", "text/plain", "", *CONTENTS])
encodings = st.sampled_from(["", "gzip", "zstd", "br", "identity"])
streams = st.sampled_from(["orders", "once", "kept", "strict", "visits"])
queries = st.sampled_from(["", "?ack=none", "?ack=applied", "?ack=logged&wait=0", "?ack=x"])


class Runner:
    """One edge for all examples: its loop goes on where the last one stopped."""

    def __init__(self, path: Path) -> None:
        self.loop = asyncio.new_event_loop()
        self.stack = contextlib.AsyncExitStack()
        self.edge: Edge = self.loop.run_until_complete(self.stack.enter_async_context(running(shop(), path)))

    def post(self, stream: str, body: bytes, **options: Any) -> Any:
        return self.loop.run_until_complete(self.edge.post(stream, body, **options))

    def close(self) -> None:
        self.loop.run_until_complete(self.stack.aclose())
        self.loop.close()


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with tempfile.TemporaryDirectory() as folder:
        made = Runner(Path(folder))
        yield made
        made.close()


@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow])
@given(bodies, kinds, encodings, streams, queries)
def test_no_bytes_are_an_error_of_the_server(
    runner: Runner, body: bytes, kind: str, encoding: str, stream: str, query: str
) -> None:
    edge = runner.edge
    received = edge.metric("received", stream)
    headers = {"Content-Type": kind} | ({"Content-Encoding": encoding} if encoding else {})
    reply = runner.post(stream, body, headers=headers, query=query)
    assert reply.status in (200, 202, 400, 413, 415, 422), reply.raw
    if reply.status in (200, 422):
        told = reply.body["accepted"] + reply.body["duplicates"] + len(reply.body["rejected"])
        assert edge.metric("received", stream) - received >= told
    elif reply.status >= 400:
        assert set(reply.body["error"]) == {"code", "message", "detail", "hint"}


@settings(max_examples=200)
@given(
    st.lists(st.sampled_from([b'{"order_id": 1}', b"nope", b'{"order_id": 9e9}', b'{"order_id": ' + b"9" * 25 + b"}"]))
)
def test_every_line_is_accounted_for_in_its_place(runner: Runner, lines: list[bytes]) -> None:
    reply = runner.post("orders", b"\n".join(lines), headers={"Content-Type": "application/x-ndjson"})
    good = [n for n, line in enumerate(lines) if line == b'{"order_id": 1}']
    assert reply.body["accepted"] == len(good)
    assert [r["index"] for r in reply.body["rejected"]] == [n for n in range(len(lines)) if n not in good]
    letters = runner.edge.newest("dead", len(lines) - len(good))
    assert [letter["raw"] for letter in letters] == [line for n, line in enumerate(lines) if n not in good]
