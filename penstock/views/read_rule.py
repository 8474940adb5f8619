"""What a reader may see is decided before it asks: conditions on rows that it cannot widen, and a list of columns.

1. A condition is compiled by itself, with the reader's claims as bound values. No text and no parameter of a client's
   is ever part of it, and it is joined to the client's own `where` by AND, behind both compilations.
2. It is tested before the client's condition: a hidden row neither passes nor raises nor counts there.
3. A reader that lacks a claim which a condition needs is refused. Nobody sees everything by lacking something.
4. A hidden column is not in the answer, and not in what the answer depends on: naming it is refused, and a view's own
   `order_by` that names it is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol

from sqlglot import exp

from penstock.change import Column
from penstock.declaration import Application, ChannelDef, Place, Problem
from penstock.errors import BadQueryError, ForbiddenError
from penstock.schema import simple_type
from penstock.views.read_query import DEFAULT, Limit, Names, Query, parse_query
from penstock.views.where.filter import Where, compile_where
from penstock.views.where.syntax import parse

_SCALARS = (str, int, float, bool)
Bound = tuple[tuple[str, Any], ...]


class Reader(Protocol):
    """Who reads: `penstock.rights.credential.Credential`."""

    @property
    def name(self) -> str: ...

    @property
    def claims(self) -> Mapping[str, Any]: ...

    @property
    def sees_all(self) -> bool:
        """Whether no `visible_where` holds for it."""

    def columns(self, name: str) -> frozenset[str] | None:
        """Those that it may read of a view, stream or channel; None: all."""


@dataclass(frozen=True, slots=True)
class RuleCondition:
    """SQL of the app's own, and the claims that it compares with."""

    text: str
    values: Bound = ()


@dataclass(frozen=True, slots=True)
class ReadRule:
    """What one reader may see of one view or stream. Equal rules show the same."""

    conditions: tuple[RuleCondition, ...] = ()
    columns: frozenset[str] | None = None

    def tests(self, columns: Sequence[Column], errors: list[int] | None) -> tuple[Where, ...]:
        """Raises `ForbiddenError` when a condition cannot be applied: then nothing is visible."""
        return tuple(_compiled(condition, columns, errors) for condition in self.conditions)

    def shown(self, columns: Sequence[Column], key: Sequence[str]) -> list[Column]:
        """The columns that may be seen. Raises `ForbiddenError` when the key is not among them."""
        if self.columns is None:
            return list(columns)
        if missing := [name for name in key if name not in self.columns]:
            raise ForbiddenError(
                f"the right to read has a list of columns without {_quoted(missing)}, by which rows are told apart",
                hint="add the key's columns to the list: read:<view>(<key>,<column>,...)",
            )
        return [column for column in columns if column.name in self.columns]


EVERYTHING = ReadRule()
"""The rule of a reader that may see all rows and columns."""


def read_rule(
    reader: Reader,
    name: str,
    visible_where: str | None,
    *,
    where: str | None = None,
    select: Sequence[str] | None = None,
) -> ReadRule:
    """The rule under which `reader` reads by its right to `name`; `where` and `select` are those of a channel.

    Raises `ForbiddenError`, which names the claim that is missing.
    """
    own = [] if visible_where is None or reader.sees_all else [visible_where]
    texts = [*own, *([] if where is None else [where])]
    conditions = tuple(RuleCondition(text, _bound(reader, name, text)) for text in texts)
    columns = reader.columns(name)
    if select is not None:
        columns = frozenset(select) if columns is None else columns & frozenset(select)
    return ReadRule(conditions, columns)


@lru_cache(1_000)
def claims_in(text: str) -> tuple[str, ...]:
    """The claims that a condition of the app's compares with: `:sub` is one. Raises `BadQueryError`.

    >>> claims_in("user_id = :sub AND note <> ':no'")
    ('sub',)
    """
    names = (node.this for node in parse(text).find_all(exp.Placeholder))
    return tuple(dict.fromkeys(name for name in names if isinstance(name, str)))


def _bound(reader: Reader, name: str, text: str) -> Bound:
    try:
        claims = claims_in(text)
    except BadQueryError as error:
        raise _undecided(error) from None
    return tuple((claim, _value(reader, name, claim)) for claim in claims)


def _value(reader: Reader, name: str, claim: str) -> Any:
    value = reader.claims.get(claim)
    if isinstance(value, _SCALARS):
        return value
    if isinstance(value, list | tuple) and all(isinstance(item, _SCALARS) for item in value):
        return tuple(value)
    if value is None:
        raise ForbiddenError(
            f"'{reader.name}' has no claim '{claim}', which decides what of '{name}' it may see",
            hint=f"use a token with this claim, or a key: penstock keys create APP --scope read:{name} "
            f"--claim {claim}=...",
        )
    raise ForbiddenError(
        f"the claim '{claim}' of '{reader.name}' is neither a text, a number nor a list of them",
        hint=f"it decides what of '{name}' may be seen",
    )


def _compiled(condition: RuleCondition, columns: Sequence[Column], errors: list[int] | None) -> Where:
    params = {name: list(value) if isinstance(value, tuple) else value for name, value in condition.values}
    try:
        return compile_where(condition.text, columns, errors, params)
    except BadQueryError as error:
        raise _undecided(error) from None


def _undecided(error: BadQueryError) -> ForbiddenError:
    """The condition is the app's and the claim the issuer's: the reader cannot mend what is wrong with them."""
    return ForbiddenError(
        "what is visible to this credential cannot be decided, so nothing is",
        detail=error.message,
        hint="`penstock check` looks at visible_where= and channels; a claim must be of the type it is compared to",
    )


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


# A query under a rule


def parse_ruled(
    rule: ReadRule,
    columns: Sequence[Column],
    key: Sequence[str],
    *,
    where: str | None = None,
    params: Mapping[str, Any] | None = None,
    select: Names = None,
    order_by: Names = None,
    limit: Limit = DEFAULT,
    defaults: tuple[Sequence[str], Limit] = ((), None),
    errors: list[int] | None = None,
) -> Query:
    """What a reader asks, under its rule. Raises `BadQueryError` for what cannot be read, else `ForbiddenError`."""
    shown = rule.shown(columns, key)
    names = frozenset(column.name for column in shown)
    order = [item for item in defaults[0] if item.removeprefix("-").split(".")[0] in names]

    def over(among: Sequence[Column], chosen: Names) -> Query:
        return parse_query(
            among,
            key,
            where=where,
            params=params,
            select=chosen,
            order_by=order_by,
            limit=limit,
            defaults=(order, defaults[1]),
            errors=errors,
        )

    if len(shown) < len(columns):
        select = _narrowed(over, shown, columns, select)
    query = over(columns, select)
    if not query.reads <= names:
        raise _hidden(query.reads - names)
    return replace(query, rule=rule.tests(columns, errors)) if rule.conditions else query


def _narrowed(
    over: Callable[[Sequence[Column], Names], Query], shown: Sequence[Column], columns: Sequence[Column], select: Names
) -> tuple[str, ...]:
    """The columns to give. The query is read over the visible columns first, so that no error tells of the others."""
    try:
        query = over(shown, select)
    except BadQueryError as error:
        names = {column.name for column in shown}
        try:
            everything = over(columns, select or [column.name for column in shown])
        except BadQueryError:
            raise error from None
        if everything.reads <= names:
            raise
        raise _hidden(everything.reads - names) from None
    return tuple(column.name for column in query.output)


def _hidden(names: frozenset[str]) -> ForbiddenError:
    return ForbiddenError(
        f"the right to read does not include {_quoted(sorted(names))}",
        hint="leave it out of select, where and order_by, or use a credential that may read it",
    )


# What `check` says of the app's own rules


def stream_columns(application: Application) -> dict[str, list[Column]]:
    """Those of the door's streams and tables, which are known without Spark."""
    tables = {t.name: [Column(f.name, simple_type(f.type)) for f in t.events.fields] for t in application.tables}
    return tables | {s.name: [Column(f.name, simple_type(f.type)) for f in s.stored] for s in application.streams}


def rule_problems(application: Application, columns: Mapping[str, Sequence[Column]]) -> Iterator[Problem]:
    """What is wrong with `visible_where=` and channels, with the user's line; only of what `columns` has."""
    for thing in (*application.streams, *application.tables, *application.nodes):
        if thing.visible_where is not None and thing.name in columns:
            what = f"visible_where= of '{thing.name}'"
            yield from _condition(what, thing.visible_where, columns[thing.name], thing.place)
    for channel in application.channels:
        if channel.target in columns:
            yield from _channel(channel, columns[channel.target])


def _channel(channel: ChannelDef, columns: Sequence[Column]) -> Iterator[Problem]:
    if channel.where is not None:
        yield from _condition(f"where= of the channel '{channel.name}'", channel.where, columns, channel.place)
    names = [column.name for column in columns]
    for name in channel.select or ():
        if name not in names:
            message = f"select= of the channel '{channel.name}' names '{name}', which '{channel.target}' does not have"
            yield Problem("error", "unknown_column", message, channel.place, f"its columns are {', '.join(names)}")


def _condition(what: str, text: str, columns: Sequence[Column], place: Place) -> Iterator[Problem]:
    try:
        compile_where(text, columns, params=_any_claims(text))
    except BadQueryError as error:
        yield Problem("error", "bad_filter", f"{what}: {error.message}", place, error.hint or error.detail)


def _any_claims(text: str) -> dict[str, Any]:
    """Values that are of every type: nobody knows what a claim will be before somebody reads."""
    lists = {node.this for call in parse(text).find_all(exp.Any) for node in call.find_all(exp.Placeholder)}
    return {claim: [] if claim in lists else None for claim in claims_in(text)}
