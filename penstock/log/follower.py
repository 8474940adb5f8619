"""Notices that another process has committed, by asking the log a cheap question every few milliseconds."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

INTERVAL_S = 0.005
"""Asking harder gains nothing that a person or a batch of Spark would notice, and costs CPU when nothing happens."""

IDLE_LOOKS = 200
"""After so many looks at nothing new, that is a second, only every other one is taken: it halves the idle CPU, and the
first event after a pause is noticed 5 ms later at most."""

_log = logging.getLogger(__name__)


class Follower:
    """One thread that calls `changed` after each change of `revision`, and once at the start.

    `changed` is called on that thread and must return quickly: from there an asyncio loop is woken by
    `call_soon_threadsafe`.
    """

    def __init__(
        self, revision: Callable[[], Any], changed: Callable[[], None], *, interval_s: float = INTERVAL_S
    ) -> None:
        self._revision = revision
        self._changed = changed
        self._interval_s = interval_s
        self._ended = False
        self._failed = False
        self._thread = threading.Thread(target=self._follow, name="log-follower", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended = True
        self._thread.join()

    def _follow(self) -> None:
        last: Any = object()
        idle = 0
        while not self._ended:
            revision = self._look(last)
            idle = idle + 1 if revision == last else 0
            last = revision
            # An Event's wait would cost three times the CPU of a sleep.
            time.sleep(self._interval_s if idle < IDLE_LOOKS else 2 * self._interval_s)

    def _look(self, last: Any) -> Any:
        """The newest revision. A failure is told once and asked over: a follower that died would be silence."""
        try:
            revision = self._revision()
            if revision != last:
                self._changed()
            self._failed = False
            return revision
        except Exception:
            if not self._failed:
                _log.exception("the log cannot be followed; trying on")
            self._failed = True
            return last
