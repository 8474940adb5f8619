"""Lets the batches of folded views that meet downstream end at the same places of a stream.

A sum over two folded views of one stream is right only where both have absorbed the same events. Spark plans each
query alone, so that their batches would seldom end at one place. A *cut* is such a place: the first query that asks for
more makes one at the end of the stream, and the others end a batch there too.

1. Nobody waits for anybody: whoever asks, and has not absorbed all, is given a place behind its own.
2. Whoever is slow may jump over cuts, but not over the *goal*: a cut that two or more have ended at, until all have.
   So there is a common place again after each has planned twice, however different their speeds are.
3. Who has not asked for a while is not waited for. The file is no record of anything: without it new cuts are made.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec

_AWAY_S = 5.0
"""Who has not asked for so long is stopped, or busy with a batch that the others should not be measured by."""


class CutState(msgspec.Struct):
    """What is known of one stream's cuts; commits are numbered."""

    epoch: str = ""
    newest: int = 0
    goal: int = 0
    ended: list[str] = []
    """Who has a batch that ends at the goal."""
    at: dict[str, int] = {}
    """Where the last batch of each reader ends."""
    asked_s: dict[str, float] = {}

    def next_cut(self, reader: str, start: int, most: int, now_s: float) -> int:
        """Where the batch of a reader ends that begins at the commit `start`, and may go up to `most`."""
        self._forget_who_is_away(reader, now_s)
        if start < self.at.get(reader, 0) <= most:  # asked once more: a function may use a stream twice
            return self.at[reader]
        if self.newest <= start:
            self.newest = most
        cut = self.newest
        if start < self.goal:
            if len({*self.ended} - {reader}) >= 2:
                cut = self.goal
            else:
                self._aim_at(cut)
        if cut > most:  # it has much to catch up with, and cuts are far ahead
            self.at.pop(reader, None)
            return most
        self.at[reader] = cut
        if cut == self.goal:
            self.ended.append(reader)
        if min(self.at.values()) >= self.goal:
            self._aim_at(max(self.at.values()))
        return cut

    def _aim_at(self, goal: int) -> None:
        self.goal = goal
        self.ended = [name for name, at in self.at.items() if at == goal]

    def _forget_who_is_away(self, reader: str, now_s: float) -> None:
        self.asked_s[reader] = now_s
        for name in [name for name, asked in self.asked_s.items() if asked < now_s - _AWAY_S]:
            del self.asked_s[name]
            self.at.pop(name, None)


_decoder = msgspec.json.Decoder(CutState)


class CutFile:
    """The cuts of one stream, in a file that the planners of all queries share: each is a process of its own."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def next_cut(self, reader: str, epoch: str, start: int, most: Callable[[], int]) -> int:
        """See `CutState.next_cut`. `most` is asked for while nobody else makes a cut, so that none is ahead of it."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a+b") as file, _locked(file):
            state = self._read(file)
            if state.epoch != epoch:
                state = CutState(epoch=epoch)
            cut = state.next_cut(reader, start, most(), time.monotonic())
            file.truncate(0)
            file.write(msgspec.json.encode(state))
        return cut

    def _read(self, file: IO[bytes]) -> CutState:
        file.seek(0)
        try:
            return _decoder.decode(file.read())
        except msgspec.DecodeError:  # empty, or torn by a kill
            return CutState()


@contextmanager
def _locked(file: IO[bytes]) -> Iterator[None]:
    fcntl.flock(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        file.flush()
        fcntl.flock(file, fcntl.LOCK_UN)
