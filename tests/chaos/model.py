"""Plays subscribers against a model: random filters, transports, disconnects, kills of the server and rebuilds.

    python -m tests.chaos.model --rounds 1000 --seed 1

At each position that a client gets, its copy must equal the view's rows at that position under its filter, which the
model works out in plain Python. Positions must increase. Whatever is missing, doubled, half or out of order is found.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pyarrow as pa

from penstock.change import DELETE, OP, UPSERT, Column
from penstock.config import Folder
from penstock.log.builds import BatchMeta, Build, FlowState
from penstock.log.log import Append, StreamSpec
from penstock.log.opening import open_log
from penstock.position import Position
from tests.chaos.slow_readers import _free_port

APP = Path(__file__).with_name("model_app.py")
SCHEMA = pa.schema([("k", pa.int64()), ("n", pa.int64()), ("g", pa.string())])
READY_S = 60.0
Row = dict[str, Any]
Rows = dict[int, Row]

WHERES: list[tuple[str | None, Callable[[Row], bool]]] = [
    (None, lambda row: True),
    ("n > 20", lambda row: row["n"] > 20),
    ("g = 'a'", lambda row: row["g"] == "a"),
    ("n % 3 = 0 OR g IS NULL", lambda row: row["n"] % 3 == 0 or row["g"] is None),
    ("g IN ('a', 'b') AND NOT n BETWEEN 10 AND 30", lambda row: row["g"] in ("a", "b") and not 10 <= row["n"] <= 30),
    ("k < 4", lambda row: row["k"] < 4),
]
ORDERS: list[tuple[str, Callable[[Row], Any]]] = [
    ("-n", lambda row: (-row["n"], row["k"])),
    ("n,-k", lambda row: (row["n"], -row["k"])),
    ("k", lambda row: row["k"]),
]
LIMITS: list[int | None] = [None, 0, 1, 3, 7]


@dataclass(frozen=True)
class Question:
    """What a client asks, and what the answer must be."""

    where: int
    order: int
    limit: int | None

    @property
    def fields(self) -> dict[str, Any]:
        where = WHERES[self.where][0]
        return {"order_by": ORDERS[self.order][0], "limit": self.limit} | ({"where": where} if where else {})

    @property
    def parameters(self) -> dict[str, str]:
        return {name: "null" if value is None else str(value) for name, value in self.fields.items()}

    def answer(self, rows: Rows) -> Rows:
        passing = sorted(filter(WHERES[self.where][1], rows.values()), key=ORDERS[self.order][1])
        return {row["k"]: row for row in passing[: self.limit]}


@dataclass
class Findings:
    done: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


class World:
    """Writes the changelog as flows would, and remembers the rows at each offset of each build."""

    def __init__(self, folder: Folder, rng: random.Random) -> None:
        folder.root.mkdir(parents=True, exist_ok=True)
        self.log, self.rng = open_log(folder.flows_log, app="model"), rng
        self.states: dict[tuple[str, int], Rows] = {}
        self.rows: Rows = {}
        self.batches = self.builds = self.offset = 0
        self.rebuild()

    def rebuild(self) -> None:
        """A new build with other rows, served at once."""
        self.builds += 1
        epoch = f"e{self.builds}"
        changelog = SCHEMA.append(pa.field(OP, pa.int8()))
        self.stream = self.log.create(StreamSpec("things", changelog, counts="commits", compact_by=("k",), epoch=epoch))
        columns = (Column("k", "bigint"), Column("n", "bigint"), Column("g", "string"))
        build = Build(epoch=epoch, fingerprint="f", kind="view", columns=columns, proof="exact", started_us=0)
        self.rows, self.offset = {}, 0
        self.states[epoch, 0] = {}
        self.commit()
        told = {
            "build/things": msgspec.to_builtins(build),
            "flow/things": msgspec.to_builtins(FlowState(state="running")),
        }
        self.log.append([], told | {"live/things": epoch})

    def commit(self) -> None:
        """One batch: some rows come or change, some go, and sometimes nothing happens."""
        chosen = self.rng.sample(range(10), self.rng.randint(0, 5))
        gone = [k for k in chosen if k in self.rows and self.rng.random() < 0.4]
        new = [
            {"k": k, "n": self.rng.randrange(50), "g": self.rng.choice("abc") if self.rng.random() < 0.9 else None}
            for k in chosen
            if k not in gone
        ]
        self.rows = {k: row for k, row in self.rows.items() if k not in gone} | {row["k"]: row for row in new}
        written = [row | {OP: UPSERT} for row in new] + [{"k": k, OP: DELETE} for k in gone]
        batch = pa.RecordBatch.from_pylist(written, schema=self.stream.schema)
        self.batches += 1
        meta = msgspec.to_builtins(BatchMeta(batch=self.batches, start={}, end={}))
        self.log.append([Append(self.stream, batch, meta=meta)])
        self.offset += 1
        self.states[self.stream.epoch, self.offset] = self.rows

    @property
    def end(self) -> tuple[str, int]:
        return self.stream.epoch, self.offset


class Client:
    """A copy of what it asked for, kept over whatever transport comes, and checked at every position."""

    def __init__(self, world: World, question: Question, found: Findings) -> None:
        self.world, self.question, self.found = world, question, found
        self.rows: Rows = {}
        self.token: str | None = None
        self.at: tuple[str, int] | None = None
        self._parts: list[Row] = []

    def ask_else(self, question: Question) -> None:
        """Another filter: what it holds is worth nothing."""
        self.question, self.token, self.at, self.rows = question, None, None, {}
        self.broken()

    def broken(self) -> None:
        """Parts of a snapshot are worth nothing once the connection is gone."""
        self._parts = []

    def take(self, message: dict[str, Any]) -> None:
        kind = message["type"]
        self.found.done[kind] += 1
        if kind == "snapshot":
            self._parts += message["rows"]
            if message.get("part", 1) < message.get("parts", 1):
                return
            self.rows, self._parts, self.at = {row["k"]: row for row in self._parts}, [], None
        elif kind == "changes":
            for key in message["deletes"]:
                if self.rows.pop(key["k"], None) is None:
                    self.found.wrong.append(f"a delete of what was never shown: {key} under {self.question}")
            self.rows |= {row["k"]: row for row in message["upserts"]}
        elif kind == "reset":
            self.at = None
            return
        elif kind != "position":
            self.found.wrong.append(f"unexpected: {message}")
            return
        self._check(message["position"])

    def _check(self, token: str) -> None:
        position = Position.parse(token, "view", "things")
        at = position.epoch.partition(".")[0], position.offsets[0]
        if self.at is not None and (at[0] != self.at[0] or at[1] <= self.at[1]):
            self.found.wrong.append(f"{at} came after {self.at}")
        self.at, self.token = at, token
        wanted = self.question.answer(self.world.states[at])
        if self.rows != wanted:
            self.found.wrong.append(f"at {at} under {self.question}: {self.rows} instead of {wanted}")


class Edge:
    """`penstock edge` as a process that can be killed."""

    def __init__(self, folder: Folder) -> None:
        self.folder, self.port = folder, _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, http: aiohttp.ClientSession) -> None:
        command = [sys.executable, "-P", "-m", "penstock.cli.main", "edge", str(APP), "--port", str(self.port)]
        with self.folder.root.with_suffix(".out").open("ab") as out:
            self._process = await asyncio.create_subprocess_exec(
                *command, "--data", str(self.folder.root), stdout=out, stderr=out, env=os.environ
            )
        async with asyncio.timeout(READY_S):
            while True:
                with suppress(aiohttp.ClientError):
                    async with http.get(f"{self.url}/views/things") as reply:
                        if reply.status == 200:
                            return
                ended = self._process.returncode
                assert ended is None, self.folder.root.with_suffix(".out").read_text()[-3000:]
                await asyncio.sleep(0.02)

    async def kill(self, number: int = signal.SIGKILL) -> None:
        assert self._process is not None
        with suppress(ProcessLookupError):
            self._process.send_signal(number)
        await self._process.wait()


# The transports


Until = Callable[[], bool]


async def by_socket(http: aiohttp.ClientSession, url: str, client: Client, enough: Until) -> None:
    compress = client.world.rng.choice([0, 15])
    async with http.ws_connect(f"{url}/views/things/socket", compress=compress) as ws:
        await ws.send_json({"type": "subscribe", "id": "s", "since": client.token, **client.question.fields})
        if client.world.rng.random() < 0.2:
            await ws.send_json({"type": "pace", "id": "s", "per_s": 20})
        while not enough():
            message = await ws.receive()
            if message.type != aiohttp.WSMsgType.TEXT:
                return
            client.take(json.loads(message.data))


async def by_events(http: aiohttp.ClientSession, url: str, client: Client, enough: Until) -> None:
    headers = {"Last-Event-ID": client.token} if client.token else {}
    async with http.get(f"{url}/views/things/events", params=client.question.parameters, headers=headers) as reply:
        event: dict[str, str] = {}
        while not enough() and (line := (await reply.content.readline()).decode()):
            if line == "\n":
                if "data" in event:
                    client.take(json.loads(event["data"]))
                elif "id" in event:
                    client.take({"type": "position", "position": event["id"]})
                event = {}
            elif not line.startswith(":"):
                name, _, value = line.rstrip("\n").partition(": ")
                event[name] = value


async def by_polling(http: aiohttp.ClientSession, url: str, client: Client, enough: Until) -> None:
    if client.token is None:
        async with http.get(f"{url}/views/things", params=client.question.parameters) as reply:
            client.take({"type": "snapshot", **await reply.json()})
    while not enough():
        params = {"since": str(client.token), "wait": "0.2"} | client.question.parameters
        async with http.get(f"{url}/views/things", params=params) as reply:
            if reply.status == 200:
                for message in (await reply.json())["messages"]:
                    client.take(message)


TRANSPORTS = {"socket": by_socket, "events": by_events, "polling": by_polling}


class Game:
    """The rounds."""

    def __init__(self, seed: int, folder: Folder) -> None:
        self.rng = random.Random(seed)
        self.found = Findings()
        self.world, self.edge = World(folder, self.rng), Edge(folder)
        self.clients = [Client(self.world, self._question(), self.found) for _ in range(4)]

    def _question(self) -> Question:
        return Question(self.rng.randrange(len(WHERES)), self.rng.randrange(len(ORDERS)), self.rng.choice(LIMITS))

    async def play(self, rounds: int) -> Findings:
        timeout = aiohttp.ClientTimeout(total=20)
        async with aiohttp.ClientSession(timeout=timeout) as http:
            await self.edge.start(http)
            try:
                for _ in range(rounds):
                    await self._round(http)
                    if self.found.wrong:
                        break
                for client in self.clients:
                    await self._follow(http, client, "polling", lambda client=client: client.at == self.world.end, 30.0)
                    if client.at != self.world.end:
                        self.found.wrong.append(f"{client.at} is not the end, {self.world.end}")
            finally:
                await self.edge.kill()
                self.world.log.close()
        return self.found

    async def _round(self, http: aiohttp.ClientSession) -> None:
        """Batches before and during a read that breaks off somewhere; now and then something worse."""
        dice, client = self.rng.random(), self.rng.choice(self.clients)
        if dice < 0.02:
            self.found.done["kills"] += 1
            await self.edge.kill()
            self._commit(self.rng.randint(0, 3))
            await self.edge.start(http)
        elif dice < 0.03:
            self.found.done["rebuilds"] += 1
            await asyncio.to_thread(self.world.rebuild)
        elif dice < 0.1:
            client.ask_else(self._question())
        self._commit(self.rng.randint(0, 3))
        goal = self.found.done.total() + self.rng.randint(1, 5)
        enough = lambda: self.found.done.total() >= goal or client.at == self.world.end  # noqa: E731
        transport, seconds = self.rng.choice(list(TRANSPORTS)), self.rng.choice([0.05, 0.2, 0.5])
        reading = asyncio.create_task(self._follow(http, client, transport, enough, seconds))
        await asyncio.sleep(self.rng.random() * 0.02)
        await asyncio.to_thread(self._commit, self.rng.randint(0, 2))
        await reading

    def _commit(self, batches: int) -> None:
        for _ in range(batches):
            self.world.commit()

    async def _follow(
        self, http: aiohttp.ClientSession, client: Client, transport: str, enough: Until, seconds: float
    ) -> None:
        """Read until it is enough, or the connection breaks after so many seconds."""
        self.found.done[transport] += 1
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await TRANSPORTS[transport](http, self.edge.url, client, enough)
        client.broken()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as data:
        found = asyncio.run(Game(asked.seed, Folder(Path(data) / "data")).play(asked.rounds))
    print(f"seed {asked.seed}, {asked.rounds} rounds: {dict(found.done)}")
    print("wrong:", found.wrong or "nothing")
    raise SystemExit(1 if found.wrong else 0)


if __name__ == "__main__":
    main()
