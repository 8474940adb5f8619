"""Whose turn it is to write a log on Kafka: a writer beats, and a newcomer looks for beats before it claims.

Claiming is safe at any time: the writer before is replaced and learns it with its next record. But two processes that
each believe they are the one would take turns for ever. So an edge or a flows process claims only

1. a log that nobody has written yet, or whose last writer has ended in order;
2. a log whose last writer worked on the same data folder: its lock is ours, so that process is dead;
3. a log whose writer has not been heard of for so long, while Kafka answered all the time.

Silence is measured by this machine's own clock between two looks at the journal, never by times that others wrote.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from penstock.clock import rfc3339
from penstock.errors import LogHeldError, LogUnavailableError
from penstock.log.log import SILENT_S, Turn
from penstock.log.logs.kafka_journal import State

BEAT_S = 1.0
LOOK_S = 5.0
"""How long a newcomer looks for beats before it takes the writer for dead."""
ASK_S = 0.25
_UNSEEN_S = 2.0
"""Whoever has not looked for so long has heard nothing, and that means nothing."""


def await_turn(turn: Turn, folder: str, journal: str, look: Callable[[], State], tell: Callable[[str], None]) -> None:
    """Return when it may be claimed; `look` gives the journal's newest state. Raises `LogHeldError` for `free`."""
    state = look()
    if _is_free(turn, state, folder):
        return
    if turn == "standby":
        tell(f"standing by: {state.by} writes '{journal}' since {rfc3339(state.since_us)}")
    silent_s = LOOK_S if turn == "free" else SILENT_S
    looked = since = time.monotonic()
    while time.monotonic() - since < silent_s:
        time.sleep(ASK_S)
        try:
            newest = look()
        except LogUnavailableError:
            if turn == "free":
                raise
            newest = None
        now = time.monotonic()
        if newest is None or now - looked > _UNSEEN_S:
            since = now
        if newest is not None and newest.signs != state.signs:
            if _is_free(turn, newest, folder):
                return
            if turn == "free":
                raise held(newest, journal)
            state, since = newest, now
        looked = now


def _is_free(turn: Turn, state: State, folder: str) -> bool:
    return turn == "now" or not state.writer or state.left or state.folder == folder


def held(state: State, journal: str) -> LogHeldError:
    return LogHeldError(
        f"{state.by} writes this log",
        detail=f"it writes the journal '{journal}' since {rfc3339(state.since_us)}, and was heard of just now",
        hint="end that process first, or wait until it is silent with --standby",
    )


class Heart:
    """A thread that calls `beat` several times a second, as long as this process runs and is not stopped."""

    def __init__(self, beat: Callable[[], None], every_s: float) -> None:
        self._beat, self._every_s = beat, every_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._live, name="log-heart", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _live(self) -> None:
        while not self._ended.wait(self._every_s):
            self._beat()
