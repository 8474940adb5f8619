"""Finds what one comparison of a filter says about its row that an index can look up."""

from __future__ import annotations

import math
from typing import Final

from penstock.views.where.needs import NEVER, Holds, Is, Needs, On, Within, all_of
from penstock.views.where.sql_types import VOID, SqlType
from penstock.views.where.terms import FLIPPED, FilterScope, Term, comparable

_POINTS: Final = frozenset({"boolean", "string", "binary", "timestamp", "timestamp_ntz", "date"})
_LAST_CHAR: Final = chr(0x10FFFF)


def expression(term: Term) -> On | None:
    """What an index may compute of a row for this term; None for a constant and for what may raise."""
    if term.is_const or not term.safe:
        return None
    return On(term.text, _family(term.type), term.value())


def _family(kind: SqlType) -> str:
    """Values of one family compare and hash as SQL does among themselves."""
    if kind.integral or kind.kind == "decimal":
        return "exact"
    return "floating" if kind.floating else kind.kind


def implied(scope: FilterScope, operator: str, left: Term, right: Term) -> Needs:
    """What must hold of a row where `left operator right` is true. The terms stand alone, as no guard has run yet."""
    if left.is_const and not right.is_const and operator in FLIPPED:
        operator, left, right = FLIPPED[operator], right, left
    if not right.is_const:
        return ()
    left, right = comparable(scope, "=" if operator == "<=>" else operator, left, right)
    if right.is_null:
        return NEVER if operator != "<=>" else is_null(left)
    if right.const != right.const:
        return ()  # NaN is no key
    on = expression(left)
    return all_of([_by_operator(on, operator, right) if on else (), _nearby(left, operator, right)])


def _by_operator(on: On, operator: str, right: Term) -> Needs:
    if operator in ("=", "<=>"):
        return ((Is(on, right.const),),) if _is_key(right.type) else ()
    if operator in (">", ">="):
        return ((Within(on, low=right.const),),)
    return ((Within(on, high=right.const),),) if operator in ("<", "<=") else ()


def _is_key(kind: SqlType) -> bool:
    return kind.numeric or kind.kind in _POINTS


def _nearby(left: Term, operator: str, right: Term) -> Needs:
    """A distance below a bound bounds the latitude."""
    if left.centre is None or operator not in ("<", "<=", "=") or not math.isfinite(right.const):
        return ()
    on, latitude, km_per_degree = left.centre
    reach = max(float(right.const), 0.0) / km_per_degree * (1 + 1e-9) + 1e-6
    return ((Within(on, latitude - reach, latitude + reach),),)


def is_null(term: Term) -> Needs:
    on = expression(term)
    return ((Is(on, None),),) if on and term.type != VOID else ()


def has_element(array: Term, wanted: Term) -> Needs:
    """`wanted = ANY(array)`, where the elements are compared as they are."""
    if not wanted.is_const or wanted.is_null:
        return NEVER if wanted.is_null else ()
    on = expression(array)
    return ((Holds(on, wanted.const),),) if on and _is_key(wanted.type) and wanted.const == wanted.const else ()


def has_prefix(value: Term, prefix: str) -> Needs:
    """Strings that begin so lie between the prefix and the next string of its length that is greater."""
    on = expression(value)
    if on is None or not prefix:
        return ()
    stem = prefix.rstrip(_LAST_CHAR)
    return ((Within(on, prefix, stem[:-1] + chr(ord(stem[-1]) + 1) if stem else None),),)


def equals(value: Term, text: str) -> Needs:
    on = expression(value)
    return ((Is(on, text),),) if on else ()
