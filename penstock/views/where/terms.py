"""SQL has three truth values and Python two, so this file writes Python that keeps NULL apart cheaply.

A `Term` is an SQL expression as Python source. Its guards are conditions that hold exactly when the value is
not NULL; they run in order, and after them `source` is the value. `a < b` so becomes
`(t0 := r[0]) is not None and (t1 := r[1]) is not None and t0 < t1`: no function call and no NULL object.
A condition is asked for its truth or its falsity, never negated, because NOT of unknown is unknown.

1. Names and strings of the user enter the source only through `repr`; every other constant by reference.
2. A term's source contains the source of each operand once, so the source grows as the filter does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from penstock.errors import BadQueryError
from penstock.views.where.needs import Needs, On, all_of, any_of
from penstock.views.where.sql_types import (
    BIGINT,
    BITS,
    BOOLEAN,
    DATE,
    DOUBLE,
    INTEGRAL_DIGITS,
    LOCAL,
    STRING,
    TIMESTAMP,
    VOID,
    WIDE,
    SqlType,
    cast,
    decimal_type,
    literal_decimal,
    literal_text,
    parse_date,
    typed_number,
)


class _Variable:
    """Marks a term whose value is not known before a row is."""


VARIABLE: Final = _Variable()


@dataclass(frozen=True)
class Term:
    """An SQL expression: its type, its canonical SQL text, and its Python source."""

    type: SqlType
    text: str
    source: str
    guards: tuple[str, ...] = ()
    raw: str | None = None  # the value or None, where guards[-1] is only the check that it is not None
    const: Any = VARIABLE
    yes: str | None = None  # truth and falsity, where shorter than through the guards
    no: str | None = None
    safe: bool = False  # cannot raise on a row whose values have the types of their columns
    needs: Needs = ()  # what must hold of a row where this condition is true
    centre: tuple[On, float, float] | None = None  # of a distance: latitude of the row and of the centre, km per degree

    @property
    def is_const(self) -> bool:
        return self.const is not VARIABLE

    @property
    def is_null(self) -> bool:
        return self.const is None

    def truth(self) -> str:
        """Source that is True exactly when the condition is TRUE, else False."""
        return self.yes or _all(*self.guards, self.source)

    def falsity(self) -> str:
        """Source that is True exactly when the condition is FALSE, else False."""
        return self.no or _all(*self.guards, f"(not {self.source})")

    def value(self) -> str:
        """Source of the value, None for NULL."""
        if not self.guards:
            return self.source
        if self.raw and len(self.guards) == 1:
            return self.raw
        return f"({self.source} if {_all(*self.guards)} else None)"

    def bare(self) -> Term:
        """The same value, for use behind this term's guards."""
        return replace(self, guards=(), raw=None, yes=None, no=None, needs=())


class FilterScope:
    """The names that one filter's source uses: temporaries, and constants that are not written out."""

    def __init__(self) -> None:
        self.constants: dict[str, Any] = {}
        self._temporaries = 0

    def temporary(self) -> str:
        self._temporaries += 1
        return f"t{self._temporaries}"

    def constant(self, value: Any) -> str:
        if isinstance(value, (bool, str, bytes)) or value is None:
            return repr(value)
        if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
            return f"({value!r})" if value < 0 else repr(value)
        return self.reference(value)

    def reference(self, value: Any) -> str:
        for name, constant in self.constants.items():
            if constant is value:
                return name
        name = f"k{len(self.constants)}"
        self.constants[name] = value
        return name


# Building terms


def literal(scope: FilterScope, kind: SqlType, value: Any) -> Term:
    guards = ("False",) if value is None else ()
    return Term(kind, literal_text(kind, value), scope.constant(value), guards, const=value, safe=True)


def nullable(
    scope: FilterScope, kind: SqlType, text: str, raw: str, behind: Term | None = None, *, total: bool = False
) -> Term:
    """A value that may be None although the guards of the term `behind` it hold; `total`: it never raises."""
    name = scope.temporary()
    guards = (*(behind.guards if behind else ()), f"({name} := {raw}) is not None")
    return Term(kind, text, name, guards, raw=raw, safe=total and (behind is None or behind.safe))


def strict(kind: SqlType, text: str, source: str, *operands: Term, total: bool = False) -> Term:
    """A value that is NULL exactly when one of its operands is; `total`: of values it never raises."""
    guards = tuple(guard for operand in operands for guard in operand.guards)
    return Term(kind, text, source, guards, safe=total and all(operand.safe for operand in operands))


def once(scope: FilterScope, term: Term) -> Term:
    """The same term, cheap to mention again behind its guards."""
    if term.is_const or term.source.isidentifier():
        return term
    name = scope.temporary()
    guards = (*term.guards, f"({name} := {term.source}) is not None")
    return Term(term.type, term.text, name, guards, safe=term.safe)


def _all(*conditions: str) -> str:
    return conditions[0] if len(conditions) == 1 else f"({' and '.join(conditions)})"


def _any(*conditions: str) -> str:
    return conditions[0] if len(conditions) == 1 else f"({' or '.join(conditions)})"


# Three-valued logic


def both(scope: FilterScope, text: str, operands: Sequence[Term]) -> Term:
    """AND: FALSE if one is false, else NULL if one is, else TRUE."""
    yes = _all(*(operand.truth() for operand in operands))
    no = _any(*(operand.falsity() for operand in operands))
    return replace(
        _logical(scope, text, operands, yes, no, decisive=False), needs=all_of(operand.needs for operand in operands)
    )


def either(scope: FilterScope, text: str, operands: Sequence[Term]) -> Term:
    """OR: TRUE if one is true, else NULL if one is, else FALSE."""
    yes = _any(*(operand.truth() for operand in operands))
    no = _all(*(operand.falsity() for operand in operands))
    return replace(
        _logical(scope, text, operands, yes, no, decisive=True), needs=any_of([operand.needs for operand in operands])
    )


def _logical(scope: FilterScope, text: str, operands: Sequence[Term], yes: str, no: str, *, decisive: bool) -> Term:
    safe = all(operand.safe for operand in operands)
    if not any(operand.guards for operand in operands):
        return Term(BOOLEAN, text, yes, yes=yes, no=no, safe=safe)
    names = [scope.temporary() for _ in operands]
    values = [operand.value() for operand in operands]
    decided = _any(*(f"({name} := {value}) is {decisive}" for name, value in zip(names, values, strict=True)))
    unknown = _any(*(f"{name} is None" for name in names))
    raw = f"({decisive} if {decided} else None if {unknown} else {not decisive})"
    return replace(nullable(scope, BOOLEAN, text, raw, total=safe), yes=yes, no=no)


def negated(text: str, term: Term) -> Term:
    flipped = strict(BOOLEAN, text, f"(not {term.source})", term, total=True)
    return replace(flipped, yes=term.falsity(), no=term.truth())


def guarded(text: str, guard: Term, inner: Term) -> Term:
    """A condition that mentions `guard.bare()` and is NULL when `guard` is."""
    return Term(
        BOOLEAN,
        text,
        inner.source,
        (*guard.guards, *inner.guards),
        yes=_all(*guard.guards, inner.truth()),
        no=_all(*guard.guards, inner.falsity()),
        safe=guard.safe and inner.safe,
    )


def is_null(text: str, term: Term) -> Term:
    if not term.guards:
        return Term(BOOLEAN, text, "False", safe=term.safe)
    if term.raw and len(term.guards) == 1:
        return Term(BOOLEAN, text, f"(({term.raw}) is None)", safe=term.safe)
    return Term(BOOLEAN, text, f"(not {_all(*term.guards)})", safe=term.safe)


# Types that meet

_TIMES: Final = frozenset({"date", "timestamp", "timestamp_ntz"})


def mismatch(verb: str, left: Term, right: Term) -> BadQueryError:
    return BadQueryError(
        f"Cannot {verb} {left.text} ({left.type}) and {right.text} ({right.type}).",
        hint="Both sides need types that fit; CAST(x AS type) makes a conversion explicit.",
    )


def common_type(verb: str, left: Term, right: Term) -> SqlType:
    """The type in which Spark's ANSI mode compares the two; a string that is not a literal needs a CAST."""
    one, two = left.type, right.type
    if one == two or two == VOID:
        return one
    if one == VOID:
        return two
    if one.numeric and two.numeric:
        return _common_number(left, right)
    if (kinds := {one.kind, two.kind}) <= _TIMES:
        return TIMESTAMP if "timestamp" in kinds else LOCAL
    if STRING in (one, two):
        text, other = (left, two) if one == STRING else (right, one)
        if text.is_const and not (other.args or other.names):
            return BIGINT if other.integral else DOUBLE if other.numeric else other
    raise mismatch(verb, left, right)


def _common_number(left: Term, right: Term) -> SqlType:
    one, two = left.type, right.type
    if one.floating or two.floating:
        return DOUBLE
    if one.integral and two.integral:
        return max(one, two, key=lambda kind: BITS[kind.kind])
    one, two = as_decimal(left), as_decimal(right)
    scale = max(one.scale, two.scale)
    return decimal_type(max(one.precision - one.scale, two.precision - two.scale) + scale, scale)


def as_decimal(term: Term) -> SqlType:
    """The decimal type that a number has when it meets a decimal."""
    if term.type.kind == "decimal":
        return term.type
    if term.is_const and not term.is_null:
        return literal_decimal(cast(term.type, decimal_type(20, 0))(term.const))  # type: ignore[misc]
    return decimal_type(INTEGRAL_DIGITS[term.type.kind], 0)


def coerced(scope: FilterScope, term: Term, target: SqlType) -> Term:
    """The term as a value of the target type: a constant now, anything else by a cast in the row's path."""
    if term.type == target:
        return term
    if term.type == VOID or (term.type.integral and target.integral):
        return replace(term, type=target)
    step = cast(term.type, target)
    if step is None:
        raise BadQueryError(f"Cannot use {term.text} ({term.type}) as {target}.")
    if term.is_const:
        return literal(scope, target, folded(term, target))
    if target.kind == "decimal" and term.type.kind == "decimal":
        return replace(term, type=target)
    total = target == DOUBLE or {term.type.kind, target.kind} <= _TIMES
    return strict(target, term.text, f"{scope.reference(step)}({term.source})", term, total=total)


def folded(term: Term, target: SqlType) -> Any:
    step = parse_date if term.type == STRING and target == DATE else cast(term.type, target)
    try:
        return step(term.const) if step else None
    except (ValueError, ArithmeticError) as error:
        raise BadQueryError(
            f"{term.text} cannot be read as {target}.",
            detail=str(error)[:200],
            hint=_EXAMPLES.get(target.kind),
        ) from None


_EXAMPLES: Final = {
    "timestamp": "Write a time as '2024-05-01T10:00:00Z' or '2024-05-01 10:00:00' (UTC).",
    "date": "Write a date as '2024-05-01'.",
    "boolean": "Write TRUE or FALSE.",
    "bigint": "Write an integer.",
    "double": "Write a number.",
}


# Comparisons

_PYTHON: Final = {"=": "==", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
FLIPPED: Final = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_ORDERED: Final = frozenset({"boolean", "string", "binary", "decimal", "float", "double", "void", *_TIMES, *BITS})


def is_ordered(kind: SqlType) -> bool:
    """Whether < and > are defined between two values of this type."""
    return kind.kind in _ORDERED


def compare(scope: FilterScope, operator: str, left: Term, right: Term) -> Term:
    """`left operator right` for =, <>, <, <=, >, >=; NaN equals itself and is above every other number."""
    if left.is_const and not right.is_const:
        operator, left, right = FLIPPED[operator], right, left
    left, right = comparable(scope, operator, left, right)
    source, left, right = _compared(scope, operator, left, right)
    term = strict(BOOLEAN, f"({left.text} {operator} {right.text})", source, left, right, total=True)
    if operator == "=" and left.raw and right.is_const and not right.is_null and not _maybe_nan(right):
        return replace(term, yes=_all(*left.guards[:-1], f"({left.raw} == {right.source})"))
    return term


def comparable(scope: FilterScope, operator: str, left: Term, right: Term) -> tuple[Term, Term]:
    kind = common_type("compare", left, right)
    ordered = is_ordered(kind) or (operator in ("=", "<>") and kind.kind in ("struct", "array"))
    if not ordered:
        raise mismatch("compare", left, right)
    if kind.kind == "decimal":
        return left, right  # Python compares integers and decimals exactly
    return coerced(scope, left, kind), coerced(scope, right, kind)


def _compared(scope: FilterScope, operator: str, left: Term, right: Term) -> tuple[str, Term, Term]:
    if not left.type.floating or left.is_null or right.is_null:
        return f"({left.source} {_PYTHON[operator]} {right.source})", left, right
    if not _maybe_nan(right):
        return _above_constant(operator, left.source, right.source), left, right
    left, right = once(scope, left), once(scope, right)
    return _with_nan(operator, left.source, right.source), left, right


def _maybe_nan(term: Term) -> bool:
    return term.type.floating and not (term.is_const and term.const == term.const)


def _above_constant(operator: str, left: str, right: str) -> str:
    """A NaN makes every Python comparison but != false, so > and >= are written as not <= and not <."""
    if operator in (">", ">="):
        return f"(not {left} {'<=' if operator == '>' else '<'} {right})"
    return f"({left} {_PYTHON[operator]} {right})"


def _with_nan(operator: str, left: str, right: str) -> str:
    if operator in ("<", "<="):
        return _with_nan({"<": ">", "<=": ">="}[operator], right, left)
    if operator == ">":
        return f"({right} == {right} and not {left} <= {right})"
    if operator == ">=":
        return f"({left} != {left} or {left} >= {right})"
    equal = f"({left} == {right} or ({left} != {left} and {right} != {right}))"
    return equal if operator == "=" else f"(not {equal})"


def same(scope: FilterScope, left: Term, right: Term) -> Term:
    """`left <=> right`: equality for which NULL is a value like any other."""
    text = f"({left.text} <=> {right.text})"
    left, right = comparable(scope, "=", left, right)
    one, two = scope.temporary(), scope.temporary()
    equal = _compared(scope, "=", _named(left, one), _named(right, two))[0]
    nulls = f"(({one} := {left.value()}) is None) is (({two} := {right.value()}) is None)"
    return Term(BOOLEAN, text, f"({nulls} and ({one} is None or {equal}))", safe=left.safe and right.safe)


def _named(term: Term, name: str) -> Term:
    return Term(term.type, term.text, name)


def negative(scope: FilterScope, term: Term) -> Term:
    """A literal with its sign: the narrowest type of 2147483648 is bigint, that of -2147483648 is int."""
    if term.type.floating or term.type.scale or typed_number(int(term.const))[0] != term.type:
        minus = WIDE.minus(term.const) if term.type.kind == "decimal" else -term.const
        return literal(scope, term.type, minus)
    kind, value = typed_number(-int(term.const))
    return literal(scope, kind, value)


Build = Callable[[FilterScope, str, Sequence[Term]], Term]
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
