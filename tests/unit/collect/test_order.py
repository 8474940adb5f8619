from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from running_edge import running, until

from penstock import App, Event
from penstock.collect.ways import without_ack
from penstock.errors import LaggingError

KEYS, SENDERS, REQUESTS = 12, 4, 30


class Step(Event):
    key: str
    sender: int
    n: int


def app() -> App:
    made = App("order")
    made.stream("steps", Step, key="key", partitions=4)
    return made


def request(sender: int, number: int, start: int, seeded: Random, quick: bool) -> tuple[bytes, int]:
    """A request of every kind that a sender may use, with its next events."""
    events = [
        {"key": f"k{seeded.randrange(KEYS)}", "sender": sender, "n": start + i}
        for i in range(seeded.choice([1, 1, 3, 2500]))
    ]
    producer = f"Producer-Id: p{sender}\r\nProducer-Epoch: 0\r\nProducer-Seq: {number}\r\n" if sender % 2 else ""
    kind = seeded.choice(["text/csv", "application/x-ndjson", "application/vnd.apache.arrow.stream"])
    if kind == "text/csv":
        body = ("key,sender,n\n" + "".join(f"{e['key']},{sender},{e['n']}\n" for e in events)).encode()
    elif kind == "application/x-ndjson":
        body = "\n".join(map(json.dumps, events)).encode()
    else:
        body = stream_of(events)
    query = "" if producer or not quick else "?ack=none"
    head = f"POST /streams/steps{query} HTTP/1.1\r\nHost: x\r\nContent-Type: {kind}\r\n{producer}"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body, len(events)


def stream_of(events: list[dict[str, object]]) -> bytes:
    table = pa.Table.from_pylist(events)
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


async def pipelined(port: int, sender: int, quick: bool) -> int:
    """All requests of one sender down one connection, without waiting for any reply."""
    seeded = Random(sender)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    sent = 0
    for number in range(REQUESTS):
        raw, events = request(sender, number, sent, seeded, quick)
        sent += events
        writer.write(raw)
    for _ in range(REQUESTS):
        status = await reader.readline()
        assert b" 200 " in status or b" 202 " in status, status
        length = 0
        while (line := await reader.readline()) != b"\r\n":
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        await reader.readexactly(length)
    writer.close()
    await writer.wait_closed()
    return sent


@pytest.mark.parametrize("quick", [False, True])
async def test_events_of_one_key_from_one_sender_keep_their_order_in_one_partition(tmp_path: Path, quick: bool) -> None:
    """`quick`: senders do not even wait until their events are judged (ack=none)."""
    async with running(app(), tmp_path) as edge:
        port = int(edge.url.rsplit(":", 1)[1])
        sent = await asyncio.gather(*(pipelined(port, sender, quick) for sender in range(SENDERS)))
        await edge.collect._unanswered.drain()
        stream = edge.log.find("steps")
        assert stream is not None
        partition_of: dict[str, int] = {}
        last: dict[tuple[str, int], int] = {}
        count = 0
        for partition in range(4):
            for block in edge.log.read(stream, partition, 0):
                for row in block.batch.to_pylist():
                    assert partition_of.setdefault(row["key"], partition) == partition
                    assert last.get((row["key"], row["sender"]), -1) < row["n"]
                    last[row["key"], row["sender"]] = row["n"]
                    count += 1
        assert count == sum(sent)
        assert len(set(partition_of.values())) == 4


async def test_a_body_that_cannot_be_read_holds_its_place_in_the_line(tmp_path: Path) -> None:
    """The first waits because a view lags; what comes behind the unreadable one must not overtake it."""
    async with running(app(), tmp_path) as edge:
        guard = edge.collect.pressure.guards["steps"]
        guard.check = lambda account: None  # type: ignore[method-assign]
        guard.lagging = LaggingError("behind").after(0.2)
        first = b'{"key": "k", "sender": 0, "n": 0}'
        assert (await edge.post("steps", first, query="?ack=none")).status == 202
        await asyncio.sleep(0.05)
        assert (await edge.post("steps", b"nope", query="?ack=none")).status == 202
        await until(lambda: edge.metric("dead", "steps") == 1)
        guard.lagging = None
        assert (await edge.post("steps", first.replace(b'"n": 0', b'"n": 1'), query="?ack=none")).status == 202
        await until(lambda: edge.metric("accepted", "steps") == 2)
        assert [row["n"] for row in edge.events("steps")] == [0, 1]


async def test_who_wants_an_answer_waits_a_while_behind_what_wants_none_and_is_then_told_to_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(without_ack, "TURN_S", 0.2)
    monkeypatch.setattr(without_ack, "PATIENCE_S", 3.0)
    body = b'{"key": "k", "sender": 0, "n": 0}'
    async with running(app(), tmp_path) as edge:
        guard = edge.collect.pressure.guards["steps"]
        guard.check = lambda account: None  # type: ignore[method-assign]
        guard.lagging = LaggingError("behind").after(0.4)
        began = asyncio.get_running_loop().time()
        tokens = [(await edge.post("steps", body, query="?ack=none")).body["ack"] for _ in range(30)]
        refused = await edge.post("steps", body)
        assert (refused.status, refused.code) == (503, "overloaded")
        assert [(await edge.ack(token, "?wait=60")).status for token in tokens] == [404] * 30
        assert asyncio.get_running_loop().time() - began < 60, "each waited its own patience, one after the other"
        guard.lagging = None
        assert (await edge.post("steps", body)).status == 200
