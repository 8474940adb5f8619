"""Joins what the ends saw of each probe with what the log knows of it, so that each tier's share of the time shows."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pyarrow.compute as pc

from bench.percentile import Spread, spread
from penstock.config import Folder
from penstock.log.builds import batch_meta
from penstock.log.folder_log import FolderLog
from penstock.log.log import LogReader

TIERS = ("accepted", "logged", "planned by Spark", "batch done", "in view", "on the wire", "painted")
"""The moments in the life of an event, in their order. `accepted`: read by the door; `logged`: its sender has the 2xx;
`planned`: Spark has fixed a batch that holds it; `in view`: the batch's commit is being written."""

Moments = Mapping[str, int]
"""By tier, microseconds since 1970; a tier that was not seen is not there."""


@dataclass(frozen=True)
class Batch:
    """One commit of the view: the offset of the stream behind it, and when it was planned, computed and written."""

    end: int
    planned_us: int
    done_us: int
    written_us: int


def moments(offset: int, accepted_us: int, batches: Sequence[Batch]) -> dict[str, int]:
    """What the log knows of one event. `batches` are in order; the first whose end lies behind the event holds it."""
    found = {"accepted": accepted_us}
    at = bisect_right([batch.end for batch in batches], offset)
    if at < len(batches):
        batch = batches[at]
        found |= {"planned by Spark": batch.planned_us, "batch done": batch.done_us, "in view": batch.written_us}
    return found


def steps(probes: Iterable[Moments]) -> dict[str, Spread]:
    """From each tier to the next that was seen: by `a -> b`, in milliseconds."""
    taken: dict[str, list[float]] = {}
    for probe in probes:
        there = [tier for tier in TIERS if tier in probe]
        for before, after in pairwise(there):
            taken.setdefault(f"{before} -> {after}", []).append((probe[after] - probe[before]) / 1000)
    order = [f"{a} -> {b}" for i, a in enumerate(TIERS) for b in TIERS[i + 1 :]]
    return {name: found for name in order if (found := spread(taken.get(name, ())))}


def between(probes: Iterable[Moments], first: str, last: str) -> Spread | None:
    """From one tier to another, in milliseconds."""
    return spread((probe[last] - probe[first]) / 1000 for probe in probes if first in probe and last in probe)


# Reading the log


def logged(folder: Folder, view: str, stream: str = "readings") -> dict[int, dict[str, int]]:
    """The moments of every probe in the log, by its number."""
    log = FolderLog(folder)
    try:
        batches = _batches(log.flows, view, stream)
        return {number: moments(offset, at, batches) for number, offset, at in _probes(log.edge, stream)}
    finally:
        log.close()


def _batches(flows: LogReader, view: str, stream: str) -> list[Batch]:
    changelog = flows.find(view)
    assert changelog is not None, f"no changelog of '{view}'"
    found = []
    for commit in flows.commits(changelog, flows.bounds(changelog).first_commit):
        meta = batch_meta(commit.meta or {})
        end = meta.end[stream][1][0]
        found.append(Batch(end, meta.planned_us or 0, meta.done_us or 0, commit.written_us))
    return found


def _probes(edge: LogReader, stream: str) -> list[tuple[int, int, int]]:
    """Number, offset and arrival of every probe of a stream with one partition."""
    found = edge.find(stream)
    assert found is not None
    probes: list[tuple[int, int, int]] = []
    for block in edge.read(found, 0, 0, columns=["probe", "_received"]):
        is_probe = pc.greater(block.batch.column(0), 0)
        numbers = block.batch.column(0).filter(is_probe).to_pylist()
        if numbers:
            offsets = block.offsets.filter(is_probe).to_pylist()
            received = block.batch.column(1).filter(is_probe).cast("int64").to_pylist()
            probes += zip(numbers, offsets, received, strict=True)
    return probes
