"""Reads what a client asks for, the same over every transport: from query parameters or from a socket's message."""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Any

import msgspec

from penstock.change import Key
from penstock.config import Limits
from penstock.declaration import Policy
from penstock.errors import BadQueryError, BadRequestError, ForbiddenError
from penstock.route import waiting
from penstock.views.read_query import DEFAULT, Limit, Names, Query
from penstock.views.read_rule import EVERYTHING, ReadRule, parse_ruled
from penstock.views.store import Content, View
from penstock.views.unpack import frozen
from penstock.views.where.sql_types import SqlType, parse_type

WAIT_S = 5.0
"""How long a request waits unless it says otherwise."""

KNOWN_QUERIES = 500
"""Of a view, kept for those who ask the same; each takes some 3 to 20 kB."""
KNOWN_CHARACTERS = 500
"""A longer one is made anew each time."""


@dataclass(frozen=True, slots=True)
class Question:
    """Which rows of a view, as the client wrote it; a query is made of it once the view's columns are known."""

    where: str | None = None
    select: Names = None
    order_by: Names = None
    limit: Limit = DEFAULT
    masked: bool = False
    """Of a ledger: private fields in what it quotes are not for this reader."""
    params: Mapping[str, Any] | None = field(default=None, hash=False)
    """Values for the `:names` in `where`."""
    rule: ReadRule | None = None
    """What the reader may see at most (`Catalogue.rule`); None: nobody has decided."""
    policy: Policy = "conflate"
    """What it gets when it is too slow."""

    def query(self, view: View, content: Content) -> Query:
        """Raises `BadQueryError`, or `ForbiddenError` where the rule says so.

        A default that an older build, or the reader's rule, has no column for is left out. Who asks the same again, as
        a long poll does after each batch, gets what was made of it; compared as texts, since 1 and true are equal to
        Python and not to SQL.
        """
        rule = self.ruled(view.definition.visible_where is not None)
        text = repr((self.where, self.select, self.order_by, self.limit, self.params, rule))
        known = content.queries.get(text)
        if known is None:
            known = self._made(rule, view, content)
            if len(text) <= KNOWN_CHARACTERS:
                if len(content.queries) >= KNOWN_QUERIES:
                    content.queries.clear()
                content.queries[text] = known
        return known

    def _made(self, rule: ReadRule, view: View, content: Content) -> Query:
        definition = view.definition
        return parse_ruled(
            rule,
            content.columns,
            content.key,
            where=self.where,
            params=self.params,
            select=self.select,
            order_by=self.order_by,
            limit=self.limit,
            defaults=(definition.order_by, definition.limit),
            errors=view.filter_errors,
        )

    def ruled(self, filtered: bool) -> ReadRule:
        """The rule to read under. `filtered`: each reader sees its own rows, so that nobody reads without a rule."""
        if self.rule is not None:
            return self.rule
        if filtered:
            raise ForbiddenError(
                "who reads has not been decided, and each reader sees its own rows only", hint="read over HTTP"
            )
        return EVERYTHING


def question_in(fields: Mapping[str, Any]) -> Question:
    """From query parameters or a message; what is not there, or null where that is no value, is the view's default."""
    where = fields.get("where")
    if where is not None and not isinstance(where, str):
        raise BadQueryError("'where' must be a text.", hint="where=rsvps > 10")
    return Question(
        where or None,
        _names(fields, "select"),
        _names(fields, "order_by"),
        fields.get("limit", DEFAULT),
        params=_params(fields),
    )


def _names(fields: Mapping[str, Any], name: str) -> Names:
    value = fields.get(name)
    if value is None or isinstance(value, str | list):
        return value or None
    raise BadQueryError(f"'{name}' must be a text or a list of names.", hint=f"{name}=topic,rsvps")


def _params(fields: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The values of a filter's parameters: an object in a message, JSON text in an address."""
    value = fields.get("params")
    if isinstance(value, str) and value:
        try:
            value = msgspec.json.decode(value)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            value = 0
    if value is None or value == "" or isinstance(value, dict):
        return value or None
    raise BadQueryError("'params' must be an object of values by name.", hint='params={"city": "Oslo"}')


def seconds(fields: Mapping[str, Any], limits: Limits, default: float = WAIT_S) -> float:
    """The parameter `wait`."""
    return waiting(fields.get("wait"), default, limits.wait_s)


def whole(fields: Mapping[str, str], name: str, default: int, most: int) -> int:
    """A whole number from 1 to `most`."""
    text = fields.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and 1 <= int(text) <= most):
        raise BadRequestError(f"{name}={text[:40]} is not possible", hint=f"use a whole number from 1 to {most}")
    return int(text)


# Keys


def key_in(text: str, content: Content) -> Key:
    """The parameter `key`: the value of a single key column, or a JSON object of all of them."""
    types = {column.name: parse_type(column.type) for column in content.columns}
    names = content.key
    given = {names[0]: text} if len(names) == 1 and types[names[0]].kind != "struct" else _object(text, names)
    if len(names) == 1 and names[0] not in given:
        given = {names[0]: given}
    if set(given) != set(names):
        raise BadQueryError("'key' does not name the key's columns.", hint=f"The key is {', '.join(names)}.")
    return tuple(frozen(_typed(given[name], types[name])) for name in names)


def _object(text: str, names: tuple[str, ...]) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError:
        example = ", ".join(f'"{name}": ...' for name in names)
        raise BadQueryError("'key' must be a JSON object.", hint=f"key={{{example}}}") from None


def _typed(value: Any, kind: SqlType) -> Any:
    """A key's value as it stands in a row, from JSON or from the text of a parameter."""
    try:
        return _converted(value, kind)
    except (ValueError, TypeError, AttributeError, InvalidOperation, KeyError):
        raise BadQueryError(f"'{value}' is not a {kind}.", hint="Write it as it appears in the view's rows.") from None


def _converted(value: Any, kind: SqlType) -> Any:
    if value is None:
        return None
    if kind.kind == "struct":
        return {name: _converted(value[name], inner) for name, inner in zip(kind.names, kind.args, strict=True)}
    if kind.kind == "array":
        return [_converted(item, kind.args[0]) for item in value]
    if kind.kind == "timestamp":
        moment = dt.datetime.fromisoformat(value)
        return moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)
    if kind.kind == "boolean" and isinstance(value, str):
        return {"true": True, "false": False}[value.lower()]
    convert = _CONVERT.get(kind.kind)
    return value if convert is None else convert(value)


_CONVERT: dict[str, Any] = {
    "tinyint": int,
    "smallint": int,
    "int": int,
    "bigint": int,
    "float": float,
    "double": float,
    "decimal": Decimal,
    "timestamp_ntz": dt.datetime.fromisoformat,
    "date": dt.date.fromisoformat,
    "string": str,
    "binary": partial(base64.b64decode, validate=True),
}
