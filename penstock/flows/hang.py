"""A query that lives but makes no progress is dumped, stopped and started again, alone.

Hung means: there is input beyond its last commit, no batch was committed for a declared time, and it has not failed.
Each time that a query is restarted over the same batch, the time doubles: a batch that is only slow gets done.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import Any

from pyspark.sql import SparkSession

from penstock.clock import Clock
from penstock.config import Folder
from penstock.flows.flow_run import Flow

_log = logging.getLogger(__name__)

HUNG_S = float(os.environ.get("PENSTOCK_HUNG_S", "120"))
"""How long a batch may take before its query counts as hung."""
MOST_PATIENCE_S = 3600.0
_STOP_S = 20.0
EXIT_HUNG = 70


class HangWatch:
    """Remembers when each flow last moved."""

    def __init__(self, folder: Folder, spark: SparkSession, clock: Clock) -> None:
        self.folder = folder
        self.spark = spark
        self.clock = clock
        self._seen: dict[str, tuple[int, float]] = {}
        self._patience_s: dict[str, float] = {}

    def excuse(self) -> None:
        """The log does not take commits: nobody can make progress, and nobody is to blame."""
        self._seen.clear()

    def look(self, flow: Flow, now: float) -> None:
        """Restart the flow's query if it hangs."""
        if flow.query is None or flow.sink is None:
            self._seen.pop(flow.name, None)
            return
        progress, since = self._seen.get(flow.name, (0, now))
        patience_s = self._patience_s.get(flow.name, HUNG_S)
        if flow.sink.progress != progress:
            self._patience_s.pop(flow.name, None)
        if flow.sink.progress != progress or not self._waiting(flow):
            self._seen[flow.name] = (flow.sink.progress, now)
        elif flow.name not in self._seen:
            self._seen[flow.name] = (progress, since)
        elif now - since > patience_s:
            self._seen.pop(flow.name)
            self._patience_s[flow.name] = min(2 * patience_s, MOST_PATIENCE_S)
            self._restart(flow, patience_s)

    def _waiting(self, flow: Flow) -> bool:
        """Whether there is input that the flow has not committed."""
        assert flow.sink is not None
        end = flow.sink.last.end if flow.sink.last else {}
        for name, feed in flow.feeds.items():
            bounds = flow.sink.logs[name].bounds(feed.stream)
            if sum(bounds.ends) > sum(end[name][1] if name in end else [0]):
                return True
        return False

    def _restart(self, flow: Flow, waited_s: float) -> None:
        path = self._dump(flow.name)
        _log.error("the flow '%s' made no progress for %.0f s and is restarted; threads: %s", flow.name, waited_s, path)
        ender = threading.Thread(target=flow.stop, name=f"stop {flow.name}", daemon=True)
        ender.start()
        ender.join(_STOP_S)
        if ender.is_alive():
            _log.error("the flow '%s' does not stop: the whole process is ended, to be started again", flow.name)
            os._exit(EXIT_HUNG)
        flow.restarts += 1
        flow.start()

    def _dump(self, name: str) -> str:
        jvm: Any = self.spark._jvm
        threads = jvm.java.lang.management.ManagementFactory.getThreadMXBean().dumpAllThreads(True, True)
        self.folder.logs.mkdir(parents=True, exist_ok=True)
        path = self.folder.logs / f"hung-{name}-{self.clock.now_us() // 1_000_000}.txt"
        path.write_text("\n\n".join(_thread_text(thread) for thread in threads))
        return str(path)


def _thread_text(thread: Any) -> str:
    """With its whole stack: the thread's own text ends after eight frames."""
    frames = "".join(f"\n\tat {frame.toString()}" for frame in thread.getStackTrace())
    return str(thread.toString()).partition("\n")[0] + frames
