"""What Python's operators do otherwise than SQL's: + - * / % with Spark's types, and LIKE.

Python's numbers neither overflow nor round as SQL's do. Here integers that leave their type and divisions by zero
raise, as in ANSI mode; `/` of integers is a double; `%` has the sign of the dividend; decimals follow Spark's
precision rules and round half up.

A pattern of LIKE comes from a stranger and must not stall the edge, so it is not one regular expression. It is cut at
each %, and each part is looked for once, from the left, in time linear in the value. The language has no RLIKE for the
same reason.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from itertools import takewhile
from typing import Final

from penstock.errors import BadQueryError
from penstock.views.where.comparison_needs import equals, has_prefix
from penstock.views.where.needs import Needs
from penstock.views.where.sql_types import (
    BITS,
    BOOLEAN,
    DOUBLE,
    FLOAT,
    STRING,
    VOID,
    WIDE,
    SqlType,
    decimal_type,
    fit_decimal,
    single,
)
from penstock.views.where.terms import (
    FilterScope,
    Term,
    as_decimal,
    coerced,
    common_type,
    expect,
    expect_number,
    mismatch,
    negative,
    once,
    strict,
)

# Arithmetic

_DECIMAL: Final = {"+": WIDE.add, "-": WIDE.subtract, "*": WIDE.multiply, "/": WIDE.divide, "%": WIDE.remainder}


def arithmetic(scope: FilterScope, operator: str, left: Term, right: Term) -> Term:
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


def minus(scope: FilterScope, term: Term) -> Term:
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


def _source(scope: FilterScope, operator: str, left: str, right: str, kind: SqlType) -> str:
    if operator == "%":
        function = float_remainder if kind.floating else remainder
        return f"{scope.reference(function)}({left}, {right})"
    return _fitted(scope, f"({left} {operator} {right})", kind)


def _fitted(scope: FilterScope, source: str, kind: SqlType) -> str:
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


def _of_decimals(scope: FilterScope, text: str, operator: str, left: Term, right: Term, kind: SqlType) -> Term:
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


# LIKE


def like(scope: FilterScope, text: str, value: Term, pattern: str, escape: str) -> Term:
    """`value LIKE pattern`, as the cheapest Python that decides it."""
    alone = expect("LIKE", value, STRING)
    value, parts = once(scope, alone), like_parts(pattern, escape)
    source = _simple_like(value.source, parts)
    if source is None:
        source = f"{scope.reference(like_matcher(parts))}({value.source})"
    return replace(strict(BOOLEAN, text, source, value, total=True), needs=_needs(alone, parts))


def _needs(value: Term, parts: list[list[str | None]]) -> Needs:
    """What comes before the first wildcard, or the whole of a pattern without one."""
    first = parts[0]
    prefix = "".join(char for char in takewhile(lambda char: char is not None, first) if char)
    return equals(value, prefix) if len(parts) == 1 and None not in first else has_prefix(value, prefix)


def like_parts(pattern: str, escape: str) -> list[list[str | None]]:
    """The pattern cut at each %, a part being characters with None for _."""
    parts: list[list[str | None]] = [[]]
    at = iter(pattern)
    for char in at:
        if char == escape:
            char = next(at, "")
            if char not in ("%", "_", escape):
                raise BadQueryError(
                    f"In the pattern {pattern!r}, {escape!r} must stand before %, _ or itself.",
                    hint="Double it, or choose another character with ESCAPE.",
                )
            parts[-1].append(char)
        elif char == "%":
            parts.append([])
        else:
            parts[-1].append(None if char == "_" else char)
    return parts


def _simple_like(value: str, parts: list[list[str | None]]) -> str | None:
    """Python's own string tests, for a pattern without _ that has at most one word between % signs."""
    if any(None in part for part in parts):
        return None
    words = ["".join(filter(None, part)) for part in parts]
    if len(words) == 1:
        return f"({value} == {words[0]!r})"
    first, last, middle = words[0], words[-1], [word for word in words[1:-1] if word]
    if not middle:
        return _framed(value, first, last)
    return f"({middle[0]!r} in {value})" if len(middle) == 1 and not first and not last else None


def _framed(value: str, first: str, last: str) -> str:
    tests = [f"{value}.startswith({first!r})"] if first else []
    tests += [f"{value}.endswith({last!r})"] if last else []
    if first and last:
        tests.append(f"len({value}) >= {len(first) + len(last)}")
    return f"({' and '.join(tests) or 'True'})"


def like_matcher(parts: list[list[str | None]]) -> Callable[[str], bool]:
    """Takes each part at its leftmost place, which leaves most for the others: there is nothing to retry."""
    searches = [_part_pattern(part) for part in parts]
    sizes = [len(part) for part in parts]
    if len(parts) == 1:
        return lambda value: searches[0].fullmatch(value) is not None

    def matches(value: str) -> bool:
        end = len(value) - sizes[-1]
        if end < sizes[0] or not searches[0].match(value) or not searches[-1].match(value, end):
            return False
        at = sizes[0]
        for search in searches[1:-1]:
            match = search.search(value, at, end)
            if not match:
                return False
            at = match.end()
        return True

    return matches


def _part_pattern(part: Sequence[str | None]) -> re.Pattern[str]:
    return re.compile("".join("." if char is None else re.escape(char) for char in part), re.DOTALL)
