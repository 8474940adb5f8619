"""Writes appends together with the numbers that they change: one commit, and the numbers taken back when it fails.

The log may ask an append more than once what it wants remembered, before it writes or gives up; only the last answer
counts. Only the log takes numbers back, in its own thread before its next commit: a caller that has gone does not know
whether its commit was made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from penstock.collect.counts import Counts
from penstock.log.log import Append, Appended, Producer, Stream

T = TypeVar("T")
Remember = Callable[[Appended, "Tally"], Mapping[str, Any]]


class Group(Protocol):
    """What joins the appends of many callers into commits on the writer's thread: `penstock.log.group.GroupCommit`."""

    def append(self, appends: Sequence[Append]) -> asyncio.Future[list[Appended | Exception]]: ...

    def submit(
        self, appends: Sequence[Append], remember: Mapping[str, Any | None] | None = None
    ) -> Future[list[Appended | Exception]]: ...

    def run(self, work: Callable[[], T]) -> Future[T]: ...


class Tally:
    """What one append counts."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._added: list[tuple[str, dict[str, int]]] = []

    def add(self, stream: str, **more: int) -> dict[str, Any]:
        """Count (`duplicates`, `dead`, `shed`, ...), and return what the commit must remember of it."""
        self._added.append((stream, more))
        return self._counts.add(stream, **more)

    def take_back(self) -> None:
        while self._added:
            stream, more = self._added.pop()
            self._counts.add(stream, **{name: -number for name, number in more.items()})


@dataclass(frozen=True, slots=True)
class Counted:
    """An append that counts: its tally is asked inside the commit, and taken back by the log if there is none."""

    append: Append

    @staticmethod
    def make(
        stream: Stream,
        batch: pa.RecordBatch,
        counts: Counts,
        remember: Remember,
        producer: Producer | None = None,
        *,
        follows: bool = False,
    ) -> Counted:
        """`remember` is called in the writer's thread, inside the commit."""
        tally = Tally(counts)

        def noted(appended: Appended) -> Mapping[str, Any]:
            tally.take_back()
            return remember(appended, tally)

        append = Append(stream, batch, producer=producer, remember=noted, undo=tally.take_back, follows=follows)
        return Counted(append)


def write(group: Group, appends: Sequence[Counted]) -> Awaitable[Appended]:
    """All of them in one commit, on their way when this returns. Awaited it is durable, and gives what became of the
    first; the first error is raised."""
    return _first(group.append([counted.append for counted in appends]))


async def _first(written: asyncio.Future[list[Appended | Exception]]) -> Appended:
    for result in (results := await written):
        if isinstance(result, Exception):
            raise result
    first = results[0]
    assert isinstance(first, Appended)
    return first
