"""A data folder with a door and running flows, in one process: what the flow tests play with."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession

from penstock import App
from penstock.change import OP, UPSERT
from penstock.clock import SystemClock
from penstock.collect.collection import stream_spec
from penstock.collect.tables.row_changes import RowJudge
from penstock.config import Folder, Limits
from penstock.declaration import Application, StreamDef, ViewDef
from penstock.flows import flow_run
from penstock.flows.plan import Planner
from penstock.flows.runner import Runner
from penstock.flows.sink import latest_by_key
from penstock.flows.verify import Report, Verifier
from penstock.log.builds import batch_meta
from penstock.log.group_commit import GroupCommit
from penstock.log.log import Append, Stream, StreamSpec
from penstock.log.opening import open_log, open_reader


class World:
    """One app on one folder. `door` writes events, `flows` runs them until they are level."""

    def __init__(self, spark: SparkSession, root: Path, app: App, log: str | None = None) -> None:
        self.spark = spark
        self.folder = Folder(root, log)
        self.runs = 0
        self.dropped = 0
        """Rows that Spark's watermark dropped: the log has left out what is late, so there are none."""
        root.mkdir(parents=True, exist_ok=True)
        self._flows, self._edge = open_reader(self.folder.flows_log), open_reader(self.folder.edge_log)
        self.use(app)

    def close(self) -> None:
        self._flows.close()
        self._edge.close()

    def use(self, app: App) -> None:
        """Go on with another version of the app file."""
        self.app: Application = app.declared()
        with self.door() as log:
            for stream in self.app.streams:
                log.create(_spec(stream))
            for table in self.app.tables:
                log.create(StreamSpec(table.name, table.stored, counts="commits", compact_by=table.key))

    def door(self) -> _Closing:
        """The door's own log, as long as it is open."""
        return _Closing(open_log(self.folder.edge_log, app=self.app.name))

    def send(self, stream: str, commits: Iterable[Sequence[Any]]) -> None:
        """Append events, one commit for each group of them."""
        declared = self.app.stream(stream)
        assert declared is not None
        with self.door() as log:
            target = log.create(_spec(declared))
            for events in commits:
                log.append([Append(target, batch_of(declared, events))])

    def tick(self, stream: str, complete_us: int) -> None:
        """A commit without events that says how far the stream is complete."""
        declared = self.app.stream(stream)
        assert declared is not None
        with self.door() as log:
            log.append([Append(log.create(_spec(declared)), batch_of(declared, []), complete_us=complete_us)])

    def change(self, table: str, commits: Iterable[Sequence[Any]]) -> None:
        """Set rows of a table, and delete those of keys, given as tuples; one commit for each group of them."""
        declared = self.app.table(table)
        assert declared is not None
        judge = RowJudge(declared, Limits())
        with self.door() as log:
            target = log.create(StreamSpec(table, declared.stored, counts="commits", compact_by=declared.key))
            for group in commits:
                parts = [
                    judge.deleted([row]).batch
                    if isinstance(row, tuple)
                    else judge.many(msgspec.json.encode(row), "json").batch
                    for row in group
                ]
                log.append([Append(target, pa.concat_batches(parts))])

    def run(self, until: Callable[[], bool] | None = None, timeout_s: float = 240.0, max_rows: int = 500_000) -> None:
        """Run the flows until they have absorbed everything, or until a condition holds."""
        stop = threading.Event()
        self.runs += 1
        log = open_log(self.folder.flows_log, app=self.app.name)
        edge = open_reader(self.folder.edge_log)
        group = GroupCommit(log)
        planner = Planner(self.spark, self.app, self.folder)
        runner = Runner(planner, log, group, edge, SystemClock(), stop, run=f"run {self.runs}")
        failures: list[BaseException] = []
        before, flow_run.MAX_ROWS = flow_run.MAX_ROWS, max_rows
        thread = threading.Thread(target=_keeping, args=(runner.run, failures))
        thread.start()
        try:
            deadline = time.monotonic() + timeout_s
            while not (until or self.level)() and not failures:
                assert time.monotonic() < deadline, f"not level in {timeout_s} s: {self.memory()}"
                time.sleep(0.05)
        finally:
            self.dropped += dropped_by_watermark(self.spark)
            stop.set()
            thread.join()
            flow_run.MAX_ROWS = before
            group.close()
            log.close()
            edge.close()
        if failures:
            raise failures[0]

    # Looking

    def memory(self) -> dict[str, Any]:
        return dict(self._flows.memory())

    def stream(self, name: str, *, live: bool = True) -> Stream | None:
        return self._flows.find(name, self._flows.memory().get(f"live/{name}") if live else None)

    def level(self) -> bool:
        """Whether each flow's live build has absorbed all of its input."""
        return all(self._is_level(node.name) for node in self.app.nodes)

    def _is_level(self, name: str) -> bool:
        """A view may read hidden views, which only its commits name."""
        flows, edge = self._flows, self._edge
        state = flows.memory().get(f"flow/{name}", {})
        if state.get("run") != f"run {self.runs}" or state["state"] not in ("running", "rebuilding"):
            return False
        epoch = flows.memory().get(f"live/{name}")
        build = flows.memory().get(f"build/{name}")
        output = flows.find(name, epoch) if epoch and build and build["epoch"] == epoch else None
        last = flows.last_commit(output) if output else None
        if last is None or last.meta is None:
            return False
        for source, (source_epoch, offsets) in batch_meta(last.meta).end.items():
            outside = any(entry.name == source for entry in self.app.entries)
            log = edge if outside else flows
            stream = log.find(source, source_epoch)
            if stream is None or list(log.bounds(stream).ends) != offsets:
                return False
            if not outside and not self._is_level(source):
                return False
        return True

    def rows(self, view: str) -> list[dict[str, Any]]:
        """What a view holds."""
        node = self.app.view(view)
        assert isinstance(node, ViewDef)
        output = self.stream(view)
        assert output is not None
        table = pa.Table.from_batches([b.batch for b in self._flows.read(output, 0, 0)], schema=output.schema)
        table = latest_by_key(table, node.key)
        return [{k: v for k, v in r.items() if k != OP} for r in table.to_pylist() if r[OP] == UPSERT]

    def ends(self, name: str) -> tuple[int, ...]:
        """The offsets behind all that the door has taken."""
        stream = self._edge.find(name)
        assert stream is not None
        return self._edge.bounds(stream).ends

    def events(self, name: str) -> list[dict[str, Any]]:
        """What a flow's stream or a ledger holds."""
        output = self.stream(name)
        assert output is not None
        return [row for block in self._flows.read(output, 0, 0) for row in block.batch.to_pylist()]

    def verify(self, *, units: int | None = None, deep: bool = False) -> dict[str, Report]:
        planner = Planner(self.spark, self.app, self.folder)
        planned, problems = planner.plan_all()
        assert not [p for p in problems if p.level == "error"], problems
        verifier = Verifier(planner, self._edge, self._flows, planned if deep else {}, units)
        return {name: verifier.report(made) for name, made in planned.items()}


def dropped_by_watermark(spark: SparkSession) -> int:
    progress = [p for query in spark.streams.active for p in query.recentProgress]
    return sum(state["numRowsDroppedByWatermark"] for p in progress for state in p["stateOperators"])


def _spec(declared: StreamDef) -> StreamSpec:
    """As the door makes it, but without the metadata of its class."""
    return replace(stream_spec(declared), schema=declared.stored)


def batch_of(declared: Any, events: Sequence[Any]) -> pa.RecordBatch:
    """Events as the door would store them, received at the time they happened."""
    times = pa.array([getattr(e, declared.time) * 1000 for e in events], pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    ids = ["/".join(str(getattr(e, f)) for f in declared.id) if declared.id else None for e in events]
    keys = ["/".join(str(getattr(e, f)) for f in declared.key) if declared.key else None for e in events]
    columns = [*declared.events.columns(events), times, times, pa.array(ids, pa.string()), pa.array(keys, pa.string())]
    return pa.RecordBatch.from_arrays(columns, schema=declared.stored)


class _Closing:
    def __init__(self, log: Any) -> None:
        self.log = log

    def __enter__(self) -> Any:
        return self.log

    def __exit__(self, *_: object) -> None:
        self.log.close()


def _keeping(run: Callable[[], None], failures: list[BaseException]) -> None:
    try:
        run()
    except BaseException as error:
        failures.append(error)
