"""Hundreds of lives of a producer in seconds: every step may fail or be the last, and each event is there once.

The parts are the real ones, with a real folder; only the network, the door's marks and the threads are played here, so
that a seed repeats a run exactly.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest

from penstock.client.dispatcher import Dispatcher
from penstock.client.journal import Done, Journal, JournalWrite, QueueState
from penstock.client.outbox import Outbox, QueueBounds
from penstock.client.verdict import DoorReply
from penstock.clock import SystemClock
from penstock.errors import EventRejectedError, UnreachableError


class Crash(BaseException):
    """The process ends here."""


class DoorOfNumbers:
    """Takes numbers as the log does; refuses what is larger than its limit before it looks at the number."""

    def __init__(self, random: Random) -> None:
        self.random, self.peace = random, False
        self.events: list[int] = []
        self.limit = 10
        self._mark = (0, -1)

    def post(self, body: bytes, headers: Mapping[str, str]) -> DoorReply:
        lost = self.random.choice(["", "", "", "request", "reply", "crash"]) if not self.peace else ""
        if lost == "request":
            raise UnreachableError("lost")
        reply = self._answer(body, headers)
        if lost == "crash":
            raise Crash
        if lost == "reply":
            raise UnreachableError("lost")
        return reply

    def _answer(self, body: bytes, headers: Mapping[str, str]) -> DoorReply:
        if self.random.random() < 0.2 and not self.peace:
            return DoorReply(503, {}, b"")
        lines = (gzip.decompress(body) if "Content-Encoding" in headers else body).splitlines()
        if len(lines) > self.limit or b"large" in body:
            return DoorReply(413, {}, b"")
        epoch, sequence = int(headers["Producer-Epoch"]), int(headers["Producer-Seq"])
        expected = self._mark[1] + 1 if epoch == self._mark[0] else 0
        assert epoch >= self._mark[0], "fenced off by itself"
        if body == b"{}\n":
            assert sequence > expected, "what is only asked must not be taken"
            error = json.dumps({"error": {"code": "sequence_gap", "message": ""}}).encode()
            return DoorReply(409, {"Producer-Expected-Seq": str(expected)}, error)
        assert sequence <= expected, "a gap"
        if sequence < expected:
            return DoorReply(204, {"Penstock-Ack": "t"}, b"")
        self._mark = (epoch, sequence)
        self.events += [json.loads(line)["n"] for line in lines]
        return DoorReply(200, {}, json.dumps({"rejected": [], "ack": "t"}).encode())

    @property
    def is_open(self) -> bool:
        return False


class StorerAtOnce:
    """Writes when asked, and may be the place where the process ends: before the commit or after it."""

    def __init__(self, journal: Journal, random: Random) -> None:
        self.journal, self._random, self.peace = journal, random, False

    def store(self, what: tuple[int, bytes] | QueueState, done: Done) -> None:
        end = self._random.random() if not self.peace else 1
        if end < 0.02:
            raise Crash
        self.journal.write(JournalWrite(state=what) if isinstance(what, QueueState) else JournalWrite([what]))
        if end < 0.04:
            raise Crash
        done(None)


class Life:
    """One process."""

    def __init__(self, folder: Path, door: DoorOfNumbers, rejected: set[int]) -> None:
        clock = SystemClock()
        journal = Journal(folder, "orders", "normal", clock.now_us())
        self.storer = StorerAtOnce(journal, door.random)
        bounds = QueueBounds(10**6, 10**9, door.random.randint(1, 40), 10**6, 0.0)
        self.outbox = Outbox(journal.start, bounds, self.storer, clock)  # type: ignore[arg-type]
        connection: Any = door

        def on_rejected(line: bytes, error: EventRejectedError) -> None:
            rejected.add(json.loads(line)["n"])

        self.dispatcher = Dispatcher(
            self.outbox,
            connection,
            journal.start.producer,
            key=None,
            compress=True,
            backoff_most_s=0,
            on_rejected=on_rejected,
            clock=clock,
            random=door.random,
        )
        self.dispatcher._stop.set()  # so that no pause is waited for

    def turn(self) -> None:
        """One try of what comes next, if anything does."""
        if self.outbox.unsent()[0]:
            batch = self.outbox.next_batch()
            assert batch is not None
            self.dispatcher._act(batch, self.dispatcher._try(batch))


@pytest.mark.parametrize("seed", range(6))
def test_each_event_is_there_once_whatever_fails_and_wherever_it_ends(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    door, rejected = DoorOfNumbers(random), set[int]()
    stored: set[int] = set()
    n = lives = 0
    life = Life(tmp_path, door, rejected)
    for _ in range(1200):
        try:
            if random.random() < 0.5:
                n += 1
                life.outbox.put(json.dumps({"n": n, "what": "large" if n % 97 == 0 else ""}).encode())
                stored.add(n)
            else:
                life.turn()
            door.limit = random.choice([10, 20, 30]) if random.random() < 0.05 else door.limit
        except Crash:
            life.storer.journal.close()
            life, lives = Life(tmp_path, door, rejected), lives + 1
    door.peace = life.storer.peace = True
    door.limit = 1000
    large = {n for n in stored if n % 97 == 0}
    while life.outbox.unsent()[0]:
        life.turn()
    life.storer.journal.close()
    assert lives > 20
    assert len(door.events) == len(set(door.events))
    assert stored - set(door.events) - large == set()
    assert door.events == sorted(door.events)
    assert not large & set(door.events)
