"""Kills and stops edge, driver, JVM and broker of an app on Kafka, each on a machine of its own, under load.

    python -m tests.chaos.kafka_kills --kills 20 --seed 1

What must hold is what `harness.py` checks; besides, an edge or a driver that was stopped, and woken after another one
has taken over, ends saying so. Machines are data folders here: they share the broker and nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.chaos.harness import STEPS, Findings, play, reckon
from tests.kafka_broker import Broker
from tests.running import Running, java_below

READY_S = 300.0
STOPPED_S = 20.0
ENDED_S = 60.0
VICTIMS = ("edge", "broker", "flows", "stopped broker", "jvm", "zombie edge", "stopped edge", "zombie flows")
"""The order of the first ones; beyond them the seed chooses."""


class Machine:
    """A data folder, and the edge or the flows that work on it; whoever dies is started again, as systemd would."""

    def __init__(self, verb: str, words: list[str], folder: Path) -> None:
        self.verb, self.folder = verb, folder
        self._command = [sys.executable, "-m", "penstock.cli.main", verb, *words, "--data", str(folder / "data")]
        self.process: subprocess.Popen[bytes] | None = None
        self.kept = True
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def log(self) -> Path:
        return self.folder / f"{self.verb}.log"

    def look(self) -> None:
        if self.kept and (self.process is None or self.process.poll() is not None):
            with self.log.open("ab") as log:
                self.process = subprocess.Popen(self._command, stdout=log, stderr=log)

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def end(self) -> None:
        self.kept = False
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(ENDED_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class Machines(Running):
    """An app whose edge and flows run on machines of their own beside a broker."""

    def __init__(self, app: Path, root: Path, broker: Broker, found: Findings) -> None:
        super().__init__(app, root)
        self._root, self._broker, self._found = root, broker, found
        self.log_at = f"kafka://{broker.address}"
        self._numbers = itertools.count(1)
        self._ended = threading.Event()
        self._looking = threading.Thread(target=self._look, name="machines", daemon=True)
        self._all: list[Machine] = []
        self.edge, self.flows = self._new_edge(), self._new("flows")
        stop = self._stopped
        self.own = {
            "edge": lambda: self.edge.signal(signal.SIGKILL),
            "flows": lambda: self.flows.signal(signal.SIGKILL),
            "jvm": self._kill_jvm,
            "broker": self._kill_broker,
            "stopped broker": lambda: stop(self._broker.pause, self._broker.resume),
            "stopped edge": lambda: stop(*(lambda n=n: self.edge.signal(n) for n in _STOP)),
            "zombie edge": lambda: self._zombie("edge"),
            "zombie flows": lambda: self._zombie("flows"),
        }

    def _new(self, verb: str, *words: str) -> Machine:
        folder = self._root / f"machine-{next(self._numbers)}"
        made = Machine(verb, [str(self.app), "--log", self.log_at, *words], folder)
        self._all.append(made)
        return made

    def _new_edge(self) -> Machine:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        return self._new("edge", "--port", str(port))

    def start(self) -> None:
        self._looking.start()
        self._until("ready", lambda: ask(f"{self.url}/readyz")[0] == 200)

    def _look(self) -> None:
        while not self._ended.wait(0.5):
            for machine in list(self._all):
                machine.look()

    def _until(self, what: str, holds: Callable[[], bool], wait_s: float = READY_S) -> None:
        deadline = time.monotonic() + wait_s
        while not holds():
            if time.monotonic() > deadline:
                ends = {m.log: m.log.read_text()[-1500:] for m in self._all if m.log.exists()}
                raise AssertionError(f"not {what} within {wait_s:g} s: {ends}")
            time.sleep(0.2)

    def _kill_jvm(self) -> None:
        assert self.flows.process is not None
        pid = self.flows.process.pid
        self._until("running", lambda: java_below(pid) is not None)
        if (jvm := java_below(pid)) is not None:
            os.kill(jvm, signal.SIGKILL)

    def _kill_broker(self) -> None:
        self._broker.stop()
        time.sleep(2)
        self._broker.start()

    def _stopped(self, stop: Callable[[], None], go_on: Callable[[], None]) -> None:
        stop()
        time.sleep(STOPPED_S)
        go_on()

    def _zombie(self, verb: str) -> None:
        """Stop a process, let another machine take over, and wake it: it must end and say why."""
        old: Machine = getattr(self, verb)
        old.kept = False
        old.signal(signal.SIGSTOP)
        new = self._new_edge() if verb == "edge" else self._new("flows")
        setattr(self, verb, new)
        self._until("taken over", lambda: self._writes(new))
        old.signal(signal.SIGCONT)
        assert old.process is not None
        with suppress(subprocess.TimeoutExpired):
            old.process.wait(ENDED_S)
        said = old.log.read_text()
        if old.process.poll() is None:
            self._found.wrong.append(f"a zombie {verb} did not end: {said[-500:]}")
        elif "stale_term" not in said and "StaleTermError" not in said:
            self._found.wrong.append(f"a zombie {verb} ended without a word: {said[-1500:]}")

    def _writes(self, machine: Machine) -> bool:
        """Whether a machine is the one that writes now."""
        if machine.verb == "edge":
            return ask(f"{self.url}/healthz")[0] == 200
        return b"flows planned" in machine.log.read_bytes() if machine.log.exists() else False

    def stop(self) -> int:
        self._ended.set()
        self._looking.join()
        for machine in self._all:
            machine.end()
        return 0


_STOP = (signal.SIGSTOP, signal.SIGCONT)


def ask(url: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return reply.status, json.loads(reply.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, None
    except OSError:
        return 0, None


def run(kills: int, seed: int, root: Path, victims: tuple[str, ...] = VICTIMS) -> Findings:
    """The whole piece on a broker of its own, and the reckoning, with the broker still there."""
    broker, found = Broker(root), Findings()
    broker.start()
    try:
        machines = Machines(STEPS.app, root, broker, found)
        piece = replace(STEPS, victims=victims)
        asyncio.run(play(kills, seed, root, piece, machines, found))
        reckon(found, root / "verify", piece, machines.log_at)
    finally:
        broker.resume()
        broker.stop()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--victims", nargs="+", default=VICTIMS, choices=VICTIMS)
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="penstock-kafka-kills-"))
    began = time.monotonic()
    found = run(options.kills, options.seed, root, tuple(options.victims))
    print(
        f"seed {options.seed}: {len(found.kills)} kills in {time.monotonic() - began:.0f} s, {len(found.acked)} events "
        f"acknowledged, {found.batches} batches seen, {found.resumes} resumes, {found.resets} resets"
    )
    for line in found.wrong:
        print(f"WRONG: {line} (kept: {root})")
    if not found.wrong:
        shutil.rmtree(root)
    return 1 if found.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
