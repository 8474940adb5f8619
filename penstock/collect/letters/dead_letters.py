"""Turns rejections into events of the stream `dead`, so that what was not taken can be seen and sent again."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import pyarrow as pa

from penstock.clock import Clock
from penstock.collect.counts import counted
from penstock.collect.judging.rejection import Rejection
from penstock.collect.sender import Sender
from penstock.log.group_commit import GroupCommit, first_taken
from penstock.log.log import Append, Producer, Share, Stream
from penstock.schema import ID, KEY, RECEIVED, SENT, TIME, TIMESTAMP

RAW_BYTES = 1024**2
"""A dead letter keeps this much of what was sent: enough for any event within the limits, and a bound for the rest."""


@dataclass(frozen=True, slots=True)
class Letter:
    """One rejection and whose it was. With a producer it has an id, so that a retried request leaves it once; so has
    one that a pull may meet again (`once`)."""

    stream: str
    rejection: Rejection
    sender: Sender
    producer: Producer | None = None
    once: bool = False

    @property
    def id(self) -> str | None:
        if self.once:
            content = hashlib.blake2b(self.rejection.raw, digest_size=16).hexdigest()
            return f"{self.stream}/{self.sender}/{self.rejection.reason}/{content}"
        if self.producer is None:
            return None
        sender = self.producer
        return f"{self.stream}/{sender.id}/{sender.epoch}/{sender.sequence}/{self.rejection.index}"


def dead_batch(letters: Sequence[Letter], now_us: int, schema: pa.Schema) -> pa.RecordBatch:
    """The letters under the schema of `dead`."""
    now = pa.array([now_us] * len(letters), TIMESTAMP)
    columns = {
        "stream": [letter.stream for letter in letters],
        "reason": [letter.rejection.reason for letter in letters],
        "detail": [letter.rejection.detail for letter in letters],
        "raw": [letter.rejection.raw[:RAW_BYTES] for letter in letters],
        "sender": [str(letter.sender) or None for letter in letters],
        "flow": [None] * len(letters),
        SENT: [letter.sender.sent_us for letter in letters],
        TIME: now,
        RECEIVED: now,
        ID: [letter.id for letter in letters],
        KEY: [None] * len(letters),
    }
    return pa.RecordBatch.from_arrays([pa.array(columns[field.name], field.type) for field in schema], schema=schema)


class DeadLedger:
    """The stream `dead` of this process."""

    def __init__(self, stream: Stream, group: GroupCommit, clock: Clock) -> None:
        self._stream, self._group, self._clock = stream, group, clock

    def append(self, letters: Sequence[Letter], *, follows: bool = False) -> Append:
        """To be written; `follows` as in `Append`."""
        rows: dict[str, list[int]] = {}
        for row, letter in enumerate(letters):
            rows.setdefault(letter.stream, []).append(row)
        counts = (counted(stream, dead=Share("accepted", tuple(theirs))) for stream, theirs in rows.items())
        batch = dead_batch(letters, self._clock.now_us(), self._stream.schema)
        return Append(self._stream, batch, follows=follows, counts=tuple(chain(*counts)))

    async def keep(self, letters: Sequence[Letter], sets: Mapping[str, Any | None] | None = None) -> None:
        """With these keys of the control stream; durable on return."""
        await first_taken(self._group.append([replace(self.append(letters), sets=sets or {})]))
