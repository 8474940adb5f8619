"""Composes what a view has absorbed of the door's streams through the flows between, for reading one's own writes.

A view's newest commit says how far it has read its direct inputs. An input that is a flow's stream was itself made
from inputs: the newest commit of that stream that lies wholly within what the view has read says how far. A flow's
commit without events counts like any other, so an event that an earlier flow left out is absorbed too.

1. A frontier never claims too much: an unknown epoch, a removed commit or an input without commits leaves the streams
   behind it out.
2. Several paths to one stream: the slowest counts.
3. It only moves forward within a build.

Called by the thread that follows `flows.db`; reads only the log.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.declaration import Application
from penstock.log.builds import BatchMeta, batch_meta
from penstock.log.log import Commit, LogReader, Stream
from penstock.position import Frontier, Position


class FrontierComposer:
    """Remembers, for each reader of a flow's stream, the commit that it has wholly read, so that a step is one look."""

    def __init__(self, application: Application, log: LogReader) -> None:
        self._application = application
        self._log = log
        self._reached: dict[tuple[str, str, str], Commit] = {}

    def compose(self, reader: str, meta: BatchMeta | None) -> Frontier:
        """The positions of the door's streams that `reader` (a view, or `view/flow/...` on the way) has absorbed."""
        if meta is None:
            return {}
        paths = [self._through(f"{reader}/{name}", name, position) for name, position in meta.frontier.items()]
        missing = {root for roots, frontier in paths for root in roots if root not in frontier}
        merged: dict[str, Position] = {}
        for _, frontier in paths:
            for root, position in frontier.items():
                lower = _lower(merged.get(root, position), position)
                if lower is None:
                    missing.add(root)
                else:
                    merged[root] = lower
        return {root: position for root, position in merged.items() if root not in missing}

    def _through(self, path: str, name: str, position: Position) -> tuple[frozenset[str], Frontier]:
        """The roots behind one input, and what was absorbed of them."""
        if self._application.stream(name) is not None:
            return frozenset([name]), {name: position}
        if self._application.table(name) is not None:
            return frozenset([name]), {name: replace(position, kind="view")}
        commit = self._newest_within(path, name, position)
        meta = batch_meta(commit.meta) if commit is not None and commit.meta is not None else None
        return self._application.roots(name), self.compose(path, meta)

    def _newest_within(self, path: str, name: str, position: Position) -> Commit | None:
        """The newest commit of the flow's stream whose every event the reader has read."""
        stream = self._log.find(name, position.epoch)
        if stream is None or stream.epoch != position.epoch:
            return None
        place = (path, name, position.epoch)
        start = self._reached.get(place)
        if start is not None and not _within(start, position):
            start = None
        newest = self._search(stream, start, position)
        if newest is not None:
            self._reached[place] = newest
        return newest

    def _search(self, stream: Stream, start: Commit | None, position: Position) -> Commit | None:
        """Gallop forward from a commit that is within, then halve: ends only grow along a stream."""
        low, step = start, 1
        high = self._log.bounds(stream).next_commit
        at = start.number + 1 if start is not None else None
        while (commit := self._at(stream, at)) is not None and _within(commit, position):
            low, at, step = commit, commit.number + step, step * 2
        if commit is not None:
            high = commit.number
        while low is not None and low.number + 1 < high:
            middle = self._at(stream, (low.number + high) // 2)
            if middle is None or middle.number >= high or not _within(middle, position):
                high = (low.number + high) // 2
            else:
                low = middle
        return low

    def _at(self, stream: Stream, number: int | None) -> Commit | None:
        """The first commit numbered `number` or more (None: the first there is)."""
        start = self._log.bounds(stream).first_commit if number is None else number
        return next(iter(self._log.commits(stream, start, limit=1)), None)


def _within(commit: Commit, position: Position) -> bool:
    return len(commit.ends) == len(position.offsets) and all(
        end <= offset for end, offset in zip(commit.ends, position.offsets, strict=True)
    )


def _lower(a: Position, b: Position) -> Position | None:
    """The partition-wise minimum; None when they cannot be compared."""
    if a.epoch != b.epoch or len(a.offsets) != len(b.offsets):
        return None
    return Position(a.kind, a.name, a.epoch, tuple(map(min, a.offsets, b.offsets)))
