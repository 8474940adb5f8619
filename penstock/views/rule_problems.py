"""Finds what is wrong with `visible_where=` and channels before anybody reads them, and names the user's line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlglot import exp

from penstock.change import Column
from penstock.declaration import Application, ChannelDef, Place, Problem
from penstock.errors import BadQueryError
from penstock.schema import simple_type
from penstock.views.rule import claims_in
from penstock.views.where import compile_where
from penstock.views.where_syntax import parse

Columns = Mapping[str, Sequence[Column]]


def stream_columns(application: Application) -> dict[str, list[Column]]:
    """Those of the door's streams, which are known without Spark."""
    return {s.name: [Column(f.name, simple_type(f.type)) for f in s.stored] for s in application.streams}


def rule_problems(application: Application, columns: Columns) -> Iterator[Problem]:
    """What of the app's own filters cannot be applied; of what `columns` does not have, nothing is said."""
    for thing in (*application.streams, *application.nodes):
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
    """Values that are of every type: what a claim will be is not known before somebody reads."""
    lists = {node.this for found in parse(text).find_all(exp.Any) for node in found.find_all(exp.Placeholder)}
    return {claim: [] if claim in lists else None for claim in claims_in(text)}
