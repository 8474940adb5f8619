"""Publishes streams, tables, flows and views to topics for other programs, beside the log and never in its way.

The process that writes a log publishes what is in it, each topic in a thread of its own: one that cannot be written to
lags, says so in `status`, and catches up.

1. A publisher begins only when a commit has shown that its process still is the log's writer.
2. It then fences its predecessor, reads from the topic what was published last, and publishes what comes behind that.
   So each event is published once, whoever died when.
3. After any failure it begins again at 1: the topic, not this process, knows how far it is.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

from penstock.clock import Clock, SystemClock, rfc3339
from penstock.config import Folder
from penstock.declaration import Application
from penstock.errors import PenstockError, PositionGoneError, StaleTermError, UnknownStreamError
from penstock.log import control_keys
from penstock.log.folder_log import FolderLog
from penstock.log.group_commit import GroupCommit
from penstock.log.opening import open_topic
from penstock.log.topic import Topic
from penstock.views.topic_records import EventSource, Portion, RowSource, TopicSource

Side = Literal["edge", "flows"]
LOOK_S = 0.02
_NOTE_S = 60.0
"""How often the position is noted in the log too, for a topic whose retention removes all that it holds."""
_BACKOFF_S = (0.5, 1.0, 2.0, 5.0, 10.0)
_COMMIT_S = 30.0
_STOP_S = 3.0

_log = logging.getLogger(__name__)


class Publisher:
    """One topic and the thread that writes it."""

    def __init__(self, name: str, topic: Topic, source: TopicSource, group: GroupCommit, clock: Clock) -> None:
        self._name, self._topic, self._source, self._group, self._clock = name, topic, source, group, clock
        self._ended = threading.Event()
        self._state = ""
        self._error: Mapping[str, Any] | None = None
        self._gone: str | None = None
        """The position that was last told to be gone."""
        self._noted: str | None = None
        self._noted_at = 0.0
        self._thread = threading.Thread(target=self._live, name=f"publish {name}", daemon=True)

    def start(self, noted: Mapping[str, Any] | None) -> None:
        self._noted = (noted or {}).get("position")
        self._thread.start()

    def end(self) -> None:
        self._ended.set()

    def join(self) -> None:
        self._thread.join(_STOP_S)

    def _live(self) -> None:
        """Until it is ended, or another process writes the log, and publishes it."""
        failures = 0
        while not self._ended.is_set():
            try:
                self._tell("beginning" if not failures else "lagging", self._error)
                self._publish_on()
            except StaleTermError:
                return
            except Exception as error:
                failures = 1 if self._state == "level" else failures + 1
                if failures == 1:
                    _log.warning("the topic '%s' lags: %s", self._topic.name, error)
                self._state = "lagging"
                self._error = error.body() if isinstance(error, PenstockError) else PenstockError(str(error)).body()
                self._ended.wait(_BACKOFF_S[min(failures, len(_BACKOFF_S)) - 1])
            finally:
                self._topic.close()

    def _publish_on(self) -> None:
        self._topic.open()
        position = self._source.newest(self._topic.last_positions())
        if position is None and self._topic.was_written():
            position = self._noted
        while not self._ended.is_set():
            portion = self._next(position)
            if portion is None:
                if self._state != "level" or (self._noted != position and time.monotonic() > self._noted_at + _NOTE_S):
                    self._tell("level", None, position)
                    self._error = None
                self._ended.wait(LOOK_S)
                continue
            if portion.rows:
                self._topic.publish(portion.rows)
            position = portion.position

    def _next(self, position: str | None) -> Portion | None:
        try:
            return self._source.after(position)
        except PositionGoneError as error:
            if position is not None and position != self._gone:
                self._gone = position
                _log.warning("the topic '%s' begins anew: %s", self._topic.name, error)
            return self._source.anew(self._topic.content)
        except UnknownStreamError:  # it is made when its first build begins
            return None

    def _tell(self, state: str, error: Mapping[str, Any] | None = None, position: str | None = None) -> None:
        """Durable on return, which shows that this process is the log's writer."""
        position = position or self._noted
        told = {
            "topic": self._topic.name,
            "state": state,
            "since": rfc3339(self._clock.now_us()),
            "error": error,
            "position": position,
        }
        self._group.submit([], {control_keys.topic(self._name): told}).result(_COMMIT_S)
        self._state, self._noted, self._noted_at = state, position, time.monotonic()


@contextmanager
def publishing(
    application: Application, folder: Folder, side: Side, group: GroupCommit, clock: Clock | None = None
) -> Iterator[None]:
    """Publish what this side of the app declares with `topic=`, for as long as this is open."""
    named = _named(application, side)
    if folder.log is None or not named:
        yield
        return
    log = FolderLog(folder, keep=True)
    place = folder.edge_log if side == "edge" else folder.flows_log
    memory = (log.edge if side == "edge" else log.flows).memory()
    publishers = []
    try:
        for name, (topic, retention_ms) in named.items():
            source = _source(application, name, log)
            opened = open_topic(
                place,
                topic,
                source.partitions,
                compacted=isinstance(source, RowSource),
                retention_ms=retention_ms,
            )
            publisher = Publisher(name, opened, source, group, clock or SystemClock())
            publisher.start(memory.get(control_keys.topic(name)))
            publishers.append(publisher)
        yield
    finally:
        for publisher in publishers:
            publisher.end()
        for publisher in publishers:
            publisher.join()
        log.close()


def _named(application: Application, side: Side) -> dict[str, tuple[str, int]]:
    """By what is published on this side: its topic, and how long that keeps events, in milliseconds."""
    made = {node.name for node in application.nodes}
    ages_us = {stream.name: stream.retain.age_us for stream in application.streams}
    kept_ms = {name: age // 1000 for name, age in ages_us.items() if age is not None}
    return {
        name: (topic, kept_ms.get(name, -1))
        for name, topic in application.publishes.items()
        if (name in made) == (side == "flows")
    }


def _source(application: Application, name: str, log: FolderLog) -> TopicSource:
    stream = application.stream(name) or application.flow(name)
    if stream is not None:
        return EventSource(application, name, stream.partitions, log)
    table = application.table(name)
    if table is not None:
        return RowSource(application, table, log.edge, made=False)
    view = next(view for view in application.views if view.name == name)
    return RowSource(application, view, log.flows, made=True)
