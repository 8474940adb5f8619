"""Python's numbers neither overflow nor round as SQL's do, so + - * / % are written with Spark's types.

Integers that leave their type and divisions by zero raise, as in ANSI mode; `/` of integers is a double; `%`
has the sign of the dividend; decimals follow Spark's precision rules and round half up.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Final

from penstock.views.where_arguments import expect_number
from penstock.views.where_terms import (
    Scope,
    Term,
    as_decimal,
    coerced,
    common_type,
    mismatch,
    negative,
    strict,
)
from penstock.views.where_types import (
    BITS,
    DOUBLE,
    FLOAT,
    VOID,
    WIDE,
    SqlType,
    decimal_type,
    fit_decimal,
    single,
)

_DECIMAL: Final = {
    "+": WIDE.add,
    "-": WIDE.subtract,
    "*": WIDE.multiply,
    "/": WIDE.divide,
    "%": WIDE.remainder,
}


def arithmetic(scope: Scope, operator: str, left: Term, right: Term) -> Term:
    """`left operator right` of two numbers; a NULL literal takes the other side's type."""
    for term in (left, right):
        if not term.type.numeric and term.type != VOID:
            raise mismatch(f"apply {operator} to", left, right)
    text = f"({left.text} {operator} {right.text})"
    kind = _result(operator, left, right)
    if kind.kind == "decimal":
        return _of_decimals(scope, text, operator, left, right, kind)
    left, right = coerced(scope, left, kind), coerced(scope, right, kind)
    source = _source(scope, operator, left.source, right.source, kind)
    return strict(kind, text, source, left, right)


def minus(scope: Scope, term: Term) -> Term:
    term = expect_number("-", term)
    if term.is_const and not term.is_null:
        return negative(scope, term)
    # Python's own minus would round a decimal to the 28 digits of its default context.
    source = f"{term.source}.copy_negate()" if term.type.kind == "decimal" else f"(-{term.source})"
    return strict(term.type, f"(-{term.text})", _fitted(scope, source, term.type), term)


def _result(operator: str, left: Term, right: Term) -> SqlType:
    kind = common_type(f"apply {operator} to", left, right)
    if operator == "/" and kind.kind != "decimal":
        return FLOAT if kind == FLOAT else DOUBLE
    return DOUBLE if kind == VOID else kind


def _source(scope: Scope, operator: str, left: str, right: str, kind: SqlType) -> str:
    if operator == "%":
        function = float_remainder if kind.floating else remainder
        return f"{scope.reference(function)}({left}, {right})"
    return _fitted(scope, f"({left} {operator} {right})", kind)


def _fitted(scope: Scope, source: str, kind: SqlType) -> str:
    if kind == FLOAT:
        return f"{scope.reference(single)}({source})"
    if not kind.integral:
        return source
    limit, name = 1 << (BITS[kind.kind] - 1), scope.temporary()
    return f"({name} if -{limit} <= ({name} := {source}) < {limit} else {scope.reference(overflow)}())"


def overflow() -> int:
    raise OverflowError("integer overflow")


def float_remainder(left: float, right: float) -> float:
    """Of an infinity it is NaN, where Python raises; by zero it is an error also of NaN, where Python gives NaN."""
    if right == 0.0:
        raise ZeroDivisionError
    return math.nan if math.isinf(left) else math.fmod(left, right)


def remainder(left: int, right: int) -> int:
    rest = abs(left) % abs(right)
    return -rest if left < 0 else rest


def _of_decimals(scope: Scope, text: str, operator: str, left: Term, right: Term, kind: SqlType) -> Term:
    one, two = (as_decimal(term) if term.type != VOID else kind for term in (left, right))
    kind = _decimal_result(operator, one, two)
    step = _decimal_step(operator, kind.precision, kind.scale)
    source = f"{scope.reference(step)}({left.source}, {right.source})"
    return strict(kind, text, source, left, right)


def _decimal_step(operator: str, precision: int, scale: int) -> Callable[[Decimal | int, Decimal | int], Decimal]:
    operation = _DECIMAL[operator]

    def step(left: Decimal | int, right: Decimal | int) -> Decimal:
        return fit_decimal(operation(left, right), precision, scale)

    return step


def _decimal_result(operator: str, one: SqlType, two: SqlType) -> SqlType:
    scale = max(one.scale, two.scale)
    whole = (one.precision - one.scale, two.precision - two.scale)
    if operator in "+-":
        return decimal_type(max(whole) + scale + 1, scale)
    if operator == "*":
        return decimal_type(one.precision + two.precision + 1, one.scale + two.scale)
    if operator == "%":
        return decimal_type(max(min(whole) + scale, 1), scale)
    scale = max(6, one.scale + two.precision + 1)
    return decimal_type(whole[0] + two.scale + scale, scale)
