"""The JavaScript client and a real server, together: keys, tickets, channels, names, parameters, pace."""

from __future__ import annotations

import json
import subprocess
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.built_client import CLIENT, built_client
from tests.pretended import Pretended
from tests.unit.views.fake_flows import topic

PATIENCE_S = 60.0
APP = """
from tests.unit.views.fake_flows import small_app

app = small_app()
app.channel("large", "topics", where="rsvps > 10", select=["rsvps"])
app.channel("jazz", "rsvps", where="topic = 'jazz'")
"""
SOURCE = """
import { SseParser } from "./dist/reader/sse-parser.js";
/** A browser's EventSource, as far as the client uses it. */
class EventSource {
  #stop = new AbortController();
  #listeners = new Map();
  constructor(url) { opened.push(url); this.#run(url).catch(() => this.onerror?.({})); }
  addEventListener(type, listener) { this.#listeners.set(type, listener); }
  close() { this.onerror = null; this.#stop.abort(); }
  async #run(url) {
    const response = await fetch(url, { signal: this.#stop.signal });
    if (!response.ok) throw new Error("refused");
    this.onopen?.({});
    const parser = new SseParser();
    for await (const piece of response.body.pipeThrough(new TextDecoderStream()))
      for (const { type, data } of parser.take(piece)) if (data) this.#listeners.get(type)?.({ data });
    throw new Error("ended");
  }
}
const opened = [];
"""


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pretended]:
    built_client()
    edge = Pretended(tmp_path_factory.mktemp("reader"), app=APP)
    for view, key in (("topics", ("topic",)), ("countries", ("topic",)), ("elsewhere", ("topic", "group"))):
        edge.build(view, key=key)
    edge.commit([topic("jazz", 42), topic("chess", 7), topic("go", 12)])
    edge.start()
    yield edge
    edge.close()


@pytest.fixture(scope="module")
def key(edge: Pretended) -> str:
    """From here on the server wants one."""
    return edge.key("--scope", "read:*", "--scope", "write:*")


def node(edge: Pretended, key: str, code: str) -> list[Any]:
    """What a program of Node prints, line by line as JSON."""
    with running(edge, key, code) as process:
        out, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, errors
    return [json.loads(line) for line in out.splitlines()]


@contextmanager
def running(edge: Pretended, key: str, code: str) -> Iterator[subprocess.Popen[str]]:
    head = f"""
        import {{ connect, MemoryStore }} from "@penstock/client";
        const [url, key] = [{edge.url!r}, {key!r}];
        const say = (value) => console.log(JSON.stringify(value));
    """
    program = textwrap.dedent(head) + SOURCE + textwrap.dedent(code)
    words = ["node", "--experimental-websocket", "--no-warnings", "--input-type=module", "--eval", program]
    with subprocess.Popen(words, cwd=CLIENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def told(process: subprocess.Popen[str]) -> Any:
    """The next line of a program that goes on."""
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


def names(rows: Any) -> list[str]:
    return sorted(row["topic"] for row in rows)


@pytest.mark.parametrize("transport", ["websocket", "events", "poll"])
def test_parameters_and_channels_over_every_transport(edge: Pretended, key: str, transport: str) -> None:
    said = node(
        edge,
        key,
        f"""
        const client = connect(url, {{ key, transports: ["{transport}"] }});
        const params = {{ name: "jazz", most: 10 }};
        const bound = await client.live("topics", {{ where: "topic = :name OR rsvps < :most", params }}).ready;
        say([...bound.values()]);
        const channel = await client.live({{ channel: "large" }}).ready;
        say([...channel.values()]);
        say([client.transport, channel.state]);
        client.close();
        """,
    )
    assert names(said[0]) == ["chess", "jazz"]
    assert sorted(said[1], key=lambda row: row["rsvps"]) == [
        {"topic": "go", "rsvps": 12},
        {"topic": "jazz", "rsvps": 42},
    ]
    assert said[2] == [transport, "live"]


@pytest.mark.parametrize("transport", ["websocket", "events", "poll"])
def test_a_channel_of_a_stream_is_read_as_a_stream(edge: Pretended, key: str, transport: str) -> None:
    said = node(
        edge,
        key,
        f"""
        const headers = {{ authorization: `Bearer ${{key}}`, "content-type": "application/json" }};
        const body = JSON.stringify([{{ topic: "go" }}, {{ topic: "jazz", n: 5 }}]);
        await fetch(`${{url}}/streams/rsvps`, {{ method: "POST", headers, body }});
        const client = connect(url, {{ key, transports: ["{transport}"] }});
        const {{ value }} = await client.stream({{ channel: "jazz" }}).next();
        say(value.events.map(({{ topic, n }}) => [topic, n]));
        client.close();
        """,
    )
    assert set(map(tuple, said[0])) == {("jazz", 5)}


def test_an_event_source_opens_with_a_ticket_and_resumes(edge: Pretended, key: str) -> None:
    said = node(
        edge,
        key,
        """
        const soon = { silenceMs: 200, pongMs: 100, backoffMostMs: 50 };
        const client = connect(url, { key, transports: ["events"], EventSource, ...soon });
        const live = await client.live("topics").ready;
        say([...live.values()]);
        // it says nothing, so it is opened anew
        while (opened.length < 3) await new Promise((resolve) => setTimeout(resolve, 20));
        say(opened.map((each) => Object.fromEntries(new URL(each).searchParams)));
        say([live.position, live.size]);
        client.close();
        """,
    )
    assert names(said[0]) == ["chess", "go", "jazz"]
    first, *later = said[1]
    assert set(first) == {"ticket"}
    assert all(each["last_event_id"] == said[2][0] for each in later)
    assert len({each["ticket"] for each in said[1]}) == len(said[1])
    assert said[2][1] == 3


def test_a_name_lets_the_server_remember_what_was_handled(edge: Pretended, key: str) -> None:
    first = node(
        edge,
        key,
        """
        const client = connect(url, { key, transports: ["websocket"] });
        const onBatch = (batch) => say([batch.snapshot, batch.position]);
        const watch = client.watch("topics", { name: "mails", onBatch });
        while (!watch.position) await new Promise((resolve) => setTimeout(resolve, 10));
        const headers = { authorization: `Bearer ${key}` };
        for (;;) {
          const { subscribers } = await (await fetch(`${url}/subscribers`, { headers })).json();
          if (subscribers.some(({ name, position }) => name === "mails" && position === watch.position)) break;
          await new Promise((resolve) => setTimeout(resolve, 50));
        }
        client.close();
        """,
    )
    edge.commit([topic("bridge", 3)])
    second = node(
        edge,
        key,
        """
        const client = connect(url, { key, transports: ["websocket"] });
        for await (const batch of client.watch("topics", { name: "mails" })) {
          say([batch.snapshot, batch.upserts.map(({ topic }) => topic)]);
          break;
        }
        client.close();
        """,
    )
    assert first[0][0] is True
    assert second == [[False, ["bridge"]]]
    edge.commit([], [topic("bridge", 3)])


def test_pace_is_kept_and_refused_where_every_event_counts(edge: Pretended, key: str) -> None:
    said = node(
        edge,
        key,
        """
        const client = connect(url, { key, transports: ["websocket"] });
        const watch = client.watch("topics", { pace: 5 });
        say((await watch.next()).value.snapshot);
        const stream = client.stream("rsvps", { pace: 5, onBatch: () => {} });
        await stream.done.catch((error) => say(error.code));
        client.close();
        """,
    )
    assert said == [True, "every_change"]


def test_a_key_that_is_revoked_ends_the_reader_and_what_it_kept(edge: Pretended, key: str) -> None:
    other = edge.key("--scope", "read:topics", "--name", "ann")
    code = """
        const store = new MemoryStore();
        const client = connect(url, { key, store });
        const live = await client.live("topics").ready;
        client.save();
        say(live.size);
        while (!live.error) await new Promise((resolve) => setTimeout(resolve, 20));
        say([live.error.code, live.state, client.state]);
        const again = connect(url, { key, store }).live("topics");
        say([await again.ready.catch((error) => error.code), again.size]);
        process.exit(0);
    """
    with running(edge, other, code) as process:
        assert told(process) == 3
        edge.revoke("ann")
        assert told(process) == ["unauthorized", "offline", "offline"]
        assert told(process) == ["unauthorized", 0]
