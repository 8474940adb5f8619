"""The main of the `flows` process: the Spark driver, and a heartbeat that stops when it or its JVM stops.

The flows run in a thread of their own. The main thread takes signals and touches `run/flows.beat` once a
second, as long as the JVM answers too: a process that is stopped, a lock that is never released and a JVM
that hangs all look the same from outside, and the supervisor starts a new one.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from penstock import plain
from penstock.config import Folder
from penstock.declaration import Application
from penstock.log.log import Turn
from penstock.run.announcement import announce
from penstock.run.app_file import Loaded
from penstock.run.exit_codes import FAILED, OK
from penstock.run.lifecycle import Bell
from penstock.run.ownership import check_folder
from penstock.run.topic_publisher import publishing

BEAT_S = 1.0
JVM_SILENT_S = 5.0
"""A JVM that has not answered for so long is not vouched for: garbage collection of a small heap takes
less."""

LOOK_SILENT_S = 300.0
"""How long the flows may be busy with one of them, such as looking for an event that makes it fail."""

DYING_S = 3.0
"""What the driver gets to end by itself when its JVM is gone."""

_log = logging.getLogger(__name__)


@contextmanager
def session() -> Iterator[None]:
    """A real Spark session, for app files that use one while they are imported; it stays for the flows."""
    from penstock.flows.session import open_session
    from penstock.run.preflight import check_java

    check_java()
    open_session("penstock")
    yield


def run(loaded: Loaded, folder: Folder, *, standby: bool = False) -> None:
    """Blocks until SIGTERM or SIGINT. Raises what ended the flows."""
    flows = _Flows(loaded.application, folder, "standby" if standby else "free")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, flows.on_signal)
    check_folder(folder, loaded.application.name, tell=_log.warning)
    flows.run()


class _Flows:
    def __init__(self, application: Application, folder: Folder, turn: Turn) -> None:
        self._turn = turn
        self._application = application
        self._folder = folder
        self._bell = Bell()
        self._asked = False
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._answered = time.monotonic()
        self._looked = time.monotonic()
        self._begun = False
        self._done = False
        self._off: list[str] | None = None

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        self._asked = True
        self._bell.ring()

    def run(self) -> None:
        work = threading.Thread(target=self._work, name="flows")
        work.start()
        threading.Thread(target=self._ask_jvm, name="jvm-pulse", daemon=True).start()
        beat = self._folder.run / "flows.beat"
        while not self._done:
            self._announce()
            now = time.monotonic()
            if now - self._answered < JVM_SILENT_S and now - self._looked < LOOK_SILENT_S:
                beat.touch()
            self._bell.wait(BEAT_S)
            if self._asked and not self._begun and not self._done:
                os._exit(OK)  # who starts or plans cannot be asked to stop; and what runs may be cut off anywhere
            if self._asked:
                self._stop.set()
        work.join()
        if self._failure is not None:
            raise self._failure

    def _announce(self) -> None:
        """Say who this is, and which parts of the engine do not serve: one may give up at any time."""
        if (off := plain.off(plain.SPARK)) != self._off:
            announce(self._folder, "flows", {"plain": off})
            self._off = off

    def _work(self) -> None:
        from penstock.flows.runner import run

        try:
            named = os.environ.get("PENSTOCK_RUN", "")
            run(
                self._application,
                self._folder,
                stop=self._stop,
                beat=self._look,
                run=named,
                turn=self._turn,
                beside=lambda group: publishing(self._application, self._folder, "flows", group),
            )
        except BaseException as error:
            self._failure = error
        finally:
            self._done = True
            self._bell.ring()

    def _look(self) -> None:
        self._begun = True
        self._looked = time.monotonic()

    def _ask_jvm(self) -> None:
        """Before there is a JVM there is nothing to ask; when it has died, this process ends soon, unless it was ending
        anyway: then it was the one that killed it."""
        try:
            while True:
                jvm = _jvm()
                if jvm is not None:
                    jvm.java.lang.System.nanoTime()
                self._answered = time.monotonic()
                time.sleep(BEAT_S)
        except Exception:
            time.sleep(DYING_S)
            if not self._asked and not self._done:
                _log.exception("the JVM does not answer any more")
                os._exit(FAILED)


def _jvm() -> Any:
    """The running session's JVM; does not import pyspark for it."""
    context = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    return getattr(context, "_jvm", None)
