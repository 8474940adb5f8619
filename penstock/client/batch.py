"""What is sent together under one number, and what its sender is told of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Numbered:
    """A batch as it is remembered: its number, and which events of the queue it holds.

    The events of a number never change, except that it may be made smaller as long as no try of it can have been
    taken. That is what makes a repeat safe.
    """

    epoch: int
    sequence: int
    first: int
    last: int
    doubtful: bool = False
    """Whether a try may have been taken whose answer did not come."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A numbered batch with its events, one line of JSON each."""

    number: Numbered
    lines: Sequence[bytes]

    def body(self) -> bytes:
        return b"".join(line + b"\n" for line in self.lines)


@dataclass(frozen=True, slots=True)
class Receipt:
    """What the server said of the request that an event was in.

    `ack` is its token, for `GET /views/{view}?after=<ack>`; empty in the rare case that nobody can tell it any more.
    `repeated`: the request had been taken before and its answer was lost; which of its events were rejected is then
    only known in the stream `dead`. `shed`: how many events of the request an overloaded server dropped by its
    declared rule.
    """

    ack: str
    repeated: bool = False
    shed: int = 0
