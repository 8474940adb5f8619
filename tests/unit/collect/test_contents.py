from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from readings_app import ARROW, CE, cloud, readings, send, stream_of
from running_edge import Edge

from penstock import App
from penstock.collect.reception import _weight


@pytest.fixture
def app() -> App:
    return readings()


def test_many_small_events_count_for_more_than_their_bytes_when_accounts_take_turns() -> None:
    event = b'{"n": 1, "at": 1700000000000, "name": "somebody", "value": 1.5, "good": true}'
    assert _weight(event) == len(event)
    assert _weight((event + b"\n") * 100) == 100 * (len(event) + 1)
    assert _weight(b"x\n" * 4_000) == 256_000
    assert _weight(b"[" + b"1," * 4_000 + b"1]") == 64_000


@pytest.mark.parametrize(
    ("kind", "body", "in_a_thread"),
    [
        ("text/csv", b"n\n" + b"1\n" * 500, False),
        ("text/csv", b"n\n" + b"1,b\n" * 500, True),
        ("text/csv", b"n\r" + b"1\r" * 4_000, True),
        ("application/x-ndjson", b"x\n" * 4_000, True),
        ("application/json", b"[" + b"1," * 4_000 + b"1]", True),
        ("application/x-ndjson", b"x\n" * 20, False),
    ],
    ids=["rows", "bad-rows", "many-rows", "bad-lines", "bad-elements", "few"],
)
async def test_garbage_that_takes_long_to_judge_does_not_hold_up_the_loop(
    edge: Edge, monkeypatch: pytest.MonkeyPatch, kind: str, body: bytes, in_a_thread: bool
) -> None:
    given, threads = asyncio.to_thread, list[str]()

    async def to_thread(work: Callable[..., Any], *words: Any) -> Any:
        threads.append(work.__name__)
        return await given(work, *words)

    monkeypatch.setattr(asyncio, "to_thread", to_thread)
    assert (await send(edge, "plain", body, kind)).status in (200, 400, 422)
    assert ("decoded_as" in threads) == in_a_thread


@pytest.mark.parametrize("encoding", ["br", "deflate", "gzip, gzip", "gzip,zstd", "compress"])
async def test_other_encodings_are_refused(edge: Edge, encoding: str) -> None:
    reply = await edge.post("plain", b"{}", headers={"Content-Encoding": encoding})
    assert (reply.status, reply.code) == (415, "unsupported_content")


@pytest.mark.parametrize("encoding", ["gzip", "zstd", "ZSTD"])
@pytest.mark.parametrize("kind", ["text/csv", ARROW, CE])
async def test_every_content_may_be_packed(edge: Edge, kind: str, encoding: str) -> None:
    bodies = {"text/csv": b"n\n1\n", ARROW: stream_of(pa.table({"n": [1]})), CE: json.dumps(cloud({"n": 1})).encode()}
    sent = pa.Codec(encoding.lower()).compress(bodies[kind], asbytes=True)
    reply = await send(edge, "plain", sent, kind, Content_Encoding=encoding)
    assert (reply.status, reply.body["accepted"]) == (200, 1)
