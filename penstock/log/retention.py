"""Decides how far a stream may be trimmed, so that retention never makes a number unprovable in silence.

What is older than the declared age, or beyond the declared size, may go, but only below the *floor*: the commit below
which every flow has absorbed everything. Retention waits for the floor until the stream is larger than a maximum;
then it goes on regardless, and says so.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.change import DELETE, OP
from penstock.declaration import Retention
from penstock.log.log import Block, Bounds, Commit, Log, LogReader, Stream

COMMITS_AT_ONCE = 1000
"""Oldest commits looked at in one decision."""
_PATIENCE = 2
"""How many times its declared size a stream may reach while it waits for the flows."""
WHOLE_US = 600_000_000
WHOLE_BYTES = 64 * 1024**2
"""What compaction leaves of a changelog: the newest ten minutes, and at least this much."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Decision:
    """Commits below `before` may go. `overrun`: some of them had not been absorbed by every flow."""

    before: int
    overrun: bool = False


def decide(
    retention: Retention,
    bounds: Bounds,
    oldest: Sequence[Commit],
    floor: int | None,
    now_us: int,
    most_bytes: int | None = None,
) -> Decision:
    """How far to trim. `oldest` are the stream's first commits, in order; `floor` None: no flow reads the stream.

    `most_bytes` is the size up to which the floor is waited for: twice the declared size unless given, without bound
    where only an age is declared.
    """
    wanted = max(_by_age(retention, oldest, now_us), _by_size(retention, bounds, oldest))
    wanted = min(wanted, bounds.next_commit - 1)
    if floor is None or wanted <= floor:
        return Decision(max(wanted, bounds.first_commit))
    most = most_bytes if most_bytes is not None else _most(retention)
    forced = bounds.first_commit if most is None else _below_size(bounds, oldest, most)
    return Decision(max(bounds.first_commit, floor, min(forced, wanted)), overrun=min(forced, wanted) > floor)


def _most(retention: Retention) -> int | None:
    return None if retention.bytes is None else retention.bytes * _PATIENCE


def _by_age(retention: Retention, oldest: Sequence[Commit], now_us: int) -> int:
    """The first commit that is young enough."""
    if retention.age_us is None or not oldest:
        return 0
    for commit in oldest:
        if commit.written_us >= now_us - retention.age_us:
            return commit.number
    return oldest[-1].number + 1


def _by_size(retention: Retention, bounds: Bounds, oldest: Sequence[Commit]) -> int:
    return 0 if retention.bytes is None else _below_size(bounds, oldest, retention.bytes)


def _below_size(bounds: Bounds, oldest: Sequence[Commit], most: int) -> int:
    """The first commit from which on the stream holds at most `most` bytes."""
    size = bounds.bytes
    for commit in oldest:
        if size <= most:
            return commit.number
        size -= commit.bytes
    return oldest[-1].number + 1 if oldest else bounds.first_commit


def retaining(
    log: Log, stream: Stream, retention: Retention, floor: int | None, now_us: int, most_bytes: int | None = None
) -> Iterator[int]:
    """Trim as far as `decide` says, one slice at each step; gives the rows that went."""
    while True:
        bounds = log.bounds(stream)
        oldest = log.commits(stream, bounds.first_commit, limit=COMMITS_AT_ONCE)
        decision = decide(retention, bounds, oldest, floor, now_us, most_bytes)
        if decision.before <= bounds.first_commit:
            return
        if decision.overrun:
            _log.warning(
                "the stream '%s' is so large that events are removed which not every flow has absorbed: "
                "commits %d to %d",
                stream.name,
                max(bounds.first_commit, floor or 0),
                decision.before - 1,
            )
        yield from log.trimming(stream, decision.before)


def compact_before(log: LogReader, changelog: Stream, now_us: int, whole_bytes: int = WHOLE_BYTES) -> int | None:
    """The commit below which the changelog of a view or table may be merged: when that removes at least half of it."""
    bounds = log.bounds(changelog)
    commits = bounds.next_commit - bounds.first_commit
    if bounds.bytes < 2 * whole_bytes or commits < 100:
        return None
    spare = 1 - whole_bytes / bounds.bytes
    before = bounds.first_commit + int(commits * spare)
    last = log.last_commit(changelog, before)
    return before if last is not None and last.written_us < now_us - WHOLE_US else None


def replaced_versions(log: LogReader, changelog: Stream, before: int, time: str | None, horizon_us: int) -> bool:
    """Whether compaction below a commit takes only versions of rows that no time after `horizon_us` asks for.

    It keeps what was written last of each key. So that must be the version of the latest time too, and hold since
    before the horizon. A row holds from its field `time` on, in milliseconds or as a timestamp, a delete from when it
    was written; without `time` all do.
    """
    latest: dict[tuple[Any, ...], int] = {}
    newest: dict[tuple[Any, ...], int] = {}
    last = log.last_commit(changelog, before)
    if last is None or last.written_us > horizon_us:
        return False
    columns = [*changelog.compact_by, OP, *([] if time is None else [time])]
    for block in log.read(changelog, 0, log.bounds(changelog).starts[0], last.ends[0], columns):
        keys = zip(*(block.batch.column(name).to_pylist() for name in changelog.compact_by), strict=True)
        for key, since in zip(keys, since_us(block, time), strict=True):
            newest[key], latest[key] = since, max(since, latest.get(key, since))
    return all(newest[key] == since <= horizon_us for key, since in latest.items())


def since_us(block: Block, time: str | None) -> list[int]:
    """From when on each row of a block holds."""
    rows = block.batch.num_rows
    if time is None:
        return [block.written_us] * rows
    kind = block.batch.schema.field(time).type
    scale = 1 if pa.types.is_timestamp(kind) else 1000
    times = block.batch.column(time).cast(pa.int64()).to_pylist()
    ops = block.batch.column(OP).to_pylist()
    return [block.written_us if op == DELETE or at is None else at * scale for op, at in zip(ops, times, strict=True)]
