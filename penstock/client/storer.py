"""Writes to the journal from one thread, so that all who wait for the disk share one fsync."""

from __future__ import annotations

from collections.abc import Callable
from threading import Condition, Thread

from penstock.client.journal import Changes, Journal, State
from penstock.errors import ProducerClosedError

Done = Callable[[Exception | None], None]


class Storer:
    """A queue of writes; what waits when a transaction ends goes into the next one, in order."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._waiting: list[tuple[tuple[int, bytes] | State, Done]] = []
        self._changed = Condition()
        self._closing = False
        self._thread = Thread(target=self._run, name="penstock-storer", daemon=True)
        self._thread.start()

    def store(self, what: tuple[int, bytes] | State, done: Done) -> None:
        """Have an event or a state written; `done` is called by the storer's thread, in the order of the calls."""
        with self._changed:
            if not self._closing:
                self._waiting.append((what, done))
                self._changed.notify()
                return
        done(ProducerClosedError("this producer is closed", hint="make a new one"))

    def close(self) -> None:
        """Write what waits, then let go of the folder."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        try:
            while group := self._next():
                self._write(group)
        finally:
            self._journal.close()

    def _next(self) -> list[tuple[tuple[int, bytes] | State, Done]]:
        with self._changed:
            while not self._waiting and not self._closing:
                self._changed.wait()
            group, self._waiting = self._waiting, []
            return group

    def _write(self, group: list[tuple[tuple[int, bytes] | State, Done]]) -> None:
        changes = Changes()
        for what, _ in group:
            if isinstance(what, State):
                changes.state = what
            else:
                changes.events.append(what)
        failure: Exception | None = None
        try:
            self._journal.write(changes)
        except Exception as error:
            failure = error
        for _, done in group:
            done(failure)
