"""The ledger `late`: what the log's rule calls late for a flow, written in the batch's own commit and taken once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock import schema as columns_
from penstock.flows.source import Feed, late_mask
from penstock.log.folder_log import LATE
from penstock.log.log import Commit, LogReader
from penstock.protocol import wire
from penstock.views.unpack import dicts_of


def late_events(log: LogReader, feed: Feed, flow: str, start: int, end: int, now_us: int) -> pa.RecordBatch | None:
    """The late events of a stream in the commits [start, end), as rows of the ledger; None: there are none."""
    if feed.late_after_us is None:
        return None
    rows: list[dict[str, Any]] = []
    before = log.last_commit(feed.stream, start)
    starts = before.ends if before else log.bounds(feed.stream).starts
    for commit in log.commits(feed.stream, start, end):
        if commit.min_us is not None and commit.min_us < feed.earliest_us(commit, closed=True):
            rows += _rows(log, feed, flow, starts, commit, now_us)
        starts = commit.ends
    return pa.RecordBatch.from_pylist(rows, schema=LATE) if rows else None


def _rows(
    log: LogReader,
    feed: Feed,
    flow: str,
    starts: tuple[int, ...],
    commit: Commit,
    now_us: int,
) -> Iterator[dict[str, Any]]:
    for partition, (start, end) in enumerate(zip(starts, commit.ends, strict=True)):
        if start == end:
            continue
        for block in log.read(feed.stream, partition, start, end):
            mask = late_mask(feed, block, closed=True)
            if mask is None:
                continue
            offsets, lost = block.offsets.filter(mask).to_pylist(), late_mask(feed, block)
            corrected = [True] * len(offsets) if lost is None else pc.invert(lost).filter(mask).to_pylist()
            for offset, event, taken in zip(offsets, dicts_of(block.batch.filter(mask)), corrected, strict=True):
                yield _row(feed, flow, partition, offset, event, commit.bound_us, now_us) | {"corrected": taken}


def _row(
    feed: Feed, flow: str, partition: int, offset: int, event: dict[str, Any], bound_us: int | None, now_us: int
) -> dict[str, Any]:
    offsets = [0] * feed.stream.partitions
    offsets[partition] = offset
    fields = {name: wire(value) for name, value in event.items() if not name.startswith("_")}
    return {
        "flow": flow,
        "stream": feed.stream.name,
        "position": feed.stream.position(offsets).token(),
        "bound": bound_us,
        "event": msgspec.json.encode(fields).decode(),
        columns_.TIME: event[columns_.TIME],
        columns_.RECEIVED: now_us,
        columns_.ID: f"{flow}/{feed.origin}/{partition}/{offset}",
        columns_.KEY: event.get(columns_.KEY),
    }
