"""Writes appends together with the numbers that they change: one commit, and the numbers taken back when it fails.

The log may ask an append more than once what it wants remembered, before it writes or gives up; only the last answer
counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
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

    async def append(self, append: Append) -> Appended: ...

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
    """An append and its tally."""

    append: Append
    tally: Tally

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

        return Counted(Append(stream, batch, producer=producer, remember=noted, follows=follows), tally)


async def write(group: Group, appends: Sequence[Counted]) -> list[Appended]:
    """All of them in one commit, durable on return; the first error is raised."""
    try:
        if len(appends) == 1:
            return [await group.append(appends[0].append)]
        results = await asyncio.wrap_future(group.submit([counted.append for counted in appends]))
    except BaseException:
        for counted in appends:
            counted.tally.take_back()
        raise
    return [_unwrapped(result, counted) for result, counted in zip(results, appends, strict=True)]


def _unwrapped(result: Appended | Exception, counted: Counted) -> Appended:
    if isinstance(result, Exception):
        counted.tally.take_back()
        raise result
    return result
