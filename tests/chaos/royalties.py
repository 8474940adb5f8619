"""Kills a processor and a payment service at seeded moments, also during calls; then counts every payment.

    python -m tests.chaos.royalties --kills 100 --seed 1
    python -m tests.chaos.royalties --kills 100 --seed 1 --postgres    (work in a database; take-overs with SIGSTOP)
    python -m tests.chaos.royalties --kills 100 --seed 1 --honest      (the service honours Idempotency-Key itself)
    python -m tests.chaos.royalties --kills 20 --seed 1 --spark        (the real app computes the royalties)

The payment service does not de-duplicate, and dies by itself too: what makes it exact is `confirm`, with the term by
which the service knows a payer that was replaced. While this goes on, royalties are added in batches and the view is
rebuilt now and then, so that the processor meets a `reset` and a snapshot. In the end the ledger must hold each royalty
once, and nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import socket
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pyarrow as pa

from penstock.change import OP, UPSERT, Column
from penstock.config import Folder
from penstock.log.builds import BatchMeta, Build
from penstock.log.log import Append, Stream, StreamSpec
from penstock.log.opening import open_log
from penstock.schema import simple_type
from tests import postgres_server
from tests.running import Running

EXAMPLE = Path(__file__).parents[2] / "examples" / "royalties"
RATE = Decimal("0.0035")
PATIENCE_S = 240.0
DIE = 0.04
WORK_MS = 8.0
AHEAD = 12
"""So many royalties wait to be paid."""
REBUILT = 0.1
FAULTS = ("processor", "payments", "both")
_WINDOW = pa.struct([("start", pa.timestamp("us", "UTC")), ("end", pa.timestamp("us", "UTC"))])
_ROYALTIES = pa.schema(
    [("window", _WINDOW), ("song", pa.string()), ("plays", pa.int64()), ("amount", pa.decimal128(18, 4))]
)
_SHORT_DAY = timedelta(seconds=10)
_FIRST_DAY = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Findings:
    """What was done, what should have been paid, and what was wrong."""

    royalties: dict[tuple[str, str], str] = field(default_factory=dict)
    """Amounts by account and reason."""
    faults: Counter[str] = field(default_factory=Counter)
    deaths: int = 0
    rebuilds: int = 0
    in_calls: int = 0
    """Kills of the processor that left a call open."""
    charges: int = 0
    wrong: list[str] = field(default_factory=list)


class Child:
    """One process in all its lives."""

    def __init__(self, folder: Path, *words: object) -> None:
        self._folder, self._words = folder, [str(word) for word in words]
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        with (self._folder / f"{Path(self._words[0]).stem}.log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, *self._words, stdout=log, stderr=log, cwd=self._folder
            )

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.returncode is None

    def signal(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.returncode is None:
            with suppress(ProcessLookupError):
                self.process.send_signal(number)

    async def kill(self) -> None:
        if self.process is not None:
            self.signal(signal.SIGKILL)
            await self.process.wait()


class FakeRoyalties:
    """Writes the view's changelog as the flows process does: batches of final rows, and builds of the same rows."""

    def __init__(self, folder: Folder, random: Random, found: Findings) -> None:
        folder.root.mkdir(parents=True, exist_ok=True)
        self._log = open_log(folder.flows_log, app="royalties")
        self._random, self._found = random, found
        self._rows: list[dict[str, Any]] = []
        self._batch = self._epochs = 0
        self._stream = self._build()

    def _build(self) -> Stream:
        self._epochs += 1
        epoch = f"epoch{self._epochs}"
        schema = _ROYALTIES.append(pa.field(OP, pa.int8()))
        spec = StreamSpec("royalties", schema, counts="commits", compact_by=("window", "song"), epoch=epoch)
        made = self._log.create(spec)
        columns = tuple(Column(field.name, simple_type(field.type)) for field in _ROYALTIES)
        build = Build(epoch=epoch, fingerprint="f", kind="view", columns=columns, proof="exact", started_us=0)
        self._log.append([], {"build/royalties": msgspec.to_builtins(build)})
        return made

    def serve(self) -> None:
        self._log.append([], {"live/royalties": self._stream.epoch, "flow/royalties": {"state": "running"}})

    def add(self) -> None:
        """One more day of a few songs."""
        day = _FIRST_DAY + timedelta(days=self._batch)
        window = {"start": day, "end": day + timedelta(days=1)}
        news = []
        for song in self._random.sample(range(50), self._random.randint(1, 4)):
            plays = self._random.randint(1, 10**6)
            news.append({"window": window, "song": f"song-{song}", "plays": plays, "amount": plays * RATE})
        self._commit(news)
        self._rows += news
        for row in news:
            start = f"{day:%Y-%m-%dT%H:%M:%S}.000Z"
            self._found.royalties[row["song"], f"{row['plays']} plays from {start}"] = f"{row['amount']:.4f}"

    def rebuild(self) -> None:
        """The same rows under a new epoch: whoever follows is told `reset`."""
        self._stream = self._build()
        self._commit(self._rows)
        self.serve()
        self._found.rebuilds += 1

    def _commit(self, rows: list[dict[str, Any]]) -> None:
        self._batch += 1
        batch = pa.RecordBatch.from_pylist([{**row, OP: UPSERT} for row in rows], schema=self._stream.schema)
        meta = BatchMeta(batch=self._batch, start={}, end={})
        (made,) = self._log.append([Append(self._stream, batch, meta=msgspec.to_builtins(meta))])
        assert not isinstance(made, Exception), made

    def finish(self) -> None:
        """Everything is final already."""

    def close(self) -> None:
        self._log.close()


class PlayedRoyalties:
    """Sends plays to the real app and adds up by itself what each song has earned in each of its short days."""

    def __init__(self, running: Running, random: Random, found: Findings) -> None:
        self._running, self._random, self._found = running, random, found
        self._days = self._plays = 0

    def add(self) -> None:
        """The plays of one more day; it is over when the next one is well under way."""
        day = _FIRST_DAY + self._days * _SHORT_DAY
        self._days += 1
        plays = []
        for song in self._random.sample(range(20), 3):
            heard = [self._random.randint(1, 15) for _ in range(self._random.randint(1, 3))]
            for listener, times in enumerate(heard):
                plays += [self._play(f"song-{song}", f"listener-{listener}", day) for _ in range(times)]
            counted = sum(min(times, 10) for times in heard)
            reason = f"{counted} plays from {day:%Y-%m-%dT%H:%M:%S}.000Z"
            self._found.royalties[f"song-{song}", reason] = f"{counted * RATE:.4f}"
        self._send(plays)

    def _play(self, song: str, listener: str, day: datetime) -> dict[str, Any]:
        self._plays += 1
        return {"play_id": str(self._plays), "song": song, "listener": listener, "at": int(day.timestamp() * 1000)}

    def _send(self, plays: list[dict[str, Any]]) -> None:
        reply = self._running.json("/streams/plays", plays)
        assert reply.get("accepted") == len(plays), reply

    def rebuild(self) -> None:
        """The real app rebuilds when its function changes, and it does not."""

    def finish(self) -> None:
        """A play that comes much later, so that all days before it are over."""
        self._send([self._play("the end", "nobody", _FIRST_DAY + (self._days + 10) * _SHORT_DAY)])


Royalties = FakeRoyalties | PlayedRoyalties


class Stage:
    """All processes of one play."""

    def __init__(self, folder: Path, seed: int, store: str, naive: bool, url: str, found: Findings) -> None:
        self.folder, self.found, self.random = folder, found, Random(seed)
        self.payments_port = _free_port()
        self.store = store
        self._url, self._seed, self._naive = url, seed, naive
        self._lives = 0
        self.paused: list[Child] = []
        self.payments = self._payments()
        self.processor = self._processor()

    def _payments(self) -> Child:
        self._lives += 1
        words = ["--port", self.payments_port, "--ledger", self.folder / "ledger.db", "--die", DIE, "--mortal"]
        words += ["--work-ms", WORK_MS, "--seed", self._seed * 1000 + self._lives]
        return Child(self.folder, EXAMPLE / "payments.py", *words, *["--naive"] * self._naive)

    def _processor(self) -> Child:
        words = ["--url", self._url, "--payments", f"http://127.0.0.1:{self.payments_port}", "--store", self.store]
        words += ["--settle-s", 0, "--lease-s", 1.0, "--standby"]
        return Child(self.folder, EXAMPLE / "pay.py", *words)

    async def start(self) -> None:
        await self.payments.start()
        await self.processor.start()

    async def tend(self) -> None:
        """Start the service again whenever it has died, by itself or not."""
        while True:
            await asyncio.sleep(0.01)
            if not self.payments.alive:
                self.found.deaths += 1
                self.payments = self._payments()
                await self.payments.start()

    async def strike(self, fault: str) -> None:
        """One kill."""
        self.found.faults[fault] += 1
        if fault in ("processor", "both"):
            await self.processor.kill()
            self.found.in_calls += self._open_call()
        if fault in ("payments", "both"):
            await self.payments.kill()
        if fault == "stopped":
            await self._take_over()
        elif fault in ("processor", "both"):
            await self.processor.start()

    async def _take_over(self) -> None:
        """Stop the owner in whatever it does, let another machine take over, and wake the old one up."""
        old = self.processor
        old.signal(signal.SIGSTOP)
        self.paused.append(old)
        self.processor = self._processor()
        await self.processor.start()
        charged = self.charged()
        with suppress(AssertionError):  # nothing may be left to pay
            await until(lambda: self.charged() > charged, "the new owner to pay", 8.0)
        old.signal(signal.SIGCONT)
        await asyncio.sleep(self.random.uniform(0.0, 0.3))
        await old.kill()

    def _open_call(self) -> bool:
        """Whether the work that was left behind has a call that nobody answered."""
        if "://" in self.store:
            import psycopg

            with psycopg.connect(self.store) as database:
                return bool(database.execute("SELECT 1 FROM penstock_calls WHERE state = 'open'").fetchall())
        if not Path(self.store).exists():
            return False
        with closing(sqlite3.connect(self.store, timeout=10)) as database:
            tables = database.execute("SELECT name FROM sqlite_master WHERE name = 'penstock_calls'").fetchall()
            return bool(tables and database.execute("SELECT 1 FROM penstock_calls WHERE state = 'open'").fetchall())

    def ledger(self) -> Counter[tuple[str, str, str]]:
        """Account, reason and amount of every charge."""
        path = self.folder / "ledger.db"
        if not path.exists():
            return Counter()
        with closing(sqlite3.connect(path, timeout=10)) as ledger:
            with suppress(sqlite3.OperationalError):
                return Counter(ledger.execute("SELECT account, reason, amount FROM charges").fetchall())
            return Counter()

    def charged(self) -> int:
        return self.ledger().total()

    def reckon(self) -> None:
        """Each royalty once, and nothing else."""
        ledger, found = self.ledger(), self.found
        due = {(account, reason, amount) for (account, reason), amount in found.royalties.items()}
        found.charges = ledger.total()
        twice = [charge for charge, count in ledger.items() if count > 1]
        for what, charges in (
            ("paid twice", twice),
            ("not paid", due - ledger.keys()),
            ("not due", ledger.keys() - due),
        ):
            if charges:
                found.wrong.append(f"{len(charges)} {what}: {sorted(charges)[:3]}")

    async def stop(self) -> None:
        for child in (self.processor, self.payments, *self.paused):
            child.signal(signal.SIGCONT)
            await child.kill()


async def play(
    kills: int,
    seed: int,
    folder: Path,
    postgres: bool = False,
    naive: bool = True,
    between_s: float = 0.3,
    spark: bool = False,
) -> Findings:
    """So many kills, then peace, then the reckoning."""
    random, found = Random(seed), Findings()
    faults = ("stopped", *FAULTS) if postgres else FAULTS
    with postgres_server.server() if postgres else nullcontext(str(folder / "work.db")) as store:
        async with (whole_app if spark else edge_alone)(folder, random, found) as (url, royalties):
            stage = Stage(folder, seed, store, naive, url, found)
            await _kills(stage, royalties, kills, between_s, faults)
    return found


async def _kills(stage: Stage, royalties: Royalties, kills: int, between_s: float, faults: tuple[str, ...]) -> None:
    await stage.start()
    tending = asyncio.create_task(stage.tend())
    writing = asyncio.create_task(_write(royalties, stage))
    try:
        for number in range(kills):
            paid = stage.charged()
            await until(lambda paid=paid: stage.charged() > paid, "something to be paid")  # type: ignore[misc]
            await asyncio.sleep(stage.random.uniform(0, between_s))
            await stage.strike(faults[number] if number < len(faults) else stage.random.choice(faults))
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        royalties.finish()
        due = len(stage.found.royalties)
        with suppress(AssertionError):  # the reckoning says it better
            await until(lambda: stage.charged() >= due, "everything to be paid")
        await asyncio.sleep(1.0)  # time for one payment too many
        stage.reckon()
    finally:
        tending.cancel()
        writing.cancel()
        await asyncio.gather(tending, writing, return_exceptions=True)
        await stage.stop()


async def _write(royalties: Royalties, stage: Stage) -> None:
    """There is always something to pay, and never much."""
    while True:
        await asyncio.sleep(stage.random.uniform(0.01, 0.1))
        if len(stage.found.royalties) - stage.charged() < AHEAD:
            royalties.add()
            if stage.random.random() < REBUILT:
                royalties.rebuild()


@asynccontextmanager
async def whole_app(folder: Path, random: Random, found: Findings) -> AsyncIterator[tuple[str, Royalties]]:
    """`penstock run` with the example's app, whose days are short."""
    env = {"ROYALTIES_DAY": f"{_SHORT_DAY.seconds} seconds", "ROYALTIES_LATE": "1 second"}
    running = Running(EXAMPLE / "app.py", folder / "data", env)
    await asyncio.to_thread(running.start)
    try:
        yield running.url, PlayedRoyalties(running, random, found)
    finally:
        await asyncio.to_thread(running.stop)


@asynccontextmanager
async def edge_alone(folder: Path, random: Random, found: Findings) -> AsyncIterator[tuple[str, Royalties]]:
    """`penstock edge` with the example's app; its view's changelog is written here."""
    data = folder / "data"
    royalties = FakeRoyalties(Folder(data), random, found)
    royalties.serve()
    words = ["edge", EXAMPLE / "app.py", "--data", data, "--port", 0, "--parent", os.getpid()]
    with (folder / "edge.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "penstock.cli.main", *map(str, words), stdout=log, stderr=log
        )
    address = data / "run" / "edge.json"
    try:
        await until(address.exists, "the edge to listen")
        yield f"http://127.0.0.1:{json.loads(address.read_text())['port']}", royalties
    finally:
        process.kill()
        await process.wait()
        royalties.close()


async def until(condition: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {patience_s:g} s for {what}")
        await asyncio.sleep(0.01)


def _free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--postgres", action="store_true", help="keep the work in a PostgreSQL that is started for it")
    parser.add_argument("--honest", action="store_true", help="the service honours Idempotency-Key")
    parser.add_argument("--spark", action="store_true", help="the real app computes the royalties")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="penstock-royalties-"))
    print(f"seed {options.seed}, {options.kills} kills in {folder}", flush=True)
    begun = time.monotonic()
    chosen = {"postgres": options.postgres, "naive": not options.honest, "spark": options.spark}
    found = asyncio.run(play(options.kills, options.seed, folder, **chosen))
    print(f"kills {dict(found.faults)}, of them {found.in_calls} of the processor left a call open", flush=True)
    print(f"the service died or was killed {found.deaths} times; {found.rebuilds} rebuilds")
    print(f"{len(found.royalties)} royalties, {found.charges} charges, {time.monotonic() - begun:.0f} s")
    for wrong in found.wrong:
        print(f"WRONG: {wrong}")
    if found.wrong:
        sys.exit(1)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
