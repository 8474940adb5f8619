"""Tests of what a log promises when the power fails: what was acknowledged is whole, the rest is all or nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from penstock.log.log import Append, Appended, Log, LogReader, OutcomeKey, Producer, StreamSpec
from penstock.testing.contracts import log_child
from penstock.testing.contracts.log_backends import LogBackend, needs
from penstock.testing.contracts.log_events import CHANGELOG, SCHEMA, LogFixtures, changes, content, events

_STEPS = 40
_CUTS = 50
_SEED = 20_27
UNIQUE = StreamSpec("unique", SCHEMA, partitions=2, unique=True)


@dataclass(frozen=True)
class Held:
    """All that a log holds, as far as its promises go."""

    numbers: tuple[tuple[int, ...], ...]
    words: dict[str, int]
    memory: dict[str, Any]


@dataclass(frozen=True)
class Moment:
    """What was stored when something was acknowledged, and what the log held then."""

    copy: str
    held: Held
    single: bool
    """It was one commit since the moment before, and nothing else."""


def held(log: LogReader) -> Held:
    """Reads everything, so that every checksum is verified and every gap is found."""
    unique, words = log.find(UNIQUE.name), log.find(CHANGELOG.name)
    assert unique is not None
    assert words is not None
    bounds = log.bounds(unique)
    numbers = []
    for partition, end in enumerate(bounds.ends):
        blocks = list(log.read(unique, partition, 0)) if end else []
        assert [at for block in blocks for at in block.offsets.to_pylist()] == list(range(end)), "offsets are dense"
        numbers.append(tuple(n for block in blocks for n in block.batch.column("n").to_pylist()))
    rows = content(log.read(words, 0, 0)) if log.bounds(words).ends[0] else {}
    return Held(tuple(numbers), rows, dict(log.memory()))


def step(log: Log, number: int, rows: int) -> list[Appended | Exception]:
    """One commit into two streams: events with ids, the number of a producer, a key, and changes."""
    unique, words = log.find(UNIQUE.name), log.find(CHANGELOG.name)
    assert unique is not None
    assert words is not None
    batch = events(range(number * 1000, number * 1000 + rows))
    counted = Append(unique, batch, producer=Producer("p", 0, number), outcomes=(OutcomeKey("at", {}),))
    changed = Append(words, changes(log_child.step(number)), meta={"number": number})
    return log.append([counted, changed], {"step": number})


def written(backend: LogBackend, fresh: Callable[[], str], chance: Random, *, hurried: bool) -> Iterator[Moment]:
    """Fill a log step by step; a moment after each."""
    place = fresh()

    def moment(log: Log, *, single: bool) -> Moment:
        copy = fresh()
        backend.copy(place, copy)
        return Moment(copy, held(log), single)

    with closing(backend.open(place)) as log:
        log.create(UNIQUE)
        words = log.create(CHANGELOG)
        if hurried:
            backend.hurry(log)
        yield moment(log, single=False)
        for number in range(_STEPS):
            step(log, number, chance.choice([1, 3, 40, 900]))
            yield moment(log, single=True)
            if hurried and chance.random() < 0.15:
                log.compact(words, number)
                list(log.tidying())
                yield moment(log, single=False)


def goes_on(log: Log, found: Held, chance: Random) -> None:
    """Ids and producers are those of the events that are there, and writing goes on behind them."""
    unique = log.find(UNIQUE.name)
    assert unique is not None
    known = [n for partition in found.numbers for n in partition]
    if known:
        again = chance.sample(known, min(len(known), 50))
        (result,) = log.append([Append(unique, events(again))])
        assert isinstance(result, Appended)
        assert (result.accepted, len(result.duplicates)) == (0, len(again))
    last = found.memory.get("step", -1)
    if last >= 0:
        assert getattr(step(log, last, 1)[0], "repeated", False), "the producer's last number was taken before"
    result = step(log, last + 1, 7)[0]
    assert isinstance(result, Appended), result
    assert (result.accepted, result.repeated) == (7, False)
    assert sum(map(len, held(log).numbers)) == len(known) + 7


class PowerCut(LogFixtures):
    """Copies of a log's files, damaged as a power cut damages them, and opened again."""

    @needs("power cuts")
    @pytest.mark.parametrize("seed", range(3))
    def test_a_power_cut_leaves_what_was_acknowledged_and_all_or_nothing_of_the_rest(
        self, backend: LogBackend, fresh: Callable[[], str], seed: int
    ) -> None:
        chance = Random(_SEED + seed)
        moments = list(written(backend, fresh, chance, hurried=True))
        pairs = [pair for pair in pairwise(moments) if pair[1].single]
        outcomes = set()
        for cut in range(_CUTS):
            before, after = chance.choice(pairs)
            left = fresh()
            backend.cut_between(before.copy, after.copy, left, chance)
            with closing(backend.open(left)) as log:
                found = held(log)
                assert found in (before.held, after.held), f"seed {_SEED + seed}, cut {cut}"
                outcomes.add(found == after.held)
                goes_on(log, found, chance)
        assert outcomes == {True, False}, "the cuts were of both kinds"

    @needs("power cuts")
    def test_a_log_whose_end_was_lost_at_any_byte_holds_every_commit_before_it(
        self, backend: LogBackend, fresh: Callable[[], str]
    ) -> None:
        chance = Random(_SEED)
        moments = list(written(backend, fresh, chance, hurried=False))
        ends = [backend.tail_bytes(moment.copy) for moment in moments]
        assert ends == sorted(set(ends)), "each commit is behind the one before"
        edges = [end + by for end in chance.sample(ends[1:-1], 8) for by in (-1, 0, 1)]
        for at in [*edges, *(chance.randrange(ends[0], ends[-1]) for _ in range(_CUTS))]:
            left = fresh()
            backend.cut_tail(moments[-1].copy, left, at, chance)
            covered = max(number for number, end in enumerate(ends) if end <= at)
            with closing(backend.open(left)) as log:
                found = held(log)
                assert found == moments[covered].held, f"seed {_SEED}, cut at {at}: {covered} commits were whole"
                goes_on(log, found, chance)
