"""Every function of a filter takes terms and says what is wrong with them in the same words."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.errors import BadQueryError
from penstock.views.where_terms import Scope, Term
from penstock.views.where_types import DOUBLE, VOID, SqlType

Build = Callable[[Scope, str, Sequence[Term]], Term]
"""Makes the term of a call out of its arguments, whose number was checked before."""


def call_text(name: str, arguments: Sequence[Term]) -> str:
    return f"{name}({', '.join(argument.text for argument in arguments)})"


def expect(name: str, term: Term, *kinds: SqlType) -> Term:
    """The argument itself if its type is one of these; a NULL literal is of every type."""
    if term.type in (*kinds, VOID):
        return term
    raise wrong(name, term, " or ".join(map(str, kinds)))


def expect_number(name: str, term: Term) -> Term:
    if term.type.numeric:
        return term
    if term.type == VOID:
        return Term(DOUBLE, term.text, term.source, term.guards, const=term.const)
    raise wrong(name, term, "a number")


def wrong(name: str, term: Term, wanted: str) -> BadQueryError:
    return BadQueryError(
        f"'{name}' needs {wanted}, but {term.text} is {term.type}.", hint="CAST(x AS type) converts a value."
    )


def expect_whole(name: str, term: Term) -> Term:
    """An integer, or NULL."""
    if term.type.integral or term.type == VOID:
        return term
    raise wrong(name, term, "an integer")
