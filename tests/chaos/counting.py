"""Counts every event that is sent by every way in, while the edge is killed, and compares with what the log says.

    python -m tests.chaos.counting --kills 50 --seed 1

Each request, message and datagram carries one piece of garbage with a tag that is used once. What was taken is one
commit, so the tags in `dead` say exactly which of them were received, also where the reply was lost in a kill. From
them follows, to the event, what must have been accepted, known, dead and shed. A pixel holds one event, and so no tag
beside a good one: of those whose image never came it is not known whether they were received.

Dead letters of one stream are mended and replayed all the while, and by the command line at the end: each must count
once more, as accepted.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pyarrow as pa
from aiohttp import web

from penstock.config import Folder
from penstock.log.opening import open_reader

APP = Path(__file__).with_name("counting_app.py")
POSTED = {
    "post": "application/x-ndjson",
    "shedding": "application/x-ndjson",
    "limited": "application/x-ndjson",
    "beacon": "text/plain",
    "csv": "text/csv",
    "quick": "application/x-ndjson",
    "once": "application/x-ndjson",
    "arrow": "application/vnd.apache.arrow.stream",
    "cloudevents": "application/cloudevents-batch+json",
    "mended": "application/x-ndjson",
}
"""Streams that are posted to, and the content type of what they get; `quick` with ack=none, `once` with a key. The dead
letters of `mended` are replayed."""
MENDED_FROM = 10**9
"""A mended letter becomes the event of this number and the letter's own."""
MEND = f"def fix(letter):\n    return {{'n': {MENDED_FROM} + int(letter.letter.split('-')[1])}}\n"
WAYS = {stream: "post" for stream in POSTED} | {
    "beacon": "beacon",
    "pixel": "pixel",
    "publish": "publish",
    "udp": "udp",
    "pull": "pull",
}
KINDS = ("accepted", "duplicates", "dead", "shed")
READY_S = 60.0
_METRICS = {"accepted": "accepted", "duplicates": "duplicate", "dead": "dead", "shed": "shed"}


@dataclass
class Attempt:
    """One body, message or datagram as it went out."""

    good: list[int]
    garbage: int
    answered: bool = False
    shed: int = 0


@dataclass
class Findings:
    """What was sent, by stream and tag, and what was wrong."""

    seed: int
    attempts: dict[str, dict[str, Attempt]] = field(default_factory=lambda: {name: {} for name in WAYS})
    refused: Counter[str] = field(default_factory=Counter)
    kills: int = 0
    fed: int = 0
    replayed: Counter[str] = field(default_factory=Counter)
    totals: dict[str, dict[str, int]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


class Load:
    """Makes bodies: one event in ten is known already, one in twenty is garbage, and one more has the tag."""

    def __init__(self, stream: str, found: Findings) -> None:
        self._attempts = found.attempts[stream]
        self._chance = random.Random(f"{found.seed}/{stream}")
        self._stream = stream
        self._next = self._tag = 0

    def events(self, most: int) -> list[int | None]:
        """Numbers of good events; None is garbage."""
        made: list[int | None] = []
        for _ in range(self._chance.randint(1, most)):
            dice = self._chance.random()
            if dice < 0.05:
                made.append(None)
            elif dice < 0.15 and self._next:
                made.append(self._chance.randrange(self._next))
            else:
                made.append(self._next)
                self._next += 1
        return made

    def attempt(self, events: list[int | None]) -> tuple[Attempt, list[str]]:
        """A new try of the same events: its lines, one of which has a tag of its own."""
        tag = f"{self._stream}-{self._tag}"
        self._tag += 1
        lines = [json.dumps({"n": n}) if n is not None else '{"n": "garbage"}' for n in events]
        lines.insert(self._chance.randrange(len(lines) + 1), json.dumps({"tag": tag}))
        good = [n for n in events if n is not None]
        made = self._attempts[tag] = Attempt(good, len(lines) - len(good))
        return made, lines

    def single(self, n: int | None) -> tuple[Attempt, dict[str, str]]:
        """One event alone, as parameters of an address: good, or garbage with a tag of its own."""
        tag = f"{self._stream}-{self._tag}"
        self._tag += 1
        made = self._attempts[tag] = Attempt([], 1) if n is None else Attempt([n], 0)
        return made, {"tag": tag} if n is None else {"n": str(n)}

    def pause_s(self, most_s: float) -> float:
        return self._chance.uniform(0, most_s)


class Edge:
    """`penstock edge` in a process of its own, killed and started again on the same folder."""

    def __init__(self, folder: Path, found: Findings) -> None:
        self.folder, self.found = Folder(folder), found
        self.port, self.udp, self.feed = (_free_port(kind) for kind in ("tcp", "udp", "tcp"))
        self.url = f"http://127.0.0.1:{self.port}"
        self.before: dict[str, dict[str, int]] = {}
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self.before = totals(self.folder)
        environment = os.environ | {
            "COUNTING_UDP": str(self.udp),
            "COUNTING_FEED": f"ws://127.0.0.1:{self.feed}/feed",
        }
        command = [sys.executable, "-P", "-m", "penstock.cli.main", "edge", str(APP), "--port", str(self.port)]
        self.folder.root.parent.mkdir(parents=True, exist_ok=True)
        with self.folder.root.with_suffix(".out").open("ab") as out:
            self._process = await asyncio.create_subprocess_exec(
                *command, "--data", str(self.folder.root), env=environment, stdout=out, stderr=out
            )
        async with asyncio.timeout(READY_S), aiohttp.ClientSession() as session:
            while await self._get(session, "/readyz?for=collect") is None:
                assert self._process.returncode is None, self.folder.root.with_suffix(".out").read_text()[-3000:]
                await asyncio.sleep(0.05)

    async def kill(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        await self._process.wait()

    async def status(self) -> dict[str, dict[str, int]]:
        async with aiohttp.ClientSession() as session:
            body = json.loads(await self._get(session, "/status") or "{}")
        return {s["stream"]: {kind: s["totals"][kind] for kind in KINDS} for s in body["streams"]}

    async def metrics(self) -> Counter[tuple[str, str, str]]:
        """By stream, way and kind."""
        found: Counter[tuple[str, str, str]] = Counter()
        async with aiohttp.ClientSession() as session:
            text = await self._get(session, "/metrics") or ""
        for line in text.splitlines():
            for kind, name in (*_METRICS.items(), ("received", "received")):
                start = f"penstock_collect_events_{name}_total{{"
                if line.startswith(start):
                    labels, _, value = line[len(start) :].partition("} ")
                    named = dict(part.split("=") for part in labels.replace('"', "").split(","))
                    found[named["stream"], named["way"], kind] = int(float(value))
        return found

    async def _get(self, session: aiohttp.ClientSession, path: str) -> str | None:
        with suppress(aiohttp.ClientError, TimeoutError, OSError):
            async with session.get(self.url + path, timeout=aiohttp.ClientTimeout(total=5)) as reply:
                return await reply.text() if reply.status == 200 else None
        return None


# The ways in


async def posting(edge: Edge, stream: str, load: Load, end: asyncio.Event) -> None:
    """Bodies, each sent until it is answered."""
    headers = {"Content-Type": POSTED[stream]}
    async with aiohttp.ClientSession(headers=headers) as session:
        while not end.is_set():
            events = load.events(30)
            while not await _posted(session, edge, stream, load, events) and not end.is_set():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            await asyncio.sleep(load.pause_s(0.02))


async def _posted(
    session: aiohttp.ClientSession, edge: Edge, stream: str, load: Load, events: list[int | None]
) -> bool:
    attempt, lines = load.attempt(events)
    query = "?ack=none" if stream == "quick" else ""
    key = {"Idempotency-Key": f"{len(edge.found.attempts[stream])}"} if stream == "once" else {}
    data = _BODIES.get(stream, "\n".join)(lines)
    try:
        async with session.post(f"{edge.url}/streams/{stream}{query}", data=data, headers=key) as reply:
            status, body = reply.status, await reply.json()
        if status == 202:
            async with session.get(f"{edge.url}/acks/{body['ack']}?wait=5") as reply:
                status, body = reply.status, await reply.json()
    except (aiohttp.ClientError, TimeoutError, OSError):
        return False
    if status in (200, 422) and body.get("level") != "pending":
        attempt.answered, attempt.shed = True, body.get("shed", 0)
        return True
    edge.found.refused[body["error"]["code"] if "error" in body else "pending"] += 1
    return False


def _csv(lines: list[str]) -> str:
    events = [json.loads(line) for line in lines]
    return "n,tag\n" + "\n".join(f"{event.get('n', '')},{event.get('tag', '')}" for event in events) + "\n"


def _arrow(lines: list[str]) -> bytes:
    """Where the others have garbage, a column of integers has nothing."""
    events = [json.loads(line) for line in lines]
    numbers = [n if isinstance(n := event.get("n"), int) else None for event in events]
    table = pa.table({"n": pa.array(numbers, pa.int64()), "tag": [event.get("tag") for event in events]})
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return bytes(out.getvalue())


def _cloudevents(lines: list[str]) -> str:
    envelope = '{"specversion":"1.0","id":"%d","source":"/counting","type":"step","data":%s}'
    return "[" + ",".join(envelope % (at, line) for at, line in enumerate(lines)) + "]"


_BODIES: dict[str, Callable[[list[str]], str | bytes]] = {"csv": _csv, "arrow": _arrow, "cloudevents": _cloudevents}


async def pixels(edge: Edge, load: Load, end: asyncio.Event) -> None:
    """One event in an address, asked for until the image comes."""
    async with aiohttp.ClientSession() as session:
        while not end.is_set():
            (n,) = load.events(1)
            while not await _seen(session, edge, *load.single(n)) and not end.is_set():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            await asyncio.sleep(load.pause_s(0.01))


async def _seen(session: aiohttp.ClientSession, edge: Edge, attempt: Attempt, params: dict[str, str]) -> bool:
    with suppress(aiohttp.ClientError, TimeoutError, OSError):
        async with session.get(f"{edge.url}/streams/pixel/pixel.gif", params=params) as reply:
            await reply.read()
            attempt.answered = reply.status == 200
    return attempt.answered


async def mending(edge: Edge, end: asyncio.Event) -> None:
    """Dead letters of one stream, mended and sent again while the edge is killed; some are left for the command."""
    asked = {"stream": "mended", "replayed": "false", "limit": "20"}
    async with aiohttp.ClientSession() as session:
        while not end.is_set():
            with suppress(aiohttp.ClientError, TimeoutError, OSError):
                async with session.get(f"{edge.url}/dead", params=asked) as reply:
                    names = [letter["letter"] for letter in (await reply.json())["letters"]]
                events = {name: [{"n": MENDED_FROM + int(name.split("-")[1])}] for name in names}
                letters = [{"letter": name, "events": made} for name, made in events.items()]
                async with session.post(f"{edge.url}/dead/replay", json={"letters": letters}) as reply:
                    results = (await reply.json()).get("letters", ())
                edge.found.replayed.update(result["result"] for result in results)
            await asyncio.sleep(0.2)


async def mended_by_command(edge: Edge) -> None:
    """What is left, by `penstock dead fix`; then `penstock dead replay` finds nothing to do."""
    mend = edge.folder.root.with_name("mend.py")
    mend.write_text(MEND)
    left = ["--stream", "mended", "--url", edge.url, "--json"]
    for verb in (["fix", str(mend), "--apply", *left], ["replay", "--all", *left]):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "penstock.cli.main", "dead", *verb, stdout=asyncio.subprocess.PIPE
        )
        said, _ = await process.communicate()
        results = Counter(json.loads(line)["result"] for line in said.splitlines())
        edge.found.replayed.update(results)
        if process.returncode or results.keys() - {"replayed"}:
            edge.found.wrong.append(f"penstock dead {verb[0]}: {process.returncode}, {results}")


async def too_large(edge: Edge, end: asyncio.Event) -> None:
    """Bodies that are refused whole: they must not show in any count."""
    async with aiohttp.ClientSession() as session:
        while not end.is_set():
            with suppress(aiohttp.ClientError, TimeoutError, OSError):
                async with session.post(
                    f"{edge.url}/streams/post",
                    headers={"Content-Length": str(2**30), "Content-Type": "application/json"},
                ) as reply:
                    edge.found.refused[str(reply.status)] += 1
            await asyncio.sleep(0.5)


async def publishing(edge: Edge, load: Load, end: asyncio.Event) -> None:
    async with aiohttp.ClientSession() as session:
        while not end.is_set():
            with suppress(aiohttp.ClientError, TimeoutError, OSError, asyncio.IncompleteReadError):
                async with session.ws_connect(f"{edge.url}/streams/publish/publish") as ws:
                    await _published(ws, load, end)
            await asyncio.sleep(0.05)


async def _published(ws: aiohttp.ClientWebSocketResponse[Any], load: Load, end: asyncio.Event) -> None:
    if (await ws.receive(timeout=5)).type != aiohttp.WSMsgType.TEXT:  # killed behind the handshake
        return
    waiting: dict[int, Attempt] = {}
    number = 0
    while not end.is_set() or waiting:
        while len(waiting) < 4 and not end.is_set():
            attempt, lines = load.attempt(load.events(10))
            waiting[number] = attempt
            await ws.send_str(f'{{"type":"publish","id":{number},"events":[{",".join(lines)}]}}')
            number += 1
        message = await ws.receive(timeout=5)
        if message.type != aiohttp.WSMsgType.TEXT:
            return
        answer = json.loads(message.data)
        done = waiting.pop(answer["id"])
        done.answered = answer["type"] == "ack"
        await asyncio.sleep(load.pause_s(0.01))


async def datagrams(edge: Edge, load: Load, end: asyncio.Event) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        while not end.is_set():
            _, lines = load.attempt(load.events(5))
            with suppress(OSError):
                made.sendto("\n".join(lines).encode(), ("127.0.0.1", edge.udp))
            await asyncio.sleep(load.pause_s(0.01))


@asynccontextmanager
async def feed(edge: Edge) -> AsyncIterator[None]:
    """A source that repeats and sends garbage; asked with `since` it goes on from there."""
    chance = random.Random(f"{edge.found.seed}/feed")

    async def serve(request: web.Request) -> web.WebSocketResponse:
        ws = web.WebSocketResponse()
        await ws.prepare(request)
        n = int(request.query.get("since", "0"))
        with suppress(ConnectionError):
            while not ws.closed:
                n += 1
                dice = chance.random()
                text = "garbage" if dice < 0.05 else json.dumps({"n": n if dice > 0.15 else max(0, n - 3)})
                await ws.send_str(text)
                edge.found.fed += 1
                await asyncio.sleep(chance.uniform(0, 0.005))
        return ws

    app = web.Application()
    app.router.add_get("/feed", serve)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", edge.feed).start()
    try:
        yield
    finally:
        await runner.cleanup()


# The round


async def play(kills: int, seed: int, data: Path, between_s: tuple[float, float] = (0.3, 1.5)) -> Findings:
    """All ways in at once, and `kill -9` at seeded moments; at the end everything is compared."""
    found = Findings(seed)
    edge = Edge(data, found)
    chance = random.Random(seed)
    await edge.start()
    end = asyncio.Event()
    async with feed(edge):
        loads: list[Callable[[], Awaitable[None]]] = [
            *(lambda s=s: posting(edge, s, Load(s, found), end) for s in POSTED),  # type: ignore[misc]
            lambda: publishing(edge, Load("publish", found), end),
            lambda: datagrams(edge, Load("udp", found), end),
            lambda: pixels(edge, Load("pixel", found), end),
            lambda: mending(edge, end),
            lambda: too_large(edge, end),
        ]
        tasks = [asyncio.create_task(load()) for load in loads]  # type: ignore[arg-type]
        for _ in range(kills):
            await asyncio.sleep(chance.uniform(*between_s))
            await edge.kill(signal.SIGKILL)
            found.kills += 1
            await edge.start()
        await asyncio.sleep(between_s[1])
        await _until_everything_was_seen(edge)
        end.set()
        await asyncio.gather(*tasks)
    await mended_by_command(edge)
    await _compare_live(edge, found)
    await edge.kill(signal.SIGTERM)
    reckon(found, edge.folder)
    return found


async def _until_everything_was_seen(edge: Edge) -> None:
    """A busy machine may take a while to load a view, and only a view that is loaded can lag; and what is rare takes a
    while to happen by each way in."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(60):
            while not _everything(await edge.status()):  # noqa: ASYNC110
                await asyncio.sleep(0.3)


def _everything(status: dict[str, dict[str, int]]) -> bool:
    return status["shedding"]["shed"] > 0 and all(status[stream][kind] for stream in WAYS for kind in KINDS[:3])


async def _compare_live(edge: Edge, found: Findings) -> None:
    """What `/status` and `/metrics` of the last process say, once nothing moves any more."""
    seen = None
    async with asyncio.timeout(30):
        while (now := await edge.metrics()) != seen:
            seen = now
            await asyncio.sleep(1.5)
    status = await edge.status()
    for stream, way in WAYS.items():
        before = edge.before.get(stream, dict.fromkeys(KINDS, 0))
        for kind in KINDS:
            grown = status[stream][kind] - before[kind]
            counted = sum(seen[stream, by, kind] for by in (way, "replay")) if seen else 0
            if grown != counted:
                found.wrong.append(f"{stream}: status grew by {grown} {kind}, /metrics says {counted}")
        if seen and seen[stream, way, "received"] != sum(seen[stream, way, kind] for kind in KINDS):
            found.wrong.append(f"{stream}: /metrics: received is not the sum: {seen}")
    found.totals = {stream: status[stream] for stream in WAYS}


def totals(folder: Folder) -> dict[str, dict[str, int]]:
    """What the log says, read by somebody else than the edge."""
    log = open_reader(folder.edge_log)
    try:
        memory = log.memory()
        found = {}
        for stream in log.streams():
            counts = memory.get(f"count/{stream.name}") or {}
            accepted = {"accepted": sum(log.bounds(stream).ends)}
            found[stream.name] = accepted | {kind: counts.get(kind, 0) for kind in KINDS[1:]}
        return found
    finally:
        log.close()


def reckon(found: Findings, folder: Folder) -> None:
    """Compare the log with what went out."""
    said = totals(folder)
    letters = _letters(folder)
    for stream in WAYS:
        if found.totals and said[stream] != found.totals[stream]:
            found.wrong.append(f"{stream}: the log says {said[stream]}, status {found.totals[stream]}")
        if letters[stream].total() != said[stream]["dead"]:
            found.wrong.append(f"{stream}: {letters[stream].total()} letters, counted {said[stream]['dead']}")
        if stream == "pixel":
            _reckon_pixels(found, said[stream], letters[stream], _numbers(folder, stream))
        elif stream != "pull":
            again = letters[stream].total() if stream == "mended" else 0
            _reckon_attempts(stream, found, said[stream], letters[stream], again)
    stored = _pulled(folder)
    if stored != sum(said["pull"].values()):
        found.wrong.append(f"pull: its position covers {stored} events, the log says {said['pull']}")


def _reckon_pixels(found: Findings, said: dict[str, int], letters: Counter[str], there: set[int]) -> None:
    attempts = found.attempts["pixel"]
    answered = {n for attempt in attempts.values() if attempt.answered for n in attempt.good}
    sent = {n for attempt in attempts.values() for n in attempt.good}
    if not answered <= there <= sent or said["accepted"] != len(there):
        found.wrong.append(f"pixel: answered and not in the log: {answered - there}; not sent: {there - sent}")
    lost = [tag for tag, a in attempts.items() if a.answered and a.garbage and letters[tag] != 1]
    if lost or letters.keys() - attempts.keys():
        found.wrong.append(f"pixel: garbage that is not in the log once: {lost[:5]}")
    least = sum(attempt.answered for attempt in attempts.values())
    if not least <= sum(said.values()) <= len(attempts):
        found.wrong.append(f"pixel: {least} to {len(attempts)} were received, the log says {said}")


def _numbers(folder: Folder, name: str) -> set[int]:
    log = open_reader(folder.edge_log)
    try:
        stream = log.find(name)
        assert stream is not None
        return {n for block in log.read(stream, 0, 0, columns=["n"]) for n in block.batch.column(0).to_pylist()}
    finally:
        log.close()


def _reckon_attempts(stream: str, found: Findings, said: dict[str, int], letters: Counter[str], again: int) -> None:
    """`again` letters were mended and taken: each as one event more, which nobody had sent."""
    attempts = found.attempts[stream]
    taken = [attempt for tag, attempt in attempts.items() if tag in letters]
    lost = [tag for tag, attempt in attempts.items() if attempt.answered and tag not in letters]
    twice = [tag for tag, count in letters.items() if tag and count > 1]
    if lost or twice:
        found.wrong.append(f"{stream}: answered and not in the log: {lost[:5]}; in it twice: {twice[:5]}")
    received = sum(len(attempt.good) + attempt.garbage for attempt in taken) + again
    if received != sum(said.values()):
        found.wrong.append(f"{stream}: {received} events were received, the log says {said}: {sum(said.values())}")
    if said["dead"] != sum(attempt.garbage for attempt in taken):
        found.wrong.append(f"{stream}: {said['dead']} dead, {sum(a.garbage for a in taken)} were garbage")
    if said["shed"] < sum(attempt.shed for attempt in taken):
        found.wrong.append(f"{stream}: {said['shed']} shed in the log, more in the replies")
    if not said["shed"] and said["accepted"] != len({n for attempt in taken for n in attempt.good}) + again:
        found.wrong.append(f"{stream}: {said['accepted']} accepted, others were sent")


def _letters(folder: Folder) -> dict[str, Counter[str]]:
    """Dead letters by stream and tag; those without one under ''."""
    found: dict[str, Counter[str]] = {stream: Counter() for stream in WAYS}
    log = open_reader(folder.edge_log)
    try:
        stream = log.find("dead")
        assert stream is not None
        for block in log.read(stream, 0, 0, columns=["stream", "raw"]):
            for row in block.batch.to_pylist():
                tag = ""
                with suppress(ValueError, AttributeError):
                    event = json.loads(row["raw"])
                    tag = event.get("data", event).get("tag") or ""
                found[row["stream"]][tag] += 1
        return found
    finally:
        log.close()


def _pulled(folder: Folder) -> int:
    log = open_reader(folder.edge_log)
    try:
        return sum(value.get("events", 0) for key, value in log.memory().items() if key.startswith("pull/pull/"))
    finally:
        log.close()


def _free_port(kind: str) -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM if kind == "tcp" else socket.SOCK_DGRAM) as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-counting-") as scratch:
        found = asyncio.run(play(asked.kills, asked.seed, Path(scratch) / "data"))
    print(f"seed {found.seed}, {found.kills} kills, refused {dict(found.refused)}, replays {dict(found.replayed)}")
    for stream, counted in found.totals.items():
        print(f"  {stream:10} {counted}")
    for line in found.wrong:
        print(f"WRONG: {line}")
    return 1 if found.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
