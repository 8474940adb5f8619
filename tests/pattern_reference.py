"""A second way to find the matches of a pattern: all ways to give events to steps are tried, each judged by itself.

It shares nothing with the matcher: conditions are Python, and what a match is stands here as rules on a whole one.
`make patterns SEEDS=2000` compares both over generated patterns and streams.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from penstock.patterns import AfterMatch, Pattern, PatternStep

Row = dict[str, Any]
Taken = dict[str, Row]
Condition = Callable[[Row, Taken], bool]


@dataclass(frozen=True)
class Case:
    """A pattern in SQL, the same conditions in Python, and events: time in microseconds and a value."""

    pattern: Pattern
    conditions: dict[str, Condition]
    events: list[tuple[int, int]]
    within: int
    after: AfterMatch


Choice = list[list[int]]
"""By step that takes events, the numbers of its events."""


def matches(case: Case, complete: int | None) -> list[Choice]:
    """The matches in their order, after those were left out that `after_match` lets go."""
    found = [choice for choice in _choices(case) if _is_match(case, choice, complete)]
    found.sort(key=lambda choice: (_ends(case, choice), choice[0][0], choice))
    left: list[Choice] = []
    for choice in found:
        if all(_allows(case, earlier, choice) for earlier in left):
            left.append(choice)
    return left


def _ends(case: Case, choice: Choice) -> tuple[int, int, int]:
    """When a match is whole: at its last event, or when its time is over, which comes behind all events before."""
    if case.pattern.waits and not _is_full(case, choice):
        return case.events[choice[0][0]][0] + case.within, 0, 0
    return case.events[choice[-1][-1]][0], 1, choice[-1][-1]


def _is_full(case: Case, choice: Choice) -> bool:
    last = case.pattern.steps[-1]
    return last.link != "not_followed_by" and len(choice[-1]) == last.most


def _allows(case: Case, earlier: Choice, later: Choice) -> bool:
    if case.after == "skip_past_last":
        return later[0][0] > earlier[-1][-1]
    return case.after == "none" or later[0][0] != earlier[0][0]


def _choices(case: Case) -> Iterator[Choice]:
    """All ways to give events, in their order, to the steps that take some."""
    steps = [s for s in case.pattern.steps if s.link != "not_followed_by"]

    def rest(at: int, least: int) -> Iterator[Choice]:
        if at == len(steps):
            yield []
            return
        for group in _groups(least, len(case.events), steps[at]):
            for others in rest(at + 1, group[-1] + 1):
                yield [group, *others]

    yield from rest(0, 0)


def _groups(start: int, end: int, step: PatternStep) -> Iterator[list[int]]:
    def more(group: list[int], at: int) -> Iterator[list[int]]:
        if len(group) >= step.least:
            yield group
        if step.most is None or len(group) < step.most:
            for number in range(at, end):
                yield from more([*group, number], number + 1)

    yield from (group for group in more([], start) if group)


def _is_match(case: Case, choice: Choice, complete: int | None) -> bool:
    """The rules that a whole match follows, one by one."""
    events, steps = case.events, case.pattern.steps
    start = events[choice[0][0]][0]
    if any(events[n][0] - start >= case.within for group in choice for n in group):
        return False
    taken: Taken = {}
    at, guards, last = 0, list[PatternStep](), -1
    previous: tuple[PatternStep, list[int]] | None = None
    for step in steps:
        if step.link == "not_followed_by":
            guards.append(step)
            continue
        group = choice[at]
        if previous is not None and not _follows(case, previous, step, group, guards, taken):
            return False
        for number in group:
            if not _fits(case, step, number, taken):
                return False
            taken[step.name] = {"v": events[number][1]}
        if at == 0 and step.many and not _takes_all(case, step, group[: step.least], {}):
            return False
        previous, guards, last, at = (step, group), [], group[-1], at + 1
    assert previous is not None
    return _ends_well(case, previous, guards, taken, start, last, complete)


def _fits(case: Case, step: PatternStep, number: int, taken: Taken) -> bool:
    return case.conditions[step.name]({"v": case.events[number][1]}, taken)


def _follows(
    case: Case,
    previous: tuple[PatternStep, list[int]],
    step: PatternStep,
    group: list[int],
    guards: list[PatternStep],
    taken: Taken,
) -> bool:
    """Whether a step begins where it must, behind the step before it."""
    before, earlier = previous
    ready = earlier[before.least - 1]
    """From here on the earlier step has enough."""
    seen: Taken = dict(taken)
    for number in range(ready + 1, group[0] + 1):
        inside = number in earlier
        so_far = [n for n in earlier if n < number]
        seen[before.name] = {"v": case.events[so_far[-1]][1]}
        if any(_fits(case, guard, number, seen) for guard in guards):
            return False
        if number == group[0]:
            break
        if step.link != "followed_by_any" and _fits(case, step, number, seen):
            return False
        room = before.most is None or len(so_far) < before.most
        if not inside and room and _fits(case, before, number, seen):
            return False
        if not inside and step.link == "next":
            return False
    return _takes_all(case, before, earlier[: before.least], _without(taken, before))


def _without(taken: Taken, step: PatternStep) -> Taken:
    return {name: row for name, row in taken.items() if name != step.name}


def _takes_all(case: Case, step: PatternStep, group: list[int], taken: Taken) -> bool:
    """Whether a step has passed over nothing that fits it between these events of its."""
    seen = dict(taken)
    for number in range(group[0], group[-1] + 1):
        if number in group:
            seen[step.name] = {"v": case.events[number][1]}
        elif _fits(case, step, number, seen):
            return False
    return True


def _ends_well(
    case: Case,
    previous: tuple[PatternStep, list[int]],
    guards: list[PatternStep],
    taken: Taken,
    start: int,
    last: int,
    complete: int | None,
) -> bool:
    step, group = previous
    if not _takes_all(case, step, group, _without(taken, step)):
        return False
    if not case.pattern.waits or (len(group) == step.most and not guards):
        return len(group) == step.most
    if complete is None or complete < start + case.within:
        return False
    seen = dict(taken)
    for number in range(group[step.least - 1] + 1, len(case.events)):
        if case.events[number][0] - start >= case.within:
            continue
        so_far = [n for n in group if n < number]
        seen[step.name] = {"v": case.events[so_far[-1]][1]}
        if any(_fits(case, guard, number, seen) for guard in guards):
            return False
        room = step.most is None or len(so_far) < step.most
        if number not in group and room and _fits(case, step, number, seen):
            return False
    return True


# Generated cases


def case_of(seed: int) -> Case:
    """A pattern of up to four steps, and a short stream of small values."""
    dice = random.Random(seed)
    pattern, conditions = Pattern(()), dict[str, Condition]()
    names = "abcd"[: dice.randint(1, 4)]
    for at, name in enumerate(names):
        text, condition = _condition(dice, names[at - 1] if at else None, conditions)
        link = dice.choice(["next", "followed_by", "followed_by", "followed_by_any", "not_followed_by"])
        if at == 0:
            link = "begin"
        elif pattern.steps[-1].link == "not_followed_by" and link in ("next", "not_followed_by"):
            link = "followed_by"
        pattern = Pattern((*pattern.steps, PatternStep(name, text, link)))  # type: ignore[arg-type]
        conditions[name] = condition
        if link != "not_followed_by" and dice.random() < 0.3:
            least = dice.randint(1, 2)
            pattern = pattern.one_or_more() if dice.random() < 0.3 else pattern.times(least, least + dice.randint(0, 1))
    at, events = 0, []
    for _ in range(dice.randint(1, 7)):
        at += dice.choice([0, 1, 1, 2, 5])
        events.append((at, dice.randint(0, 4)))
    after = dice.choice(["skip_past_last", "skip_to_next", "none"])
    return Case(pattern, conditions, events, dice.choice([3, 6, 20]), after)  # type: ignore[arg-type]


def _condition(dice: random.Random, before: str | None, known: dict[str, Condition]) -> tuple[str, Condition]:
    limit = dice.randint(0, 4)
    if before is not None and dice.random() < 0.5:
        if dice.random() < 0.5:
            return f"v > {before}.v", lambda row, taken: before in taken and row["v"] > taken[before]["v"]
        return f"v <= {before}.v", lambda row, taken: before in taken and row["v"] <= taken[before]["v"]
    if dice.random() < 0.5:
        return f"v >= {limit}", lambda row, taken: row["v"] >= limit
    return f"v < {limit}", lambda row, taken: row["v"] < limit
