"""Turns what a log holds into records for other programs: events as `GET /streams` shows them, rows by their keys.

A *source* is asked again and again for what comes behind a position, and answers with the records of one transaction.
Nothing is remembered here: the position is read from the topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.change import DELETE, OP
from penstock.declaration import Application, Shown
from penstock.errors import PositionGoneError
from penstock.log import control_keys
from penstock.log.folder_log import FolderLog
from penstock.log.log import LogReader, Stream
from penstock.log.topic import TopicRow
from penstock.position import Position
from penstock.protocol import encode, wire
from penstock.schema import ID, KEY, RECEIVED, TIME
from penstock.views.changelog import shown_epoch
from penstock.views.unpack import rows_of

EVENTS_AT_ONCE = 2_000
_SYSTEM = (ID, KEY, TIME, RECEIVED)


@dataclass(frozen=True)
class Portion:
    """What is published at once, and the position behind it."""

    rows: Sequence[TopicRow]
    position: str


class TopicSource(Protocol):
    """What a topic is made from."""

    @property
    def partitions(self) -> int: ...

    def newest(self, positions: Sequence[str]) -> str | None:
        """Of the positions in the last records of a topic, the one behind all that was published."""

    def after(self, position: str | None) -> Portion | None:
        """The next portion; None: nothing is new. Raises `PositionGoneError` when the log cannot go on from there."""

    def anew(self, content: Callable[[], Mapping[bytes, bytes]]) -> Portion | None:
        """What to publish where the log cannot go on; `content` reads what the topic holds."""


class EventSource:
    """The events of a stream, in commit order."""

    def __init__(self, application: Application, name: str, partitions: int, log: FolderLog) -> None:
        self.partitions = partitions
        self._name, self._log = name, log
        self._source = f"/{application.name}/{name}"
        self._type = f"{application.name}.{name}"

    def newest(self, positions: Sequence[str]) -> str | None:
        """Of one epoch the one that covers most; a build that was replaced has no say."""
        parsed = [Position.parse(token) for token in positions]
        ours = [p for p in parsed if p.epoch == self._log.find(self._name).epoch] or parsed
        return max(ours, key=lambda p: sum(p.offsets)).token() if ours else None

    def after(self, position: str | None) -> Portion | None:
        stream = self._log.find(self._name)
        begin = Position.parse(position) if position else stream.position(stream.bounds().starts)
        blocks, behind = self._log.read_after(self._name, begin, EVENTS_AT_ONCE)
        rows: list[TopicRow] = []
        offsets = list(begin.offsets)
        for block in blocks:
            names = block.batch.schema.names
            for row, offset in zip(rows_of(block.batch, names), block.offsets.to_pylist(), strict=True):
                offsets[block.partition] = offset + 1
                at = Position("stream", behind.name, behind.epoch, tuple(offsets)).token()
                rows.append(self._row(dict(zip(names, row, strict=True)), block.partition, offset, at))
        return Portion(rows, behind.token()) if rows else None

    def anew(self, content: Callable[[], Mapping[bytes, bytes]]) -> Portion | None:
        """From what is left of the stream, or the first event of a build that has replaced another."""
        return self.after(None)

    def _row(self, event: Mapping[str, Any], partition: int, offset: int, position: str) -> TopicRow:
        order = [*(n for n in _SYSTEM if n in event), *(n for n in event if n not in _SYSTEM)]
        value = {"_position": position} | {name: wire(event[name]) for name in order}
        key, time = event.get(KEY), event.get(TIME)
        headers = [
            ("content-type", "application/json"),
            ("ce_specversion", "1.0"),
            ("ce_id", event.get(ID) or f"{self._name}/{partition}/{offset}"),
            ("ce_source", self._source),
            ("ce_type", self._type),
            *([("ce_time", str(wire(time)))] if time is not None else ()),
        ]
        return TopicRow(partition, None if key is None else key.encode(), encode(value), position, headers)


class RowSource:
    """The rows of a view or table: a batch is a portion, a delete is a tombstone."""

    partitions = 1

    def __init__(self, application: Application, shown: Shown, log: LogReader, *, made: bool) -> None:
        """`made`: by a flow, so that one of its builds is served."""
        self._application, self._shown, self._log, self._made = application, shown, log, made

    def newest(self, positions: Sequence[str]) -> str | None:
        return positions[0] if positions else None

    def after(self, position: str | None) -> Portion | None:
        stream = self._stream()
        if stream is None:
            return None
        begin = None if position is None else Position.parse(position)
        if begin is None or begin.epoch != self._epoch(stream):
            raise PositionGoneError(f"another build of '{stream.name}' is served now")
        return self._portion(stream, begin.offsets[0])

    def _portion(self, stream: Stream, offset: int) -> Portion | None:
        """The next commit that changes anything."""
        end = self._log.bounds(stream).ends[0]
        while offset < end:
            blocks = list(self._log.read(stream, 0, offset, offset + 1))
            at = self._position(stream, offset + 1)
            rows = [row for block in blocks for row in self._rows(stream, block.batch, at)]
            if rows:
                return Portion(rows, at)
            offset += 1
        return None

    def anew(self, content: Callable[[], Mapping[bytes, bytes]]) -> Portion | None:
        """What differs between the rows as they are now and the topic."""
        stream = self._stream()
        if stream is None:
            return None
        end = self._log.bounds(stream).ends[0]
        at = self._position(stream, end)
        now: dict[bytes, bytes] = {}
        for block in self._log.read(stream, 0, self._log.bounds(stream).starts[0], end):
            for row in self._rows(stream, block.batch, at):
                assert row.key is not None
                if row.value is None:
                    now.pop(row.key, None)
                else:
                    now[row.key] = row.value
        there = content()
        gone = [TopicRow(0, key, None, at) for key in there if key not in now]
        changed = [TopicRow(0, key, value, at) for key, value in now.items() if there.get(key) != value]
        return Portion([*gone, *changed], at)

    def _stream(self) -> Stream | None:
        name = self._shown.name
        if not self._made:
            return self._log.find(name)
        live = self._log.memory().get(control_keys.live(name))
        return self._log.find(name, live) if live else None

    def _epoch(self, stream: Stream) -> str:
        return shown_epoch(stream.epoch, self._application, self._shown)

    def _position(self, stream: Stream, offset: int) -> str:
        return Position("view", stream.name, self._epoch(stream), (offset,)).token()

    def _rows(self, stream: Stream, batch: Any, position: str) -> Iterator[TopicRow]:
        names = [field.name for field in stream.schema if field.name != OP]
        key = stream.compact_by or self._shown.key
        keys = [encode({n: wire(v) for n, v in zip(key, row, strict=True)}) for row in rows_of(batch, key)]
        codes = batch.column(OP).to_pylist()
        for own, code, row in zip(keys, codes, rows_of(batch, names), strict=True):
            value = None if code == DELETE else encode({n: wire(v) for n, v in zip(names, row, strict=True)})
            yield TopicRow(0, own, value, position)
