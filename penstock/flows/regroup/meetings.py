"""Finds how far the inputs of regrouped views may be read, so that those that meet are read at one position.

Two folded views of one stream meet in a view that reads both, directly or through others. Each commits by itself, and
each commit says how far it has absorbed the streams. What reads both is right only at commits that say the same.

1. A step reads inputs that meet up to the newest commits at which they have absorbed the same events (`newest_level`),
   not to their ends. `cuts.py` sees to it that there are such commits.
2. A view is computed only where all that it reads stands at one position (`Meetings.level`); else its units wait.
3. An input that commits nothing for a while is not waited for: the others go on, for the views that do not need it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from penstock.log.builds import batch_meta
from penstock.log.log import LogReader, Stream

_COMMITS = 2_000
"""How many commits of a stream are looked back upon: what is further behind has a build to catch up with."""
_PATIENCE_S = 5.0
"""How long inputs wait for another one that they meet: as long as a view has for a step."""

Inputs = Mapping[str, Collection[str]]
"""What each flow and view reads; what is none of them comes through the door."""
Place = tuple[str, tuple[int, ...]] | None
"""Epoch and offsets of a stream; None: its beginning, in any epoch."""
Frontier = Mapping[str, Place]
"""How far each of the door's streams and tables was absorbed."""


@dataclass(frozen=True)
class Standing:
    """A place of an input, and what was absorbed there."""

    ends: tuple[int, ...]
    frontier: Frontier


def newest_level(standings: Mapping[str, Sequence[Standing]]) -> dict[str, Standing] | None:
    """The newest standing of each input such that all have absorbed the same of what they have in common; None: there
    is none. Standings are given oldest first.

    Whatever is level has absorbed no more of a stream than the slowest of the newest standings. So all go back to
    that, and then to the slowest of those, until nothing is ahead of anything: no level standing was passed over.
    """
    chosen = {name: len(some) - 1 for name, some in standings.items()}
    while min(chosen.values(), default=-1) >= 0:
        frontiers = [standings[name][at].frontier for name, at in chosen.items()]
        least = {root: min(_length(f[root]) for f in frontiers if root in f) for f in frontiers for root in f}
        ahead = [
            name
            for name, at in chosen.items()
            if any(_length(place) > least[root] for root, place in standings[name][at].frontier.items())
        ]
        if not ahead:
            found = {name: standings[name][at] for name, at in chosen.items()}
            return found if _agree([standing.frontier for standing in found.values()]) else None
        for name in ahead:
            chosen[name] -= 1
    return None


def _length(place: Place) -> int:
    """Positions of one epoch at commits are ordered, so that their sums are."""
    return 0 if place is None else sum(place[1])


def _agree(frontiers: Sequence[Frontier]) -> bool:
    return all(a[root] == b[root] for a, b in combinations(frontiers, 2) for root in a.keys() & b.keys())


# Who meets whom


def sources_of(name: str, inputs: Inputs, regrouped: Collection[str]) -> frozenset[str]:
    """What a regrouped view is made from that is none, through all regrouped views between."""
    found = (sources_of(i, inputs, regrouped) if i in regrouped else frozenset([i]) for i in inputs[name])
    return frozenset().union(*found)


def roots_of(name: str, inputs: Inputs) -> frozenset[str]:
    """The door's streams and tables behind an input."""
    return frozenset().union(*(roots_of(i, inputs) for i in inputs[name])) if name in inputs else frozenset([name])


def groups_of(inputs: Inputs, regrouped: Collection[str]) -> list[frozenset[str]]:
    """Inputs of regrouped views that some of them read together and that have a stream in common."""
    groups: list[frozenset[str]] = []
    for view in regrouped:
        for pair in combinations(sorted(sources_of(view, inputs, regrouped)), 2):
            if roots_of(pair[0], inputs) & roots_of(pair[1], inputs):
                met = [group for group in groups if group & set(pair)]
                groups = [group for group in groups if group not in met] + [frozenset(pair).union(*met)]
    return groups


def shared_cuts(inputs: Inputs, regrouped: Collection[str]) -> dict[str, frozenset[str]]:
    """For flows and folded views that lead to one meeting: the streams that their batches must cut alike."""
    shared: dict[str, frozenset[str]] = {}
    for group in groups_of(inputs, regrouped):
        readers: dict[str, set[str]] = {}
        for name in frozenset().union(*(_above(source, inputs) for source in group)):
            for stream in inputs[name]:
                readers.setdefault(stream, set()).add(name)
        for stream, names in readers.items():
            for name in names if len(names) > 1 else ():
                shared[name] = shared.get(name, frozenset()) | {stream}
    return shared


def _above(name: str, inputs: Inputs) -> frozenset[str]:
    """An input and the flows that it is made from."""
    if name not in inputs:
        return frozenset()
    return frozenset([name]).union(*(_above(i, inputs) for i in inputs[name]))


# How far they may be read


class Meetings:
    """The inputs that meet, as they commit. Used by the thread of the steps."""

    def __init__(self, inputs: Inputs, regrouped: Collection[str], log: LogReader) -> None:
        self.inputs = inputs
        self._log = log
        self.groups = groups_of(inputs, regrouped)
        self._trails: dict[tuple[str, str], _Trail] = {}
        self._ends: dict[str, tuple[float, object]] = {}
        """Of each input since when it ends where it ends."""
        self._stuck: dict[frozenset[str], float] = {}
        """Groups with news that cannot be taken, and since when."""
        self._again_s: float | None = None

    def due(self, now_s: float) -> bool:
        """Whether somebody has waited long enough, although nothing was committed."""
        return self._again_s is not None and now_s >= self._again_s

    def targets(
        self,
        streams: Mapping[str, Stream | None],
        reached: Callable[[str], Place],
        ends: Mapping[str, tuple[int, ...]],
        now_s: float,
    ) -> dict[str, tuple[int, ...]]:
        """Up to where each input of a group is read now; one that is not named stays where it is."""
        self._again_s = None
        targets: dict[str, tuple[int, ...]] = {}
        for group in self.groups:
            targets |= self._targets(group, streams, {name: reached(name) for name in group}, ends, now_s)
        return targets

    def _targets(
        self,
        group: frozenset[str],
        streams: Mapping[str, Stream | None],
        reached: Mapping[str, Place],
        ends: Mapping[str, tuple[int, ...]],
        now_s: float,
    ) -> dict[str, tuple[int, ...]]:
        known = {n: self._since(n, streams[n], reached[n], ends) for n in group if n in self.inputs}
        door = {n: _within(n, reached[n], ends.get(n, ()), known) for n in group if n not in self.inputs}
        found = newest_level(known | door)
        here = {name: (s.epoch, ends[name]) for name in group if (s := streams[name]) is not None}
        moved_s = [self._moved_s(name, here.get(name), now_s) for name in group]
        if found is not None and (here == reached or any(_of(reached[n]) != s.ends for n, s in found.items())):
            self._stuck.pop(group, None)
            return {name: standing.ends for name, standing in found.items()}
        patient_until = max(self._stuck.setdefault(group, now_s), min(moved_s)) + _PATIENCE_S
        if now_s >= patient_until:
            return {name: ends[name] for name in here}
        self._again_s = patient_until if self._again_s is None else min(patient_until, self._again_s)
        return {}

    def _moved_s(self, name: str, end: object, now_s: float) -> float:
        """When an input last committed anything."""
        since, before = self._ends.get(name, (now_s, end))
        self._ends[name] = (since if before == end else now_s, end)
        return self._ends[name][0]

    def level(self, positions: Mapping[str, Place]) -> bool:
        """Whether inputs that stand at these places have absorbed the same of what they have in common."""
        for group in self.groups:
            met = {name: self._at(name, place) for name, place in positions.items() if name in group}
            if len(met) > 1 and newest_level(met) is None:
                return False
        return True

    # Standings

    def _since(
        self, name: str, stream: Stream | None, reached: Place, ends: Mapping[str, tuple[int, ...]]
    ) -> list[Standing]:
        """Those of an input from where it was read last, oldest first; of another build all."""
        if stream is None:
            return []
        start = _length(reached) if reached is not None and reached[0] == stream.epoch else 0
        if stream.counts == "commits":  # those that are merged cannot be read in part
            start = max(start, self._log.bounds(stream).first_commit + 1)
        if not any(ends[name]):
            return [Standing(ends[name], dict.fromkeys(roots_of(name, self.inputs)))]
        found = [at for at in self._trail(stream).metas if start <= sum(at) <= sum(ends[name])]
        return [s for at in found for s in self._at(name, (stream.epoch, at))]

    def _at(self, name: str, place: Place) -> list[Standing]:
        """What was absorbed at one place of an input: more than one answer where a flow between had nothing to say."""
        if place is None:
            return []
        return [Standing(place[1], frontier) for frontier in self._behind(name, place)]

    def _behind(self, name: str, place: tuple[str, tuple[int, ...]]) -> list[Frontier]:
        epoch, ends = place
        if name not in self.inputs:
            return [{name: place if any(ends) else None}]
        stream = self._log.find(name, epoch)
        metas = self._trail(stream).metas.get(ends, ()) if stream is not None and stream.epoch == epoch else ()
        found = [frontier for end in metas for frontier in self._absorbed(end)]
        if not any(ends):
            found.insert(0, dict.fromkeys(roots_of(name, self.inputs)))
        return found

    def _absorbed(self, end: Mapping[str, tuple[str, tuple[int, ...]]]) -> list[Frontier]:
        """Through flows to the door. Of several ways to one stream the slowest counts."""
        found: list[Frontier] = [{}]
        for name, place in end.items():
            found = [_slowest(a, b) for a in found for b in self._behind(name, place)]
        return found

    def _trail(self, stream: Stream) -> _Trail:
        known = self._trails.get((stream.name, stream.epoch))
        if known is None:
            known = self._trails[stream.name, stream.epoch] = _Trail(self._log, stream)
        known.follow()
        return known


def _within(name: str, reached: Place, end: tuple[int, ...], known: Mapping[str, Sequence[Standing]]) -> list[Standing]:
    """A stream that is read beside views of it can be read up to any place that they stand at."""
    places = {standing.frontier.get(name) for some in known.values() for standing in some}
    fit = sorted((p for p in places if p and _length(reached) <= _length(p) <= sum(end)), key=_length)
    return [Standing(place[1], {name: place}) for place in fit]


def _of(place: Place) -> tuple[int, ...] | None:
    return None if place is None else place[1]


def _slowest(a: Frontier, b: Frontier) -> Frontier:
    slower = {root: min(a[root], b[root], key=_length) for root in a.keys() & b.keys()}
    return {**a, **b, **slower}


class _Trail:
    """What the newest commits of a stream have absorbed of its inputs, by where each ends."""

    def __init__(self, log: LogReader, stream: Stream) -> None:
        self._log = log
        self._stream = stream
        bounds = log.bounds(stream)
        self._next = max(bounds.first_commit, bounds.next_commit - _COMMITS)
        self.metas: dict[tuple[int, ...], list[Mapping[str, tuple[str, tuple[int, ...]]]]] = {}
        """Oldest first; a flow's commits without events end at one place."""

    def follow(self) -> None:
        if self._log.bounds(self._stream).next_commit <= self._next:
            return
        for commit in self._log.commits(self._stream, self._next):
            end = batch_meta(commit.meta).end if commit.meta else {}
            self.metas.setdefault(commit.ends, []).append({n: (p[0], tuple(p[1])) for n, p in end.items()})
            self._next = commit.number + 1
        while len(self.metas) > _COMMITS:
            del self.metas[next(iter(self.metas))]
