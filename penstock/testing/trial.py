"""`run(app)`: an app for the length of a test, with the log in memory and the clock in the test's hand.

```python
with run(app) as t:
    t.send("orders", Order(order_id=1, country="NL", amount=12.5))
    assert t.rows("countries") == [{"country": "NL", "orders": 1, "turnover": 12.5}]
```

Rows are computed by the batch twin of each function, which `penstock verify` compares running apps with: they are what
a running app shows once it has absorbed what was sent. With `real=True` the real queries run instead.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from penstock import schema
from penstock.app import App
from penstock.change import OP, Column
from penstock.collect.ticks import Ticks
from penstock.config import Folder
from penstock.declaration import Shown
from penstock.errors import UnknownViewError
from penstock.log.log import LogReader, Stream
from penstock.log.logs.memory import temporary_place
from penstock.testing.batch_twin import Twin, view_rows
from penstock.testing.real_queries import Moment, Queries
from penstock.testing.trial_door import HandClock, SendOutcome, TrialDoor, moment_of, span_us
from penstock.views.read_query import evaluate, key_of, parse_query
from penstock.views.unpack import dicts_of

Rows = list[dict[str, Any]]
_IN_MEMORY = Path("/dev/shm")


def run(app: App, *, real: bool = False, start: str | datetime | None = None) -> Trial:
    """An app for the length of a `with`.

    `start` is the time at which the test begins; then the clock moves by `advance` alone, and an event further ahead
    than the stream's `future=` is a dead letter. Without it the clock goes along with the events that are sent.
    """
    return Trial(app, real=real, start=start)


class Trial:
    """One app under test. The first in a process starts Spark; the others use the same session."""

    def __init__(self, app: App, *, real: bool = False, start: str | datetime | None = None) -> None:
        self._opened = ExitStack()
        try:
            self.application = app.declared()
            self.clock = HandClock(moment_of(start))
            self._folder = self._temporary_folder() if real else Folder(Path(), self._memory())
            self._door = self._open_door()
            flows: Twin | Queries
            if real:
                flows = Queries(self.application, self._folder, self._door)
            else:
                flows = Twin(self.application, self._folder, self._door)
            self._flows = flows
            self._opened.callback(lambda: self._flows.close())
        except BaseException:
            self._opened.close()
            raise

    def _memory(self) -> str:
        return self._opened.enter_context(temporary_place())

    def _temporary_folder(self) -> Folder:
        root = tempfile.mkdtemp(prefix="penstock-", dir=_IN_MEMORY if os.access(_IN_MEMORY, os.W_OK) else None)
        self._opened.callback(shutil.rmtree, root, ignore_errors=True)
        return Folder(Path(root))

    def _open_door(self) -> TrialDoor:
        door = TrialDoor(self.application, self._folder.edge_log, self.clock)
        self._opened.callback(lambda: self._door.close())
        return door

    def __enter__(self) -> Trial:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._opened.close()

    # Doing

    def send(self, name: str, *events: Any) -> SendOutcome:
        """Events of a stream, or rows of a table, in one commit: instances of its class, dicts, or raw JSON."""
        many = list(events[0]) if len(events) == 1 and isinstance(events[0], (list, tuple)) else list(events)
        sent = self._door.send(name, many)
        self._flows.sent()
        return sent

    def delete(self, table: str, *keys: Any) -> SendOutcome:
        """Rows of a table by their keys, in one commit; a key of several columns is a tuple."""
        sent = self._door.delete(table, keys)
        self._flows.sent()
        return sent

    @property
    def now(self) -> datetime:
        """What the clock says."""
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=self.clock.now_us())

    def advance(self, by: str | timedelta) -> None:
        """Let time pass. A stream that was silent for its `idle_after=` is then complete as far as that says."""
        self.clock.advance(span_us(by))
        if any(stream.idle_after_us is not None for stream in self.application.streams):
            self._flows.catch_up()
            group, flows = self._door.group, self._flows.log
            if Ticks(self.application, self._door.log, group, flows, self.clock, lambda signal: None).once():
                self._flows.sent()

    def pause(self) -> None:
        """Let nothing be absorbed until `resume`: rows stay as they are, and what is sent meanwhile is one batch."""
        self._flows.pause()

    def resume(self) -> None:
        self._flows.resume()

    def crash(self, moment: Moment = "now") -> None:
        """Lose what is not in the log, and begin again from there: the door at once, flows at the next look.

        With `real=True` the flows can be let fall at their next batch, `before commit` (Spark has computed it, and the
        log does not have it) or `after commit` (the log has it, and Spark does not know).
        """
        self._flows.crash(moment)
        self._door.close()
        self._door = TrialDoor(self.application, self._folder.edge_log, self.clock)
        self._flows.reopen(self._door)

    # Looking

    def rows(self, name: str) -> Rows:
        """The rows of a view or table in its own order, without its `limit=`; of a flow, the events that it gave."""
        self._flows.catch_up()
        shown = self.application.view(name) or self.application.table(name)
        log, stream = self._found(name)
        if stream is None:
            return []
        if shown is None:
            return [_own(row) for row in _events(log, stream)]
        return _ordered(shown, stream, view_rows(log, stream))

    def alerts(self) -> Rows:
        """What is raised now: the rows of all alerts, each with its name as `alert`."""
        names = [flow.alert.shown.name for flow in self.application.flows if flow.alert is not None]
        return [{"alert": name, **row} for name in names for row in self.rows(name)]

    def late(self, flow: str | None = None) -> Rows:
        """What came too late for a flow or view: `flow`, `stream`, `event` and its `_time`, the oldest first."""
        self._flows.catch_up()
        rows = _ledger(self._flows.log, "late")
        shown = [{**_own(row), "event": msgspec.json.decode(row["event"]), "_time": row["_time"]} for row in rows]
        return [row for row in shown if flow in (None, row["flow"])]

    def dead(self) -> Rows:
        """What the door rejected or a flow failed on: `stream`, `reason`, `detail`, `raw`, `flow`."""
        self._flows.catch_up()
        return [_own(row) for log in (self._door.log, self._flows.log) for row in _ledger(log, "dead")]

    def _found(self, name: str) -> tuple[LogReader, Stream | None]:
        if self.application.stream(name) or self.application.table(name):
            return self._door.log, self._door.streams[name]
        if self.application.view(name) is None and self.application.flow(name) is None:
            names = ", ".join(node.name for node in self.application.nodes)
            raise UnknownViewError(f"the app has no view or flow '{name}'", hint=f"it has: {names}")
        return self._flows.log, self._flows.stream(name)


def _ledger(log: LogReader, name: str) -> Rows:
    stream = log.find(name)
    return [] if stream is None else _events(log, stream)


def _events(log: LogReader, stream: Stream) -> Rows:
    starts = log.bounds(stream).starts
    blocks = [block for partition, start in enumerate(starts) for block in log.read(stream, partition, start)]
    blocks.sort(key=lambda block: (block.commit, block.partition))
    return [row for block in blocks for row in dicts_of(block.batch)]


def _own(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if not name.startswith("_")}


def _ordered(shown: Shown, stream: Stream, rows: Rows) -> Rows:
    names = [field.name for field in stream.schema if field.name != OP]
    columns = [Column(field.name, schema.simple_type(field.type)) for field in stream.schema if field.name != OP]
    query = parse_query(columns, shown.key, order_by=shown.order_by, limit=None)
    places = [names.index(name) for name in shown.key]
    held = [tuple(row[name] for name in names) for row in rows]
    content = {key_of(row, places): row for row in held}
    return [dict(zip(names, row, strict=True)) for row in evaluate(query, content)]
