"""An event that alone makes a flow fail is found by halving the batch, put into `dead`, and left out of the build.

State is not touched: each part is run as a batch query into nowhere. If no event fails alone, too many do, or
all of several do, nothing is skipped: then it is the function that is wrong, not the events.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping

import msgspec
import pyarrow as pa

from penstock import schema as columns_
from penstock.declaration import ViewDef
from penstock.flows.plan import Planned, Planner, Ranges
from penstock.flows.sink import with_op
from penstock.flows.source import Feed
from penstock.log.folder_log import DEAD
from penstock.log.log import LogReader
from penstock.views.unpack import dicts_of

MOST_EVENTS = 10
MOST_SHARE = 0.01

Event = tuple[str, int, int]
"""Stream, partition, offset."""
Part = tuple[str, int, int, int]
"""Stream, partition, start, end."""


def find(planner: Planner, made: Planned, feeds: Mapping[str, Feed], ranges: Ranges) -> dict[Event, str]:
    """The events of a range that fail alone, with what Spark said; empty: skip nothing."""
    parts = [
        (name, partition, start, end)
        for name, (starts, ends) in ranges.items()
        for partition, (start, end) in enumerate(zip(starts, ends, strict=True))
        if start < end
    ]
    rows = sum(end - start for _, _, start, end in parts)
    most = max(MOST_EVENTS, int(rows * MOST_SHARE))
    found: dict[Event, str] = {}
    for part in parts:
        for event, said in _halve(lambda p: _fails(planner, made, feeds, ranges, p), part):
            found[event] = said
            if len(found) > most:
                return {}
    return {} if len(found) == rows > 1 else found


def _halve(fails: Callable[[Part], str | None], part: Part) -> Iterator[tuple[Event, str]]:
    name, partition, start, end = part
    said = fails(part)
    if said is None:
        return
    if end - start == 1:
        yield (name, partition, start), said
        return
    middle = (start + end) // 2
    yield from _halve(fails, (name, partition, start, middle))
    yield from _halve(fails, (name, partition, middle, end))


def _fails(planner: Planner, made: Planned, feeds: Mapping[str, Feed], ranges: Ranges, part: Part) -> str | None:
    """Run the function over one part of one input, the other inputs empty; what Spark said, or None."""
    name, partition, start, end = part
    narrow: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
    for other, (starts, _) in ranges.items():
        empty = tuple(0 for _ in starts)
        narrow[other] = (empty, empty)
    ends = list(narrow[name][0])
    begins = list(ends)
    begins[partition], ends[partition] = start, end
    narrow[name] = (tuple(begins), tuple(ends))
    try:
        frame = planner.batch_frame(made, feeds, narrow)
        if isinstance(made.node, ViewDef):
            frame = with_op(frame, made.node)
        frame.write.format("noop").mode("overwrite").save()
    except Exception as error:
        return str(error).strip().split("\n")[0]
    return None


def letters(
    logs: Mapping[str, LogReader], feeds: Mapping[str, Feed], flow: str, found: Mapping[Event, str], now_us: int
) -> pa.RecordBatch:
    """The poisonous events as dead letters."""
    rows = []
    for (name, partition, offset), said in found.items():
        stream = dataclasses.replace(feeds[name].stream)
        block = next(iter(logs[name].read(stream, partition, offset, offset + 1)))
        event = dicts_of(block.batch)[0]
        fields = {field: value for field, value in event.items() if not field.startswith("_")}
        rows.append(
            {
                "stream": name,
                "reason": "poison",
                "detail": said,
                "raw": msgspec.json.encode(fields),
                "sender": None,
                "flow": flow,
                columns_.TIME: now_us,
                columns_.RECEIVED: now_us,
                columns_.ID: f"{flow}/{feeds[name].origin}/{partition}/{offset}",
                columns_.KEY: event.get(columns_.KEY),
            }
        )
    return pa.RecordBatch.from_pylist(rows, schema=DEAD)
