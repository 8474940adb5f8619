"""Encodes what subscribers get once, however many of them there are, in the forms that their transports need.

A message is JSON bytes. A socket's frame has the subscription's id spliced in front; subscribers that chose the same
id share that frame too, and compressed frames of all ids share one compression. A Server-Sent Event carries the
position as its id, but only where a client may resume from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock import protocol
from penstock.change import Key, Row
from penstock.clock import rfc3339
from penstock.log.builds import BatchMeta
from penstock.protocol import encode, wire, wire_int
from penstock.sockets.frames import deflate, deflated_frame, text_frame
from penstock.views.history import Batch
from penstock.views.read_query import Query
from penstock.views.where.sql_types import SqlType, parse_type

LARGE_BYTES = 64 * 1024
"""A message above this is compressed in a thread: on the loop it would take over 1 ms."""
_SHARED_FRAMES = 16
"""Frames kept per message: clients mostly count their subscriptions from the same beginning."""
DEFLATE_BYTES = 256
"""Smaller messages are not compressed: they would hardly shrink."""
_KNOWN_OBJECTS = 2_000
_AS_THEY_ARE = frozenset({"string", "boolean", "tinyint", "smallint", "int", "float", "double"})
"""Types whose values go into JSON unchanged; the encoder itself writes NaN and the infinities as null."""


class Message:
    """One message, encoded once. `end` is the offset behind it; `position` is None where nobody may resume."""

    __slots__ = ("_deflated", "_sse", "end", "frames", "kind", "payload", "position", "whole")

    def __init__(self, body: protocol.Message, end: int, *, resumable: bool = True, whole: bool = True) -> None:
        self._begin(body["type"], encode(body), body.get("position") if resumable else None, end, whole)

    @classmethod
    def of_json(cls, kind: str, payload: bytes, position: str, end: int) -> Message:
        """One that was encoded already."""
        message = cls.__new__(cls)
        message._begin(kind, payload, position, end, True)
        return message

    def _begin(self, kind: str, payload: bytes, position: str | None, end: int, whole: bool) -> None:
        self.kind = kind
        self.end = end
        self.position = position
        self.payload = payload
        self.whole = whole
        """The client has something that stands alone once it has this: not so for a reset or the part of a snapshot."""
        self._sse: bytes | None = None
        self._deflated: bytes | None = None
        self.frames: dict[tuple[str | None, bool], bytes] = {}

    def sse(self) -> bytes:
        if self._sse is None:
            event = None if self.kind == "position" else self.kind
            position = "" if self.kind == "reset" else self.position  # an EventSource forgets the one that is gone
            self._sse = sse_frame(event, self.payload, position)
        return self._sse

    def socket(self, id: str | None, deflated: bool = False) -> bytes:
        """The frame for a socket; `deflated` if that client takes compressed ones."""
        return self.frame((id, deflated))

    def frame(self, form: tuple[str | None, bool]) -> bytes:
        """The same, by the pair of both: what is asked for each subscriber makes no new one."""
        frame = self.frames.get(form)
        if frame is None:
            (id, deflated), payload = form, self.payload
            plain = not deflated or len(payload) < DEFLATE_BYTES
            front = with_id(id)
            frame = text_frame(front, payload[1:]) if plain else deflated_frame(front, self.deflated())
            if len(self.frames) < _SHARED_FRAMES:
                self.frames[form] = frame
        return frame

    def deflated(self) -> bytes:
        """All but the opening brace, compressed, once for all; may be called in a thread beforehand."""
        if self._deflated is None:
            self._deflated = deflate(self.payload[1:])
        return self._deflated


class Joined(Message):
    """Several messages that follow each other, for connections: their frames in one piece."""

    __slots__ = ("_run",)

    def __init__(self, run: Sequence[Message]) -> None:
        self._run = run
        self._begin(run[-1].kind, b"", run[-1].position, run[-1].end, True)

    def sse(self) -> bytes:
        if self._sse is None:
            self._sse = b"".join([message.sse() for message in self._run])
        return self._sse

    def frame(self, form: tuple[str | None, bool]) -> bytes:
        frames = self.frames.get(form)
        if frames is None:
            frames = b"".join([message.frame(form) for message in self._run])
            if len(self.frames) < _SHARED_FRAMES:
                self.frames[form] = frames
        return frames


def with_id(id: str | None) -> bytes:
    """The beginning of a message's JSON object, up to its first field of its own.

    >>> with_id("s1") + b'"type":"reset"}'
    b'{"id":"s1","type":"reset"}'
    """
    return b"{" if id is None else b'{"id":%b,' % encode(id)


def sse_frame(event: str | None, data: bytes, position: str | None) -> bytes:
    """A Server-Sent Event; without an event an `id:` block that only moves the position.

    An empty position is written too: the client then has none, and comes back without. None leaves it what it has.

    >>> sse_frame("reset", b"{}", "")
    b'1c\\r\\nid: \\nevent: reset\\ndata: {}\\n\\n\\r\\n'
    """
    lines = b"id: %b\n" % position.encode() if position is not None else b""
    if event is not None:
        lines += b"event: %b\ndata: %b\n" % (event.encode(), data)
    return chunk(lines + b"\n")


def chunk(data: bytes) -> bytes:
    """HTTP/1.1 chunked framing."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class RowCodec:
    """Turns the rows and keys of one query into JSON objects."""

    def __init__(self, query: Query) -> None:
        self._names = [column.name for column in query.output]
        self._convert = [
            (column.name, self._converter(column.type)) for column in query.output if column.type not in _AS_THEY_ARE
        ]
        types = {column.name: column.type for column in query.columns}
        self._key = [(name, parse_type(types[name])) for name in query.key]
        self._project = query.project
        self._objects: dict[int, tuple[Any, Any]] = {}
        self._moments: dict[Any, str] = {}

    def row(self, row: Row) -> dict[str, Any]:
        made = dict(zip(self._names, row, strict=True))
        for name, convert in self._convert:
            value = made[name]
            if value is not None:
                made[name] = convert(value)
        return made

    def _converter(self, kind: str) -> Callable[[Any], Any]:
        if kind == "timestamp":
            return self._moment
        if kind == "bigint":
            return wire_int
        return self._object if kind.startswith("struct<") else wire

    def _moment(self, value: Any) -> str:
        """The rows of a batch mostly share their moments: each is written out once while it is in use."""
        known = self._moments.get(value)
        if known is None:
            if len(self._moments) >= _KNOWN_OBJECTS:
                self._moments.clear()
            known = self._moments[value] = wire(value)
        return known

    def _object(self, value: Any) -> Any:
        """Windows are few and shared by many rows: each is converted once while it is in use."""
        known = self._objects.get(id(value))
        if known is not None and known[0] is value:
            return known[1]
        if len(self._objects) >= _KNOWN_OBJECTS:
            self._objects.clear()
        converted = wire(value)
        self._objects[id(value)] = (value, converted)
        return converted

    def json(self, row: Row) -> bytes:
        """A row of the view as it is, not projected."""
        return encode(self.row(self._project(row)))

    def objects(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        """Rows of the view as they are, not projected."""
        return [self.row(self._project(row)) for row in rows]

    def rows(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        row = self.row
        return [row(r) for r in rows]

    def corrected(self, rows: Sequence[Mapping[str, Any]], meta: BatchMeta | None) -> list[dict[str, Any]]:
        """The keys of those among rows, as objects, that late events have changed after their windows had closed."""
        if meta is None or not meta.corrected:
            return []
        known = set(map(encode, meta.corrected))
        keys = [{name: row[name] for name, _ in self._key} for row in rows]
        return [key for key in keys if encode(key) in known]

    def key(self, key: Key) -> dict[str, Any]:
        """A delete: an object of the key's columns."""
        return {name: wire(thawed(value, kind)) for (name, kind), value in zip(self._key, key, strict=True)}


def thawed(value: Any, kind: SqlType) -> Any:
    """The reverse of `frozen`: a key's value as it stands in a row."""
    if value is None:
        return None
    if kind.kind == "struct":
        return {n: thawed(v, k) for n, v, k in zip(kind.names, value, kind.args, strict=True)}
    if kind.kind == "array":
        return [thawed(item, kind.args[0]) for item in value]
    return value


class BatchJson:
    """One batch on its way to many queries: each row becomes JSON once for all that select the same columns."""

    def __init__(self, view: str, position: str, batch: Batch) -> None:
        self._position, self._end, self._meta = position, batch.end, batch.meta
        whole = encode(protocol.changes(view, position, [], [], _accepted(batch.meta), (), complete_of(batch.meta)))
        self._head, _, rest = whole.partition(b'"upserts":[]')
        self._head += b'"upserts":['
        self._tail = rest.partition(b'"deletes":[]')[2]
        self._rows: dict[RowCodec, dict[int, tuple[Row, bytes]]] = {}
        self._keys: dict[Key, bytes] = {}
        self._messages: dict[Any, tuple[Sequence[Row], Message]] = {}
        """By codec, rows (by identity, which holds because they are kept) and keys."""

    def changes(self, codec: RowCodec, upserts: Sequence[Row], deletes: Sequence[Key]) -> Message:
        """The message of a query whose rows `codec` encodes; the rows are the view's own, not projected.

        Queries that differ but are told the same share it.
        """
        rows = id(upserts[0]) if len(upserts) == 1 else tuple(map(id, upserts))
        told = (codec, rows, tuple(deletes)) if deletes else (codec, rows)
        known = self._messages.get(told)
        if known is None:
            known = self._messages[told] = (upserts, self._message(codec, upserts, deletes))
        return known[1]

    def _message(self, codec: RowCodec, upserts: Sequence[Row], deletes: Sequence[Key]) -> Message:
        made = self._rows.get(codec)
        if made is None:
            made = self._rows[codec] = {}
        encoded = []
        for row in upserts:
            known = made.get(id(row))
            if known is None or known[0] is not row:
                known = made[id(row)] = (row, codec.json(row))
            encoded.append(known[1])
        keys = b",".join([self._key(codec, key) for key in deletes]) if deletes else b""
        rows = encoded[0] if len(encoded) == 1 else b",".join(encoded)
        payload = b'%b%b],"deletes":[%b]%b' % (self._head, rows, keys, self._tail)
        if (
            self._meta is not None
            and self._meta.corrected
            and (late := codec.corrected(codec.objects(upserts), self._meta))
        ):
            payload = b'%b,"corrected":%b}' % (payload[:-1], encode(late))
        return Message.of_json("changes", payload, self._position, self._end)

    def _key(self, codec: RowCodec, key: Key) -> bytes:
        known = self._keys.get(key)
        if known is None:
            known = self._keys[key] = encode(codec.key(key))
        return known


def _accepted(meta: BatchMeta | None) -> str | None:
    return None if meta is None or meta.accepted_us is None else rfc3339(meta.accepted_us)


def complete_of(meta: BatchMeta | None) -> str | None:
    """The time before which nothing comes to a view any more at the end of a batch."""
    return None if meta is None or meta.complete_us is None else rfc3339(meta.complete_us)


class MessageMaker:
    """Makes the messages of one query on one build of a view."""

    def __init__(self, view: str, codec: RowCodec, tokens: Callable[[int], str]) -> None:
        """`tokens` gives the position token of an offset."""
        self._view = view
        self._token = tokens
        self.codec = codec

    def changes(self, upserts: Sequence[Row], deletes: Sequence[Key], end: int, meta: BatchMeta | None) -> Message:
        gone, rows = [self.codec.key(key) for key in deletes], self.codec.rows(upserts)
        late = self.codec.corrected(rows, meta)
        told = (_accepted(meta), late, complete_of(meta))
        return Message(protocol.changes(self._view, self._token(end), rows, gone, *told), end)

    def snapshot(
        self, rows: Sequence[Any], end: int, part: int = 1, parts: int = 1, complete: str | None = None
    ) -> Message:
        last = part == parts
        body = protocol.snapshot(self._view, self._token(end), rows, part, parts, complete)
        return Message(body, end, resumable=last, whole=last)


def position_moved(position: str, end: int, complete: str | None = None) -> Message:
    """Batches have passed that changed nothing for whoever gets it."""
    return Message(protocol.position_moved(position, complete), end)


def reset(reason: str) -> Message:
    return Message(protocol.reset(reason), 0, resumable=False, whole=False)


def subscribed(position: str) -> Message:
    """The filter of an open subscription was changed: what follows is of the new one."""
    return Message(protocol.subscribed(position), 0)


def stall(behind: Mapping[str, Any]) -> Message:
    return Message(protocol.stall(behind), 0, resumable=False, whole=False)


def error(body: Mapping[str, Any]) -> Message:
    return Message(protocol.error(body), 0, resumable=False)
