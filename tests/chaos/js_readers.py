"""Compares the JavaScript client's copies with the server's rows, batch by batch, while all between them breaks.

    python -m tests.chaos.js_readers --rounds 200 --seed 1

A real edge serves a changelog that this program writes; a Node program follows it through a proxy with live views
under several filters and with a stream. Seeded moments: the connection is cut within a byte, stalls or goes half open,
the edge is killed, the reader is killed and starts with what it knew, changes its transport, changes its filters, and
the view is built anew.

1. Every batch that the reader reports leaves it with exactly the rows of that position under its filter.
2. Positions of one build strictly increase, except where a killed reader begins with what it had written down.
3. After every round all copies reach the present rows.
4. The events of the stream come once each and in order.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import shutil
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from penstock.position import Position
from tests.built_client import built_client
from tests.chaos.proxy import FAULTS, Proxy
from tests.pretended import ROOT, Pretended
from tests.unit.views.fake_flows import topic

CHILD = ROOT / "client" / "scripts" / "copy-child.mjs"
PATIENCE_S = 40.0
TOPICS = [f"t{n}" for n in range(24)]
TRANSPORTS = (["websocket", "events", "poll"], ["events", "poll"], ["poll"])
ACTS = (
    "cut_reply",
    "child",
    "edge",
    "change",
    "transport",
    "rebuild",
    "half_open",
    *FAULTS,
    "cut_reply",
    "change",
    "edge",
)
"""The order of the first rounds; beyond them the seed chooses."""

Rows = dict[str, dict[str, Any]]
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Question:
    """What the reader asks for, and the same in Python."""

    asked: Mapping[str, Any]
    passes: Callable[[dict[str, Any]], bool] = lambda row: True
    limit: int | None = None

    def answer(self, rows: Rows) -> Rows:
        kept = [row for row in rows.values() if self.passes(row)]
        kept.sort(key=lambda row: (-row["rsvps"], row["topic"]))
        return {row["topic"]: row for row in kept[: self.limit]}


QUESTIONS = (
    Question({"limit": None}),
    Question({"where": "rsvps > 50", "limit": None}, lambda row: row["rsvps"] > 50),
    Question(
        {"where": "topic LIKE 't1%' AND rsvps < 80", "limit": None},
        lambda r: r["topic"][:2] == "t1" and r["rsvps"] < 80,
    ),
    Question({"orderBy": "-rsvps", "limit": 5}, limit=5),
)


@dataclass
class Findings:
    """What was seen."""

    rounds: list[str] = field(default_factory=list)
    batches: int = 0
    snapshots: int = 0
    resets: int = 0
    recalled: int = 0
    events: int = 0
    wrong: list[str] = field(default_factory=list)


class Truth:
    """Writes the view, and remembers its rows at every offset of every build."""

    def __init__(self, edge: Pretended, random: Random) -> None:
        self._edge, self._random = edge, random
        self.rows: Rows = {}
        self.past: dict[str, list[Rows]] = {}
        self.sent = 0
        self.build()

    def build(self) -> None:
        """A new build begins with the rows of the old one, in one batch."""
        epoch = self._random.randbytes(6).hex()
        self._edge.build(epoch=epoch)
        self.past[epoch] = [{}]
        self._epoch = epoch
        if self.rows:
            self._commit(list(self.rows.values()), [])

    def step(self) -> None:
        names = self._random.sample(TOPICS, self._random.randint(1, 6))
        cut = self._random.randrange(len(names))
        deletes = [self.rows[name] for name in names[:cut] if name in self.rows]
        self._commit([topic(name, self._random.randint(1, 100)) for name in names[cut:]], deletes)

    def _commit(self, upserts: Sequence[Mapping[str, Any]], deletes: Sequence[Mapping[str, Any]]) -> None:
        gone = {row["topic"] for row in deletes}
        rows = {name: row for name, row in self.rows.items() if name not in gone}
        self.rows = rows | {row["topic"]: dict(row) for row in upserts}
        past = self.past[self._epoch]
        past.append(self.rows)
        offset = self._edge.commit(upserts, deletes)
        assert offset == len(past) - 1, (offset, len(past))

    def at(self, position: Position) -> Rows:
        return self.past[position.epoch.partition(".")[0]][position.offsets[0]]


class Reader:
    """The Node program, one life after the other."""

    def __init__(self, url: str, folder: Path, truth: Truth, found: Findings) -> None:
        self._url, self._folder, self._truth, self._found = url, folder, truth, found
        self.questions: dict[str, Question] = {}
        self.rows: dict[str, Rows] = {}
        self.events: list[int] = []
        self._transports: Sequence[str] = TRANSPORTS[0]
        self._at: dict[str, Position] = {}
        self._after: str | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None

    async def start(self, transports: Sequence[str] | None = None) -> None:
        self._transports = transports or self._transports
        self._process = await asyncio.create_subprocess_exec(
            "node",
            "--experimental-websocket",
            "--no-warnings",
            str(CHILD),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=16 * 1024**2,
        )
        self.rows, self._at = {}, {}
        self._reading = asyncio.create_task(self._read(self._process))
        self.tell({"do": "open", "url": self._url, "transports": self._transports, "folder": str(self._folder)})
        for id, question in self.questions.items():
            self.tell({"do": "live", "id": id, "view": "topics", "question": question.asked})
        self.tell({"do": "stream", "id": "events", "stream": "rsvps", "question": {"since": self._after or "start"}})

    def tell(self, message: Mapping[str, Any]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")

    async def stop(self, kill: bool) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        if kill:
            self._process.kill()
        else:
            self._process.stdin.close()
        await self._process.wait()
        assert self._reading is not None
        await self._reading

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            with suppress(json.JSONDecodeError):  # a killed one may leave half a line
                self._take(json.loads(line))

    def _take(self, said: dict[str, Any]) -> None:
        if "error" in said:
            self._found.wrong.append(f"{said['id']} failed: {said['error']}")
        elif "events" in said:
            self.events += [event["n"] for event in said["events"]]
            self._after = said["position"]
            self._found.events += len(said["events"])
        elif "rows" in said:
            self._compare(said)

    def _compare(self, said: dict[str, Any]) -> None:
        id, position = said["id"], Position.parse(said["position"])
        rows = {row["topic"]: row for row in said["rows"]}
        before = self._at.get(id)
        self._found.batches += 1
        self._found.snapshots += said["snapshot"]
        self._found.resets += said["reset"] is not None
        self._found.recalled += said["snapshot"] and before is None and id not in self.rows
        expected = self.questions[id].answer(self._truth.at(position))
        if rows != expected:
            self._found.wrong.append(f"{id} at {position.offsets}: {_told(rows)} is not {_told(expected)}")
        if before and before.epoch == position.epoch and before.offsets >= position.offsets and not said["snapshot"]:
            self._found.wrong.append(f"{id} went from {before.offsets} to {position.offsets}")
        self.rows[id], self._at[id] = rows, position


class Play:
    """One play of many rounds."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = Random(seed)
        self.found = Findings()
        self.edge = Pretended(folder / "edge")
        self._folder = folder

    async def run(self, rounds: int) -> Findings:
        self.truth = Truth(self.edge, self.random)
        for view in ("countries", "elsewhere"):
            self.edge.build(view, key=("topic",) if view == "countries" else ("topic", "group"))
        for _ in range(3):
            self.truth.step()
        await asyncio.to_thread(self.edge.start)
        try:
            async with Proxy(self.edge.port, self.random) as proxy:
                self.proxy = proxy
                self.reader = Reader(proxy.url, self._folder / "known", self.truth, self.found)
                self.reader.questions = {f"q{n}": question for n, question in enumerate(QUESTIONS)}
                await self.reader.start()
                await self._settled("the start")
                for number in range(rounds):
                    act = ACTS[number] if number < len(ACTS) else self.random.choice(ACTS)
                    await self._round(number, act)
                    if self.found.wrong:
                        break
                await self.reader.stop(kill=False)
        finally:
            self.edge.close()
        return self.found

    async def _round(self, number: int, act: str) -> None:
        self.found.rounds.append(act)
        _log.info("round %d: %s; %d batches so far", number, act, self.found.batches)
        busy = asyncio.create_task(self._busy())
        await asyncio.sleep(self.random.uniform(0.0, 0.2))
        await self._act(act)
        await busy
        await self._settled(f"round {number}, {act}")

    async def _act(self, act: str) -> None:
        if act in FAULTS:
            self.proxy.begin(act)  # type: ignore[arg-type]
            await asyncio.sleep(self.random.uniform(0.05, 0.5))
            self.proxy.end()
        elif act == "edge":
            await asyncio.to_thread(self.edge.kill)
            await asyncio.sleep(self.random.uniform(0.0, 0.3))
            await asyncio.to_thread(self.edge.start)
        elif act in ("child", "transport"):
            await self.reader.stop(kill=act == "child")
            await self.reader.start(self.random.choice(TRANSPORTS) if act == "transport" else None)
        elif act == "rebuild":
            self.truth.build()
        elif act == "change":
            id = self.random.choice(sorted(self.reader.questions))
            question = self.random.choice(QUESTIONS)
            await self._change(id, question)

    async def _change(self, id: str, question: Question) -> None:
        """What comes before the child's word belongs to the old question."""
        reader, changed = self.reader, asyncio.Event()
        take = reader._take

        def taking(said: dict[str, Any]) -> None:
            if said.get("id") == id and "changed" in said:
                reader.questions[id] = question
                reader._at.pop(id, None)
                changed.set()
            else:
                take(said)

        reader._take = taking  # type: ignore[method-assign]
        reader.tell({"do": "change", "id": id, "question": question.asked})
        await asyncio.wait_for(changed.wait(), 20)
        reader._take = take  # type: ignore[method-assign]

    async def _busy(self) -> None:
        for _ in range(self.random.randint(2, 12)):
            self.truth.step()
            with suppress(OSError):
                await asyncio.to_thread(self._post)
            await asyncio.sleep(self.random.uniform(0.0, 0.08))

    def _post(self) -> None:
        """An event; whether it was taken before the edge died is for the stream to say."""
        self.truth.sent += 1
        body = json.dumps({"topic": "t0", "n": self.truth.sent}).encode()
        headers = {"Content-Type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(f"{self.edge.url}/streams/rsvps", body, headers), timeout=5):
            pass

    async def _settled(self, when: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        stored: list[int] = []
        while time.monotonic() < deadline and not self.found.wrong:
            with suppress(OSError):
                stored = await asyncio.to_thread(self._stored)
            expected = {id: question.answer(self.truth.rows) for id, question in self.reader.questions.items()}
            if self.reader.rows == expected and self.reader.events == stored:
                return
            await asyncio.sleep(0.03)
        late = [id for id, q in self.reader.questions.items() if self.reader.rows.get(id) != q.answer(self.truth.rows)]
        self.found.wrong.append(f"{when}: not level: {late}; events {self.reader.events[-5:]} of {stored[-5:]}")

    def _stored(self) -> list[int]:
        return [event["n"] for event in self.edge.read("/streams/rsvps?limit=10000&select=n")["events"]]


def _told(rows: Rows) -> str:
    return " ".join(f"{name}:{row['rsvps']}" for name, row in sorted(rows.items()))


async def play(rounds: int, seed: int, folder: Path) -> Findings:
    return await Play(folder, seed).run(rounds)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(words)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    built_client()
    folder = Path(tempfile.mkdtemp(prefix="penstock-reader-"))
    found = asyncio.run(play(options.rounds, options.seed, folder))
    told = f"{len(found.rounds)} rounds, {found.batches} batches compared, {found.snapshots} snapshots"
    told += f", {found.resets} resets, {found.events} events"
    print(f"seed {options.seed}: {told}; wrong: {found.wrong or 'nothing'}")
    if not found.wrong:
        shutil.rmtree(folder)
    return 1 if found.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
