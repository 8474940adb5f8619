"""What a credential may do, in the words of the wire contract: `read:<name>`, `write:<name>` and `admin`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from penstock.errors import BadRequestError

Verb = Literal["read", "write", "admin"]
_VERBS: tuple[Verb, ...] = ("read", "write")


@dataclass(frozen=True, slots=True)
class Scope:
    """One right. `name` is that of a stream or view, or a beginning of names with `*` behind it; `*` is all of them.

    >>> parse_scope("read:orders_*").allows("read", "orders_eu")
    True
    """

    verb: Verb
    name: str

    def allows(self, verb: Verb, name: str) -> bool:
        """`admin` may do everything; the others what they say of what they name."""
        if self.verb == "admin":
            return True
        if self.verb != verb:
            return False
        return name.startswith(self.name[:-1]) if self.name.endswith("*") else name == self.name

    def __str__(self) -> str:
        return "admin" if self.verb == "admin" else f"{self.verb}:{self.name}"


ADMIN = Scope("admin", "*")


def parse_scope(text: str) -> Scope:
    """Raises `BadRequestError` for what is none."""
    if text == "admin":
        return ADMIN
    verb, _, name = text.partition(":")
    for known in _VERBS:
        if verb == known and name and "*" not in name[:-1] and name.isprintable() and " " not in name:
            return Scope(known, name)
    raise BadRequestError(
        f"'{text[:80]}' is not a scope", hint="write read:<view or stream>, write:<stream>, read:*, write:* or admin"
    )


def known_scopes(texts: Iterable[str]) -> Iterator[Scope]:
    """The scopes among these; a token of an identity provider has others that mean nothing here."""
    for text in texts:
        try:
            yield parse_scope(text)
        except BadRequestError:
            continue
