"""Sequences of events as data: what must follow what, within which time, and what must not come between.

A pattern is built from the left to the right and is frozen: `begin("a", ...).followed_by("b", ...)`. Its conditions are
SQL of the readers' filter language over the event and over earlier steps, by their names. `penstock.flows.ordered`
finds the matches.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from penstock.errors import DeclarationError

Link = Literal["begin", "next", "followed_by", "followed_by_any", "not_followed_by"]
AfterMatch = Literal["skip_past_last", "skip_to_next", "none"]
"""What becomes of other partial matches of the key when one is whole: all that began before its last event go, those
that began with the same event, or none."""


@dataclass(frozen=True)
class PatternStep:
    """One step: a name, a condition, how it is tied to the step before it, and how many events it takes."""

    name: str
    where: str
    link: Link
    least: int = 1
    most: int | None = 1
    """None: as many as come."""

    @property
    def many(self) -> bool:
        return self.most != 1


@dataclass(frozen=True)
class Pattern:
    """Steps in their order.

    >>> jam = begin("a", "speed < 20").followed_by("b", "speed < a.speed").times(2)
    >>> [(step.name, step.least) for step in jam.steps]
    [('a', 1), ('b', 2)]
    """

    steps: tuple[PatternStep, ...]

    def next(self, name: str, where: str) -> Pattern:
        """The very next event of the key must fit."""
        return self._with(name, where, "next")

    def followed_by(self, name: str, where: str) -> Pattern:
        """The first event that fits; others between are passed over."""
        return self._with(name, where, "followed_by")

    def followed_by_any(self, name: str, where: str) -> Pattern:
        """Each event that fits, each as a match of its own."""
        return self._with(name, where, "followed_by_any")

    def not_followed_by(self, name: str, where: str) -> Pattern:
        """No event that fits, until the next step; as the last step, until `within` is over."""
        return self._with(name, where, "not_followed_by")

    def times(self, n: int, m: int | None = None) -> Pattern:
        """The last step takes `n` events, or `n` to `m`: as many as it can until the next step fits."""
        if not isinstance(n, int) or n < 1 or (m is not None and (not isinstance(m, int) or m < n)):
            raise DeclarationError(f"times({n!r}, {m!r})", hint="use whole numbers: 1 <= n <= m")
        return self._counted(n, n if m is None else m)

    def one_or_more(self) -> Pattern:
        """The last step takes as many events as it can until the next step fits."""
        return self._counted(1, None)

    def _with(self, name: str, where: str, link: Link) -> Pattern:
        _check_step(name, where)
        if any(step.name == name for step in self.steps):
            raise DeclarationError(f"two steps are called '{name}'", hint="give one of them another name")
        if link == "next" and self.steps and self.steps[-1].link == "not_followed_by":
            hint = "write followed_by: nothing can come between an event and the very next one"
            raise DeclarationError(f"'{name}' is the next event behind not_followed_by", hint=hint)
        return replace(self, steps=(*self.steps, PatternStep(name, where, link)))

    def _counted(self, least: int, most: int | None) -> Pattern:
        last = self.steps[-1]
        if last.link == "not_followed_by":
            raise DeclarationError(f"'{last.name}' is not to come at all", hint="leave out times and one_or_more")
        return replace(self, steps=(*self.steps[:-1], replace(last, least=least, most=most)))

    @property
    def waits(self) -> bool:
        """Whether only the end of `within` makes a match whole."""
        last = self.steps[-1]
        return last.link == "not_followed_by" or last.least != last.most


@dataclass(frozen=True)
class DeclaredPattern:
    """A pattern with what its decorator said. What its events are is known when it is planned."""

    pattern: Pattern
    within_us: int | None
    after_match: AfterMatch


def begin(name: str, where: str) -> Pattern:
    """A pattern that begins with an event that fits.

    >>> begin("small", "amount < 1").next("large", "amount > 100 * small.amount").steps[1].link
    'next'
    """
    _check_step(name, where)
    return Pattern((PatternStep(name, where, "begin"),))


def check_pattern(pattern: object, name: str, within_us: int | None, after_match: str) -> Pattern:
    """The pattern that a function returned. Raises `DeclarationError` where it cannot be one."""
    if not isinstance(pattern, Pattern):
        hint = 'return begin("a", "...").followed_by("b", "...")'
        raise DeclarationError(f"'{name}' returned {type(pattern).__name__}, not a pattern", hint=hint)
    if after_match not in get_args(AfterMatch):
        hint = f"use one of {', '.join(get_args(AfterMatch))}"
        raise DeclarationError(f"after_match={after_match!r} of '{name}'", hint=hint)
    if pattern.waits and within_us is None:
        text = f"'{name}' ends with something that only time can end, and has no within="
        raise DeclarationError(text, hint='say how long: within="5 minutes"')
    if within_us == 0:
        raise DeclarationError(f"within= of '{name}' is 0", hint="say how long a match may take")
    return pattern


def _check_step(name: str, where: str) -> None:
    if not isinstance(name, str) or not name.isidentifier() or name.startswith("_"):
        raise DeclarationError(f"{name!r} is no name of a step", hint="use letters, digits and _")
    if not isinstance(where, str) or not where.strip():
        raise DeclarationError(f"the condition of '{name}' is no SQL: {where!r}", hint='write it as "speed < 20"')
