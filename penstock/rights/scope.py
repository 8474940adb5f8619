"""What a credential may do, in the words of the wire contract: `read:<name>`, `write:<name>` and `admin`.

A right to read may name the columns that it opens: `read:orders(order_id,total)`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from penstock.errors import BadRequestError

Verb = Literal["read", "write", "admin"]
_VERBS: tuple[Verb, ...] = ("read", "write")
_SCOPE = re.compile(r"(?P<verb>[a-z]+):(?P<name>[^\s()*]+\*?|\*)(?:\((?P<columns>[^\s()]*)\))?")


@dataclass(frozen=True, slots=True)
class Scope:
    """One right. `name` is that of a stream, view or channel, or a beginning of names with `*` behind it; `*` is all.

    >>> parse_scope("read:orders_*").allows("read", "orders_eu")
    True
    >>> parse_scope("read:orders(order_id,total)").columns
    ('order_id', 'total')
    """

    verb: Verb
    name: str
    columns: tuple[str, ...] | None = None
    """The only columns that may be read; None: all of them."""

    def allows(self, verb: Verb, name: str) -> bool:
        """`admin` may do everything; the others what they say of what they name."""
        if self.verb == "admin":
            return True
        if self.verb != verb:
            return False
        return name.startswith(self.name[:-1]) if self.name.endswith("*") else name == self.name

    def __str__(self) -> str:
        listed = "" if self.columns is None else f"({','.join(self.columns)})"
        return "admin" if self.verb == "admin" else f"{self.verb}:{self.name}{listed}"


ADMIN = Scope("admin", "*")


def parse_scope(text: str) -> Scope:
    """Raises `BadRequestError` for what is none."""
    if text == "admin":
        return ADMIN
    match = _SCOPE.fullmatch(text) if text.isprintable() else None
    for verb in _VERBS:
        if match and match["verb"] == verb and (match["columns"] is None or _may_list(match)):
            return Scope(verb, match["name"], _listed(match["columns"]))
    raise BadRequestError(
        f"'{text[:80]}' is not a scope",
        hint="write read:<view, stream or channel>, read:<name>(<column>,<column>), write:<stream>, read:*, write:* "
        "or admin",
    )


def _may_list(match: re.Match[str]) -> bool:
    """Columns are those of one thing that is read."""
    return match["verb"] == "read" and not match["name"].endswith("*") and all(match["columns"].split(","))


def _listed(columns: str | None) -> tuple[str, ...] | None:
    return None if columns is None else tuple(dict.fromkeys(columns.split(",")))


def known_scopes(texts: Iterable[str]) -> Iterator[Scope]:
    """The scopes among these; a token of an identity provider has others that mean nothing here."""
    for text in texts:
        try:
            yield parse_scope(text)
        except BadRequestError:
            continue
