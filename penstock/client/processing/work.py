"""The words of processing: what a handler is told of a row, a task that is open, a call that is logged.

A handler is told what differs from what it was told before:

1. What is remembered for a key is what the handler was told last, or will be once its open tasks are done.
2. A batch that was taken before, and a snapshot after a `reset`, a rebuild or a lost position, give only what really
   differs. So nothing is handed over twice, and nothing that changed meanwhile is missed.
3. With `on="upserts"` a handler is not told of deletes, so nothing is forgotten: a row that goes and comes back as it
   was is no news. With `on="changes"` it is.
4. A key that was deleted keeps its version, so that the same content later has another idempotency key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal

import msgspec

from penstock.client.view_rows import Changes, Row

Each = Literal["row", "batch"]
On = Literal["changes", "upserts"]
CallState = Literal["open", "unsent", "answered"]
"""`open`: it may have taken effect; `unsent`: it certainly has not; `answered`: it has, and the answer is logged."""


class KeyChange(msgspec.Struct, frozen=True):
    """What a handler is told of one row.

    >>> KeyChange(key={"song": "s1"}, row={"song": "s1", "amount": "2.50"}, before=None, version=1).deleted
    False
    """

    key: Row
    """The columns of the view's key."""
    row: Row | None
    """As it is now; None: it is no longer in the view."""
    before: Row | None
    """As the handler was told last; None: never, or that it was deleted."""
    version: int
    """How often the handler was told of this key, this time included."""

    @property
    def deleted(self) -> bool:
        return self.row is None


@dataclass(frozen=True, slots=True)
class ProcessorQuestion:
    """What a processor asks of its view. It belongs to what is stored: another question needs another name."""

    view: str
    key: tuple[str, ...]
    where: str | None = None
    params: Any = None
    select: tuple[str, ...] | None = None
    on: On = "changes"
    each: Each = "row"

    def text(self) -> str:
        return canonical(self)


@dataclass(frozen=True, slots=True)
class Received:
    """One batch on its way into a store."""

    changes: Changes
    received_us: int
    silent: bool = False
    """Remember the rows and hand none over."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """What a new owner of a store starts with."""

    term: int
    position: str | None
    """The position behind the newest stored batch; None: nothing was ever stored."""


@dataclass(frozen=True, slots=True)
class Task:
    """One call of the handler that is still to succeed."""

    number: int
    key: str
    """The idempotency key: the same for this task in each try, process and machine."""
    changes: tuple[KeyChange, ...]
    tries: int = 0


@dataclass(frozen=True, slots=True)
class LoggedCall:
    """One outgoing call of a task, as it stands in the log."""

    number: int
    target: str
    method: str
    payload: str
    state: CallState = "open"
    answer: str | None = None

    def same_request(self, other: LoggedCall) -> bool:
        return (self.target, self.method, self.payload) == (other.target, other.method, other.payload)


@dataclass(frozen=True, slots=True)
class FailedTask:
    """A task that was given up: it waits, and what follows for its key waits behind it, until somebody decides."""

    number: int
    key: str
    changes: tuple[KeyChange, ...]
    tries: int
    error: str


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a processor is."""

    waiting: int
    """Tasks that are stored and not done, the given up ones apart."""
    failed: int
    received: str | None
    """The position up to which batches are stored."""
    handled: str | None
    """The position up to which every task is done."""
    oldest_us: int | None
    """When the oldest batch that is not done was received, in microseconds since 1970."""

    def lag_s(self, now_us: int) -> float:
        """How long the oldest open batch has waited.

        >>> Progress(1, 0, "p2", "p1", oldest_us=1_000_000).lag_s(3_500_000)
        2.5
        """
        return 0.0 if self.oldest_us is None else max(0.0, (now_us - self.oldest_us) / 1_000_000)


def canonical(value: Any) -> str:
    """JSON in one spelling, so that equal values are equal texts.

    >>> canonical({"b": 1, "a": [None]})
    '{"a":[null],"b":1}'
    """
    return msgspec.json.encode(value, order="sorted").decode()


def idempotency_key(name: str, view: str, rows: list[tuple[str, int]]) -> str:
    """Made of what is to be done, not of the try: of the rows, and how often the handler was told of each.

    It depends on neither the position nor the number of the task, so that a store which was lost or restored from a
    copy gives a row that comes again the key that it had.
    """
    return f"{name}/{sha256(canonical([view, rows]).encode()).hexdigest()[:32]}"


LONGEST_LANE = 400
"""In characters: an index of PostgreSQL takes keys of up to 2,700 bytes."""


@dataclass(frozen=True, slots=True)
class KeyMemory:
    """What the handler was last told of one key."""

    row: str | None
    """The row as canonical JSON; None: that it was deleted."""
    version: int


@dataclass(frozen=True, slots=True)
class News:
    """One change and the key under which it is remembered."""

    lane: str
    change: KeyChange
    memory: KeyMemory


def lane_of(row: Row, key: Sequence[str]) -> str:
    """The key of a row as text, of a long one its hash: tasks of one lane keep their order.

    >>> lane_of({"song": "s1", "day": 3, "plays": 7}, ["day", "song"])
    '[3,"s1"]'
    """
    text = canonical([row[name] for name in key])
    return text if len(text) <= LONGEST_LANE else f"#{sha256(text.encode()).hexdigest()}"


def lanes(changes: Changes, key: Sequence[str]) -> list[str]:
    """The keys that a batch names."""
    return [lane_of(row, key) for row in (*changes.deletes, *changes.upserts)]


def difference(changes: Changes, memories: Mapping[str, KeyMemory], key: Sequence[str], on: On) -> list[News]:
    """What is new in a batch. `memories` are those of its keys; of every key if it is a snapshot."""
    news = list(_gone(changes, memories, key)) if on == "changes" else []
    for row in changes.upserts:
        lane, text = lane_of(row, key), canonical(row)
        before = memories.get(lane)
        if before is None or before.row != text:
            news.append(_upsert(lane, row, text, before, key))
    return news


def _gone(changes: Changes, memories: Mapping[str, KeyMemory], key: Sequence[str]) -> Iterator[News]:
    if changes.snapshot:
        present = {lane_of(row, key) for row in changes.upserts}
        missing = [lane for lane in memories if lane not in present]
    else:
        missing = [lane_of(row, key) for row in changes.deletes]
    for lane in missing:
        before = memories.get(lane)
        if before is not None and before.row is not None:
            row = _row(before)
            change = KeyChange(_key(row, key), None, row, before.version + 1)
            yield News(lane, change, KeyMemory(None, change.version))


def _upsert(lane: str, row: Row, text: str, before: KeyMemory | None, key: Sequence[str]) -> News:
    version = 1 if before is None else before.version + 1
    change = KeyChange(_key(row, key), row, None if before is None or before.row is None else _row(before), version)
    return News(lane, change, KeyMemory(text, version))


def _key(row: Row, key: Sequence[str]) -> Row:
    return {name: row[name] for name in key}


def _row(memory: KeyMemory) -> dict[str, Any]:
    assert memory.row is not None
    return msgspec.json.decode(memory.row, type=dict[str, Any])
