"""Kills a running app at seeded random moments under load and checks what must hold whatever dies.

    python -m tests.chaos.harness --kills 100 --seed 1

Every acknowledged event is in the log exactly once; a subscriber that resumes sees no gap, no duplicate and no half
batch; `penstock verify` finds no difference.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from penstock.config import Folder
from penstock.log.opening import open_reader
from penstock.position import Position
from tests.running import Running

READY_S = 600.0
BATCH = 20
PAUSE_S = 0.1
VICTIMS = ("edge", "flows", "edge", "jvm", "edge", "edge", "supervisor", "edge", "frozen", "edge")
"""The order of the first ten; beyond them the seed chooses."""

Rows = dict[str, Any]


@dataclass(frozen=True)
class Piece:
    """What is played: an app with a stream `steps`, the views that are followed, and what must hold of each copy."""

    app: Path
    keys: Mapping[str, Sequence[str]]
    """The key columns of each view."""
    wrong: Callable[[str, Rows], str | None]
    """What is wrong with a copy of a view; asked after every message."""
    victims: Sequence[str] = VICTIMS
    meanwhile: Callable[[random.Random, Path], None] = lambda chance, data: None
    """Called with the data folder right after a kill."""


def _half_a_batch(view: str, rows: Rows) -> str | None:
    if view == "balance" and rows and sum(row["x"] for row in rows.values()) != 1000:
        return f"half a batch: {list(rows.values())}"
    return None


STEPS = Piece(
    Path(__file__).with_name("app.py"),
    {"balance": ["side"], "kinds": ["kind"], "windows": ["window", "kind"]},
    _half_a_batch,
)


@dataclass
class Findings:
    """What was seen while things died."""

    sent: int = 0
    acked: set[int] = field(default_factory=set)
    kills: list[str] = field(default_factory=list)
    batches: int = 0
    resets: int = 0
    resumes: int = 0
    wrong: list[str] = field(default_factory=list)


async def send(
    session: aiohttp.ClientSession, app: Running, found: Findings, chance: random.Random, end: asyncio.Event
) -> None:
    """Post batches until told to end; each is sent again until it is acknowledged."""
    while not end.is_set():
        first = found.sent
        found.sent += BATCH
        now = int(time.time() * 1000)
        lines = []
        for n in range(first, first + BATCH):
            back = chance.choice([0] * 18 + [5_000, 90_000])
            lines.append(json.dumps({"n": n, "at": now - back, "kind": "abc"[n % 3]}))
        while not await _acked(session, app, "\n".join(lines)):  # noqa: ASYNC110 it waits for a server, not a task
            await asyncio.sleep(0.2)
        found.acked |= set(range(first, first + BATCH))
        await asyncio.sleep(PAUSE_S)


async def _acked(session: aiohttp.ClientSession, app: Running, body: str) -> bool:
    try:
        headers = {"Content-Type": "application/x-ndjson"}
        async with session.post(f"{app.url}/streams/steps", data=body, headers=headers) as reply:
            return reply.status == 200
    except (aiohttp.ClientError, TimeoutError, OSError):
        return False


async def subscribe(
    session: aiohttp.ClientSession,
    app: Running,
    found: Findings,
    piece: Piece,
    view: str,
    rows: Rows,
    end: asyncio.Event,
) -> None:
    """Follow a view over WebSocket, resume after each cut, and check every message."""
    last: Position | None = None
    while not end.is_set():
        try:
            async with session.ws_connect(f"{app.url}/socket", heartbeat=20) as socket:
                await socket.send_json(
                    {
                        "type": "subscribe",
                        "id": "s",
                        "view": view,
                        "limit": None,
                        "since": last.token() if last else None,
                    }
                )
                found.resumes += last is not None
                async for message in socket:
                    if message.type != aiohttp.WSMsgType.TEXT:
                        break
                    last = take(json.loads(message.data), rows, last, found, piece, view)
                    if end.is_set():
                        return
        except (aiohttp.ClientError, TimeoutError, OSError):
            pass
        await asyncio.sleep(0.2)


def take(
    message: dict[str, Any], rows: Rows, last: Position | None, found: Findings, piece: Piece, view: str
) -> Position | None:
    """Apply one message and note what is wrong with it."""
    kind = message["type"]
    if kind == "reset":
        found.resets += 1
        rows.clear()
        return None
    if kind == "error":
        found.wrong.append(f"{view}: {message}")
        return last
    position = Position.parse(message["position"])
    if last is not None and (position.epoch != last.epoch or position.offsets <= last.offsets):
        found.wrong.append(f"{view}: {kind} at {position} after {last}")
    if kind == "snapshot":
        rows.clear()
        rows.update({_key(row, piece, view): row for row in message["rows"]})
    elif kind == "changes":
        found.batches += 1
        rows.update({_key(row, piece, view): row for row in message["upserts"]})
        for key in message["deletes"]:
            rows.pop(_key(key, piece, view), None)
    if (wrong := piece.wrong(view, rows)) is not None:
        found.wrong.append(wrong)
    return position


def _key(row: Rows, piece: Piece, view: str) -> str:
    return json.dumps([row[name] for name in piece.keys[view]])


async def kill(app: Running, victim: str, found: Findings) -> None:
    """Hit one process and wait until everything is ready again."""
    deadline = time.monotonic() + READY_S
    if victim in app.own:
        found.kills.append(victim)
        print(f"kill {len(found.kills)}: {victim}", flush=True)
        await asyncio.to_thread(app.own[victim])
        return
    while (pid := app.pid(victim)) is None:
        assert time.monotonic() < deadline, f"there is no {victim} to kill"
        await asyncio.sleep(0.1)
    found.kills.append(victim)
    print(f"kill {len(found.kills)}: {victim} ({pid})", flush=True)
    os.kill(pid, signal.SIGSTOP if victim == "frozen" else signal.SIGKILL)
    if victim == "supervisor":
        assert app.process is not None
        app.process.wait()
        await asyncio.to_thread(app.start)


async def healthy(session: aiohttp.ClientSession, app: Running, since: float) -> None:
    """Wait until the flows have absorbed something that was sent after `since`."""
    deadline = time.monotonic() + READY_S
    n = -int(since * 1000)
    while time.monotonic() < deadline:
        try:
            probe = {"n": n, "at": int(time.time() * 1000), "kind": "probe"}
            async with session.post(f"{app.url}/streams/steps?ack=applied&wait=10", json=probe) as reply:
                if reply.status == 200 and (await reply.json())["level"] == "applied":
                    return
        except (aiohttp.ClientError, TimeoutError, OSError):
            pass
        await asyncio.sleep(0.3)
    raise AssertionError(f"not healthy within {READY_S} s")


async def play(
    kills: int, seed: int, data: Path, piece: Piece = STEPS, app: Running | None = None, found: Findings | None = None
) -> Findings:
    """The whole piece: load, subscribers, kills, and then the reckoning."""
    chance, found, end = random.Random(seed), found or Findings(), asyncio.Event()
    app = app or Running(piece.app, data)
    await asyncio.to_thread(app.start)
    views: dict[str, Rows] = {view: {} for view in piece.keys}
    try:
        await _under_load(app, piece, kills, chance, found, end, views)
    finally:
        code = await asyncio.to_thread(app.stop)
    if code != 0:
        found.wrong.append(f"run ended with {code}")
    return found


async def _under_load(
    app: Running,
    piece: Piece,
    kills: int,
    chance: random.Random,
    found: Findings,
    end: asyncio.Event,
    views: dict[str, Rows],
) -> None:
    timeout = aiohttp.ClientTimeout(total=20)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        tasks = [asyncio.create_task(send(session, app, found, chance, end))]
        done = asyncio.Event()
        tasks += [
            asyncio.create_task(subscribe(session, app, found, piece, v, rows, done)) for v, rows in views.items()
        ]
        for number in range(kills):
            await asyncio.sleep(chance.uniform(0.3, 2.5))
            victim = piece.victims[number] if number < len(piece.victims) else chance.choice(piece.victims)
            await kill(app, victim, found)
            piece.meanwhile(chance, app.data)
            await healthy(session, app, time.time())
        end.set()
        await tasks[0]
        await healthy(session, app, time.time())
        await settled(session, app, piece, views, found)
        done.set()
        for task in tasks[1:]:
            task.cancel()


async def settled(
    session: aiohttp.ClientSession, app: Running, piece: Piece, views: dict[str, Rows], found: Findings
) -> None:
    """Each subscriber ends with exactly what the view holds."""
    for view, rows in views.items():
        deadline = time.monotonic() + 20
        while True:
            async with session.get(f"{app.url}/views/{view}?limit=null") as reply:
                held = {_key(row, piece, view): row for row in (await reply.json())["rows"]}
            if held == rows:
                break
            if time.monotonic() > deadline:
                found.wrong.append(f"subscriber of {view} differs: {len(rows)} rows, view {len(held)}")
                break
            await asyncio.sleep(0.2)


def reckon(found: Findings, data: Path, piece: Piece = STEPS, log_at: str | None = None) -> None:
    """What the log and `verify` say afterwards."""
    folder = Folder(data, None if log_at is None else f"{log_at}/chaos")
    log = open_reader(folder.edge_log)
    stream = log.find("steps")
    assert stream is not None
    held: list[int] = []
    for partition in range(stream.partitions):
        for block in log.read(stream, partition, 0, columns=["n"]):
            held += block.batch.column("n").to_pylist()
    log.close()
    if len(held) != len(set(held)):
        found.wrong.append(f"{len(held) - len(set(held))} events are in the log twice")
    if lost := found.acked - set(held):
        found.wrong.append(f"{len(lost)} acknowledged events are lost: {sorted(lost)[:10]}")
    command = [sys.executable, "-m", "penstock.cli.main", "verify", str(piece.app), "--data", str(data)]
    command += [] if log_at is None else ["--log", log_at]
    done = subprocess.run(command, capture_output=True, text=True)
    print(done.stdout)
    if done.returncode != 0:
        found.wrong.append(f"verify ended with {done.returncode}: {done.stdout[-3000:]} {done.stderr[-1000:]}")


def main(arguments: list[str] | None = None, report: Callable[[str], None] = print, piece: Piece = STEPS) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    scratch = Path(tempfile.mkdtemp(prefix="penstock-chaos-"))
    began = time.monotonic()
    found = asyncio.run(play(options.kills, options.seed, scratch / "data", piece))
    reckon(found, scratch / "data", piece)
    if not found.wrong:
        shutil.rmtree(scratch)
    report(
        f"seed {options.seed}: {len(found.kills)} kills in {time.monotonic() - began:.0f} s, {len(found.acked)} events "
        f"acknowledged, {found.batches} batches seen, {found.resumes} resumes, {found.resets} resets"
    )
    for line in found.wrong:
        report(f"WRONG: {line} (kept: {scratch})")
    return 1 if found.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
