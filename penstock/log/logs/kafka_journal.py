"""The protocol of a journal: what its records say, and which of them count.

A journal is a sequence of records that anybody may append to, and from which nothing is ever taken back. A log's writer
appends one record for each change of the log's index: the calls of `Tables` that make it. Whoever replays the calls of
the records that *count*, in their order, has the same index.

1. A *claim* counts if its number is above those of all claims before it. It makes its writer the log's writer.
2. Any other record counts if it is of the claim that counted last, of its writer, and the next one in number.
3. Everything else is *void*, for every reader alike: what a writer sent that was replaced, a repetition, the slower of
   two claims, what a stranger wrote.
4. A writer that does not know whether its record arrived claims again, and reads up to its claim: what stands before it
   counts, and what comes later is void.
5. A *beat* changes nothing and has no number of its own: it says that the writer of the claim that counted last lives,
   or that it has ended in order. One that comes twice or late is harmless, so that nobody finds out whether it arrived.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast, get_type_hints

import msgspec
import pyarrow as pa

from penstock.errors import FolderMismatchError
from penstock.log.index.tables import Tables

FORMAT = 1
_CHANGES = (
    "claim",
    "mark_copy",
    "add_stream",
    "add_schema",
    "change_stream",
    "hide",
    "remove_stream",
    "add_commit",
    "add_block",
    "remove_below",
    "discard_below",
    "remove_blocks",
    "remove_commits",
    "begin_at",
    "merge_commits",
    "add_payload",
    "remove_payloads",
    "add_places",
    "remove_places",
    "add_garbage",
    "remove_garbage",
)
"""The methods of `Tables` that a record may call."""


class TableCall(msgspec.Struct, frozen=True, array_like=True):
    """One change of the index: a method of `Tables`, and its arguments by their names."""

    method: str
    arguments: dict[str, Any]


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """One record of a journal."""

    claim: int
    """The claim under which it was written, or which it makes."""
    number: int
    """Of the records under a claim: 1, 2, ...; 0: it is the claim itself."""
    writer: str
    """Who made the claim: a random name, another one for each opening."""
    calls: list[TableCall] = []
    format: int = FORMAT
    by: str = ""
    """The writer for people: where and what it is."""
    at_us: int = 0
    folder: str = ""
    """The writer's data folder: two writers of one folder never live at one time."""
    beat: bool = False
    left: bool = False
    """The last beat of a writer that ends in order."""


class State(msgspec.Struct, frozen=True):
    """What is known of a journal up to an offset."""

    offset: int = 0
    """Everything before it was judged."""
    claim: int = 0
    writer: str = ""
    number: int = 0
    """Of the last record that counted."""
    void: int = 0
    """Records that did not count."""
    signs: int = 0
    """Records by which a writer of its time has shown that it lives: claims and records that count, and beats."""
    by: str = ""
    """Of the claim that counted last: whose it is, for people; its data folder; and since when that writer writes."""
    folder: str = ""
    since_us: int = 0
    left: bool = False
    """It has ended in order."""

    def counts(self, record: Record | None) -> bool:
        if record is None or record.beat:
            return False
        if record.number == 0:
            return record.claim > self.claim
        return (record.claim, record.writer, record.number) == (self.claim, self.writer, self.number + 1)

    def behind(self, offset: int, record: Record | None) -> State:
        """The state when the record at this offset was judged; None: what stands there is no record of ours."""
        changed = msgspec.structs.replace
        if record is not None and self.counts(record):
            made = changed(self, offset=offset + 1, number=record.number, signs=self.signs + 1)
            return made if record.number else self._claimed(made, record)
        if record is not None and record.beat and (record.claim, record.writer) == (self.claim, self.writer):
            return changed(self, offset=offset + 1, signs=self.signs + 1, left=record.left)
        return changed(self, offset=offset + 1, void=self.void + 1)

    def _claimed(self, made: State, record: Record) -> State:
        """A writer that claims again is the same one."""
        since_us = self.since_us if record.writer == self.writer else record.at_us
        facts = {"writer": record.writer, "by": record.by, "folder": record.folder, "since_us": since_us}
        return msgspec.structs.replace(made, claim=record.claim, left=False, **facts)


class Recorder:
    """`Tables` within a transaction, which remembers what it was told to change."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self.calls: list[TableCall] = []

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._tables, name)
        if name not in _CHANGES:
            return method

        def change(*values: Any, **named: Any) -> Any:
            arguments = dict(zip(_signatures()[name], values, strict=False)) | named
            plain = {key: list(value) if isinstance(value, Iterator) else value for key, value in arguments.items()}
            self.calls.append(TableCall(name, plain))
            return method(**plain)

        return change


def recording(tables: Tables) -> tuple[Tables, list[TableCall]]:
    """The same tables, and the list that their changes are added to."""
    recorder = Recorder(tables)
    return cast(Tables, recorder), recorder.calls


def replay(record: Record, tables: Tables) -> None:
    """Make the changes of a record that counts."""
    for call in record.calls:
        types = _signatures()[call.method]
        arguments = {
            name: msgspec.convert(value, types[name], dec_hook=_decoded, strict=False)
            for name, value in call.arguments.items()
        }
        getattr(tables, call.method)(**arguments)


def encode(record: Record) -> bytes:
    return msgspec.msgpack.encode(record, enc_hook=_encoded)


def decode(data: bytes | None) -> Record | None:
    """None: it is no record of ours. Raises `FolderMismatchError` for one of a newer Penstock: to pass over it would be
    to miss a commit."""
    try:
        if _format.decode(data or b"").format > FORMAT:
            raise FolderMismatchError(
                "the journal was written by a newer Penstock", hint="run the version that wrote it, or a newer one"
            )
        return _decoder.decode(data or b"")
    except msgspec.DecodeError:
        return None


class _Format(msgspec.Struct):
    """What every record says, whatever else its format has."""

    claim: int
    writer: str
    format: int = FORMAT


_decoder = msgspec.msgpack.Decoder(Record)
_format = msgspec.msgpack.Decoder(_Format)
_types: dict[str, dict[str, Any]] = {}


def _signatures() -> dict[str, dict[str, Any]]:
    """Of each change, the types of its arguments by their names, in their order."""
    if not _types:
        for name in _CHANGES:
            hints = get_type_hints(getattr(Tables, name))
            hints.pop("return")
            _types[name] = hints
    return _types


def _encoded(value: Any) -> Any:
    if isinstance(value, pa.Schema):
        return bytes(value.serialize())
    if isinstance(value, pa.Buffer):
        return value.to_pybytes()
    raise NotImplementedError(f"{type(value).__name__} in a record of a journal")


def _decoded(kind: Any, value: Any) -> Any:
    if kind is pa.Schema:
        return pa.ipc.read_schema(pa.py_buffer(value))
    if kind is pa.Buffer:
        return pa.py_buffer(value)
    raise NotImplementedError(f"{kind} in a record of a journal")
