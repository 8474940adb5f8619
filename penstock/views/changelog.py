"""Reads a view's changelog out of the log: first the whole build, then commit after commit, always off the edge's loop.

The first commit may be a compacted one, which stands for many: its rows are taken at once and nobody can resume from
below it. Later commits keep their before-images, so that subscribers resume across a restart of the edge.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from penstock.change import DELETE, OP, Column, Key, Row
from penstock.config import Limits
from penstock.declaration import Application, Shown, TableDef
from penstock.log import control_keys
from penstock.log.builds import BatchMeta, batch_meta, build_of
from penstock.log.log import Block, Commit, LogReader, Stream
from penstock.log.retention import since_us
from penstock.schema import simple_type
from penstock.views.store import SWAP_CHANGES, Content, over_budget
from penstock.views.unpack import ops_of, rows_of

COMMITS_AT_ONCE = 64
"""Commits decoded ahead of the loop; more would only hold memory."""

_MANY_ROWS = 1_000


@dataclass(frozen=True, slots=True)
class Decoded:
    """One commit of a changelog, typed and by key."""

    number: int
    end: int
    ops: Mapping[Key, Row | None]
    meta: BatchMeta | None
    written_us: int
    merged: bool
    """It stands for several commits that compaction has merged."""


class Changelog:
    """One build of a view in the log, and how far it was read. Used by one thread at a time."""

    def __init__(
        self, definition: Shown, stream: Stream, log: LogReader, limits: Limits, shown: str | None = None
    ) -> None:
        """`shown` is the epoch in the positions that readers get, if it is another than the stream's."""
        self.stream = stream
        self._shown = shown
        self._definition = definition
        self._log = log
        self._limits = limits
        self._names = [field.name for field in stream.schema if field.name != OP]
        self._key = stream.compact_by or definition.key
        self._next = 0
        """A commit at or before the first one that was not applied: where `more` begins to look."""

    def load(self, memory: Mapping[str, Any]) -> Content:
        """The whole build as it stands now. Raises `OverBudgetError` before the memory is used up."""
        bounds = self._log.bounds(self.stream)
        columns, proof, how = _described(self._definition.name, self.stream, memory)
        content = Content(
            self._definition.name,
            self.stream.epoch,
            columns,
            self._key,
            proof,
            bounds.starts[0],
            self._limits,
            self._shown,
            how,
        )
        self._next = bounds.first_commit
        for decoded in self._decode(bounds.starts[0], self._log.commits(self.stream, self._next, bounds.next_commit)):
            _take(content, decoded)
            if len(decoded.ops) > _MANY_ROWS:
                gc.freeze()  # else the collector walks a million rows again and again, and the loop waits for it
            if content.bytes > self._limits.view_bytes:
                raise over_budget(self._definition.name, self._limits.view_bytes)
        return content

    def more(self, offset: int) -> list[Decoded]:
        """The commits behind `offset`, at most `COMMITS_AT_ONCE`. Compacted meanwhile: `PositionGoneError`.

        Only `offset`, which moves when a commit is applied, says what comes next: one that was decoded and then not
        applied, because something failed in between, comes again.
        """
        while commits := self._log.commits(self.stream, self._next, limit=COMMITS_AT_ONCE):
            if behind := [commit for commit in commits if commit.ends[0] > offset]:
                return list(self._decode(offset, behind))
            self._next = commits[-1].number + 1
        return []

    def _decode(self, offset: int, commits: list[Commit]) -> Iterator[Decoded]:
        blocks = self._blocks(offset, commits[-1].ends[0]) if commits else iter(())
        block = next(blocks, None)
        for commit in commits:
            ops: dict[Key, Row | None] = {}
            merged = False
            while block is not None and block.commit <= commit.number:
                ops.update(ops_of(block.batch, self._names, self._key))
                merged = merged or block.end - block.start > 1
                block = next(blocks, None)
            meta = batch_meta(commit.meta) if commit.meta is not None else None
            yield Decoded(commit.number, commit.ends[0], ops, meta, commit.written_us, merged)

    def _blocks(self, start: int, end: int) -> Iterator[Block]:
        return self._log.read(self.stream, 0, start, end) if start < end else iter(())


def _take(content: Content, decoded: Decoded) -> None:
    """Into a content that nobody reads yet."""
    if not content.rows and (decoded.merged or len(decoded.ops) > SWAP_CHANGES):
        content.begin(decoded.end, decoded.ops, decoded.meta)
    else:
        content.apply(content.prepare(decoded.end, decoded.ops, decoded.meta, decoded.written_us))


def _described(
    name: str, stream: Stream, memory: Mapping[str, Any]
) -> tuple[tuple[Column, ...], str | None, str | None]:
    """A build's columns, what `verify` can prove of it, and how it is kept current; from the stream alone when a newer
    build is under way."""
    stored = memory.get(control_keys.build(name))
    build = build_of(stored) if stored is not None else None
    if build is not None and build.epoch == stream.epoch:
        return build.columns, build.proof, build.how
    return tuple(Column(f.name, simple_type(f.type)) for f in stream.schema if f.name != OP), None, None


def shown_epoch(epoch: str, application: Application, view: Shown) -> str:
    """The epoch in the positions that readers get, so that nobody resumes into rows that were chosen otherwise.

    The default limit and order of a view, its `visible_where` and its channels decide which rows a subscriber holds,
    and editing them builds nothing anew. So a digest of them is part of the epoch: a position that was given on other
    terms is one of another build, and going back to old terms makes old positions good again. The epoch stays as it is
    where the app leaves nothing out of a view.
    """
    top = (view.order_by, view.limit) if view.limit is not None else None
    channels = sorted((c.name, c.where or "", c.select or ()) for c in application.channels if c.target == view.name)
    if top is None and view.visible_where is None and not channels:
        return epoch
    terms = repr((top, view.visible_where, channels))
    return f"{epoch}.{blake2b(terms.encode(), digest_size=4).hexdigest()}"


def version_at(log: LogReader, stream: Stream, table: TableDef, key: Key, at_us: int) -> Row | None:
    """The row that a table had for a key at a time: of the changes at or before it the latest, of equal ones the one
    that was written last. Called in a thread: it reads all that the log has of the table."""
    found: tuple[int, Row | None] | None = None
    for block in log.read(stream, 0, log.bounds(stream).starts[0]):
        keys = rows_of(block.batch, table.key)
        times = since_us(block, table.time)
        for place, (own, since) in enumerate(zip(keys, times, strict=True)):
            if own == key and since <= at_us and (found is None or since >= found[0]):
                row = next(iter(rows_of(block.batch.slice(place, 1), table.events.names)))
                found = since, None if block.batch.column(OP)[place].as_py() == DELETE else row
    return None if found is None else found[1]
