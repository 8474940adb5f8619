"""Writes `flows.db` as the flows process does, so that views can be tested without Spark."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from penstock.app import App
from penstock.change import DELETE, OP, UPSERT, Column
from penstock.event import Event
from penstock.log.builds import BatchMeta, Build, FlowState
from penstock.log.log import Append, Stream, StreamSpec
from penstock.log.opening import open_log
from penstock.schema import simple_type, stored_schema

TOPICS = pa.schema([("topic", pa.string()), ("rsvps", pa.int64()), ("group", pa.string())])


class Rsvp(Event):
    topic: str
    n: int = 1


def small_app() -> App:
    """rsvps -> topics (a view); rsvps -> yes (a flow) -> countries (a view); others -> elsewhere (a view)."""
    app = App("small")
    app.stream("rsvps", Rsvp, key="topic")
    app.stream("others", Rsvp)

    @app.view(key="topic", order_by="-rsvps")
    def topics(rsvps: Any) -> Any:
        """Topics with the most RSVPs."""

    @app.flow
    def yes(rsvps: Any) -> Any:
        """Only the yes."""

    @app.view(key="topic")
    def countries(yes: Any) -> Any: ...

    @app.view(key=["topic", "group"])
    def elsewhere(others: Any) -> Any: ...

    return app


BATCH_US = 250_000
"""How long Spark is said to have taken for each batch whose events have a time."""


class FakeFlows:
    """The writer of `flows.db`."""

    def __init__(self, place: str, app: str = "small") -> None:
        self.log = open_log(place, app=app)
        self._batch = 0

    def close(self) -> None:
        self.log.close()

    def build(
        self,
        name: str = "topics",
        schema: pa.Schema = TOPICS,
        key: Sequence[str] = ("topic",),
        epoch: str | None = None,
        live: bool = True,
    ) -> Stream:
        """Begin a build of a view, and serve it."""
        changelog = schema.append(pa.field(OP, pa.int8()))
        spec = StreamSpec(name, changelog, counts="commits", compact_by=tuple(key), epoch=epoch or secrets.token_hex(6))
        stream = self.log.create(spec)
        columns = tuple(Column(field.name, simple_type(field.type)) for field in schema)
        build = Build(epoch=stream.epoch, fingerprint="f", kind="view", columns=columns, proof="exact", started_us=0)
        self.log.append([], {f"build/{name}": msgspec.to_builtins(build)})
        if live:
            self.serve(name, stream.epoch)
        return stream

    def serve(self, name: str, epoch: str) -> None:
        self.log.append([], {f"live/{name}": epoch, f"flow/{name}": {"state": "running"}})

    def state(self, name: str, state: str, error: Mapping[str, Any] | None = None, run: str = "") -> None:
        made = FlowState(state=state, error=dict(error) if error else None, run=run)  # type: ignore[arg-type]
        self.log.append([], {f"flow/{name}": msgspec.to_builtins(made)})

    def flow(self, name: str = "yes") -> Stream:
        """Make a flow's stream."""
        schema = stored_schema([pa.field("topic", pa.string())])
        return self.log.create(StreamSpec(name, schema))

    def commit(
        self,
        stream: Stream,
        upserts: Sequence[Mapping[str, Any]] = (),
        deletes: Sequence[Mapping[str, Any]] = (),
        end: Mapping[str, Any] | None = None,
        accepted_us: int | None = None,
    ) -> int:
        """One batch into a changelog; returns the offset behind it. `end`: `{"rsvps": [epoch, [offsets]]}`."""
        rows = [{**row, OP: UPSERT} for row in upserts] + [{**row, OP: DELETE} for row in deletes]
        batch = pa.RecordBatch.from_pylist(rows, schema=stream.schema)
        return self.append(stream, batch, end, accepted_us)

    def step(self, upserts: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        """One commit of several changelogs, as regrouped views make it."""
        streams = {name: found for name in upserts if (found := self.log.find(name)) is not None}
        places = {name: (stream.epoch, self.log.bounds(stream).ends[0] + 1) for name, stream in streams.items()}
        self._batch += 1
        meta = msgspec.to_builtins(BatchMeta(batch=self._batch, start={}, end={}, step=places))
        rows = {name: [{**row, OP: UPSERT} for row in some] for name, some in upserts.items()}
        batches = {name: pa.RecordBatch.from_pylist(rows[name], stream.schema) for name, stream in streams.items()}
        appends = [Append(stream, batches[name], meta=meta) for name, stream in streams.items()]
        self.log.append(appends)

    def emit(self, stream: Stream, topics: Sequence[str], end: Mapping[str, Any]) -> int:
        """One batch into a flow's stream."""
        return self.append(
            stream, pa.RecordBatch.from_pylist([{"topic": t} for t in topics], schema=stream.schema), end
        )

    def append(
        self,
        stream: Stream,
        batch: pa.RecordBatch,
        end: Mapping[str, Any] | None = None,
        accepted_us: int | None = None,
    ) -> int:
        self._batch += 1
        done_us = None if accepted_us is None else accepted_us + BATCH_US
        times = {"accepted_us": accepted_us, "planned_us": accepted_us, "done_us": done_us}
        meta = BatchMeta(batch=self._batch, start={}, end=dict(end or {}), **times)
        made = self.log.append([Append(stream, batch, meta=msgspec.to_builtins(meta))])[0]
        assert not isinstance(made, Exception), made
        return made.position.offsets[0]


def topic(name: str, rsvps: int, group: str = "g") -> dict[str, Any]:
    return {"topic": name, "rsvps": rsvps, "group": group}
