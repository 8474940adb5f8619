"""What a filter may call is a table, so that nothing outside it can be reached and the reference can list it.

Each entry takes the scope and the argument terms and returns the term of the call; the argument count is
checked before. What a row needs at run time (substring, rounding) is a plain function of non-NULL values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Final

from penstock.errors import BadQueryError
from penstock.views.where_terms import (
    Scope,
    Term,
    coerced,
    common_type,
    comparable,
    is_null,
    nullable,
    strict,
)
from penstock.views.where_types import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    INT,
    LOCAL,
    MAX_PRECISION,
    STRING,
    TIMESTAMP,
    VOID,
    WIDE,
    SqlType,
    decimal_type,
    fit_integer,
)

Build = Callable[[Scope, str, Sequence[Term]], Term]


@dataclass(frozen=True, slots=True)
class Function:
    """A callable of the filter language: how many arguments it takes and how its term is built."""

    name: str
    least: int
    most: int
    build: Build

    def call(self, scope: Scope, arguments: Sequence[Term]) -> Term:
        if not self.least <= len(arguments) <= self.most:
            raise BadQueryError(
                f"'{self.name}' takes {self._counts()}, not {len(arguments)}.",
                hint="See docs/reference/filters.md for the functions and their arguments.",
            )
        return self.build(scope, self.name, arguments)

    def _counts(self) -> str:
        most = " or more" if self.most == MANY else f" to {self.most}"
        counts = f"{self.least}" if self.least == self.most else f"{self.least}{most}"
        return f"{counts} argument{'' if counts == '1' else 's'}"


def call_text(name: str, arguments: Sequence[Term]) -> str:
    return f"{name}({', '.join(argument.text for argument in arguments)})"


def expect(name: str, term: Term, *kinds: SqlType) -> Term:
    """The argument itself if its type is one of these; a NULL literal is of every type."""
    if term.type in (*kinds, VOID):
        return term
    raise _wrong(name, term, " or ".join(map(str, kinds)))


def expect_number(name: str, term: Term) -> Term:
    if term.type.numeric:
        return term
    if term.type == VOID:
        return Term(DOUBLE, term.text, term.source, term.guards, const=term.const)
    raise _wrong(name, term, "a number")


def _wrong(name: str, term: Term, wanted: str) -> BadQueryError:
    return BadQueryError(
        f"'{name}' needs {wanted}, but {term.text} is {term.type}.", hint="CAST(x AS type) converts a value."
    )


# Strings


def _of_string(source: str) -> Build:
    """A function of one string, as a Python expression over `{}`."""

    def build(scope: Scope, name: str, arguments: Sequence[Term]) -> Term:
        (text,) = arguments
        expect(name, text, STRING)
        return strict(STRING, call_text(name, arguments), f"({source.format(text.source)})", text)

    return build


def _length(scope: Scope, name: str, arguments: Sequence[Term]) -> Term:
    (text,) = arguments
    expect(name, text, STRING, BINARY)
    return strict(INT, call_text(name, arguments), f"len({text.source})", text)


def _substring(scope: Scope, name: str, arguments: Sequence[Term]) -> Term:
    text, *numbers = arguments
    expect(name, text, STRING)
    for number in numbers:
        if not number.type.integral and number.type != VOID:
            raise _wrong(name, number, "an integer")
    sources = ", ".join(argument.source for argument in arguments)
    source = f"{scope.reference(substring)}({sources})"
    return strict(STRING, call_text(name, arguments), source, *arguments)


def substring(text: str, position: int, length: int | None = None) -> str:
    """SQL's substring: positions count from 1, negative ones from the end, and 0 is 1."""
    start = position - 1 if position > 0 else len(text) + position if position < 0 else 0
    end = len(text) if length is None else start + length
    return text[max(start, 0) : max(end, 0)]


def concatenated(scope: Scope, text: str, arguments: Sequence[Term]) -> Term:
    for argument in arguments:
        expect("concat", argument, STRING)
    return strict(STRING, text, f"({' + '.join(argument.source for argument in arguments)})", *arguments)


def _concat(scope: Scope, name: str, arguments: Sequence[Term]) -> Term:
    return concatenated(scope, call_text(name, arguments), arguments)


# Numbers


def _abs(scope: Scope, name: str, arguments: Sequence[Term]) -> Term:
    number = expect_number(name, arguments[0])
    source = f"{number.source}.copy_abs()" if number.type.kind == "decimal" else f"abs({number.source})"
    if number.type.integral:
        source = f"{scope.reference(fit_integer)}({source}, {number.type.kind!r})"
    return strict(number.type, call_text(name, arguments), source, number)


def _round(scope: Scope, name: str, arguments: Sequence[Term]) -> Term:
    number = expect_number(name, arguments[0])
    digits = arguments[1].const if len(arguments) == 2 else 0
    if type(digits) is not int or abs(digits) > MAX_PRECISION:
        raise BadQueryError(f"'{name}' needs a whole number of digits as its second argument, written out.")
    kind, source = number.type, f"({number.source}, {digits})"
    if kind.integral:
        rounded = f"{scope.reference(fit_integer)}({scope.reference(round_integer)}{source}, {kind.kind!r})"
    elif kind.floating:
        rounded = f"{scope.reference(round_double)}{source}"
    else:
        scale = min(kind.scale, max(digits, 0))
        kind = decimal_type(kind.precision - kind.scale + 1 + scale, scale)
        rounded = f"{scope.reference(round_decimal)}({number.source}, {digits}, {scale})"
    return strict(kind, call_text(name, arguments), rounded, number)


def round_integer(value: int, digits: int) -> int:
    return value if digits >= 0 else int(round_decimal(Decimal(value), digits, 0))


def round_double(value: float, digits: int) -> float:
    if not math.isfinite(value):
        return value
    return float(WIDE.quantize(Decimal(repr(value)), Decimal(1).scaleb(-digits)))


def round_decimal(value: Decimal, digits: int, scale: int) -> Decimal:
    rounded = WIDE.quantize(Decimal(value), Decimal(1).scaleb(-digits))
    return WIDE.quantize(rounded, Decimal(1).scaleb(-scale))


def _whole(down: bool) -> Build:
    rounding = ROUND_FLOOR if down else ROUND_CEILING
    to_whole = math.floor if down else math.ceil

    def of_double(value: float) -> int:
        """Java's conversion to long: NaN is 0, and what is too large is the largest."""
        if not math.isfinite(value):
            value = 0.0 if value != value else math.copysign(2.0**64, value)
        return min(max(to_whole(value), -(2**63)), 2**63 - 1)

    def of_decimal(value: Decimal) -> Decimal:
        return value.to_integral_value(rounding)

    def build(scope: Scope, name: str, arguments: Sequence[Term]) -> Term:
        number = expect_number(name, arguments[0])
        text, kind = call_text(name, arguments), number.type
        if kind.integral:
            return strict(BIGINT, text, number.source, number)
        if kind.floating:
            return strict(BIGINT, text, f"{scope.reference(of_double)}({number.source})", number)
        digits = decimal_type(min(kind.precision - kind.scale + 1, MAX_PRECISION), 0)
        return strict(digits, text, f"{scope.reference(of_decimal)}({number.source})", number)

    return build


# Time


def _field(attribute: str, *kinds: SqlType) -> Build:
    def build(scope: Scope, name: str, arguments: Sequence[Term]) -> Term:
        moment = arguments[0]
        if moment.type == STRING and moment.is_const:
            moment = coerced(scope, moment, TIMESTAMP)
        expect(name, moment, *kinds)
        return strict(INT, call_text(name, [moment]), f"{moment.source}.{attribute}", moment)

    return build


# NULL and choice


def _coalesce(scope: Scope, name: str, arguments: Sequence[Term]) -> Term:
    arguments = unified(scope, name, arguments)
    name_of = scope.temporary()
    tries = [f"{name_of} if ({name_of} := {argument.value()}) is not None else" for argument in arguments[:-1]]
    raw = f"({' '.join(tries)} {arguments[-1].value()})"
    return nullable(scope, arguments[0].type, call_text(name, arguments), raw)


def unified(scope: Scope, verb: str, terms: Sequence[Term]) -> list[Term]:
    """The terms in one type, as the branches of CASE and the arguments of coalesce need."""
    widest = terms[0]
    for term in terms[1:]:
        kind = common_type(f"use '{verb}' on", widest, term)
        widest = Term(kind, widest.text if kind == widest.type else term.text, "")
    return [coerced(scope, term, widest.type) for term in terms]


def _if(scope: Scope, name: str, arguments: Sequence[Term]) -> Term:
    condition, *values = arguments
    expect(name, condition, BOOLEAN)
    values = unified(scope, name, values)
    text = call_text(name, [condition, *values])
    return choice(scope, text, [(condition.truth(), values[0])], values[1])


def choice(scope: Scope, text: str, branches: Sequence[tuple[str, Term]], default: Term) -> Term:
    """The value of the first branch whose condition is true; the values have one type."""
    tries = " ".join(f"{value.value()} if {condition} else" for condition, value in branches)
    return nullable(scope, default.type, text, f"({tries} {default.value()})")


def _is_null(scope: Scope, name: str, arguments: Sequence[Term]) -> Term:
    return is_null(f"({arguments[0].text} IS NULL)", arguments[0])


# Arrays


def array_contains(scope: Scope, name: str, arguments: Sequence[Term]) -> Term:
    """TRUE if the array holds the value, NULL if it does not but holds a NULL, else FALSE."""
    array, wanted = arguments
    if array.type.kind != "array":
        raise _wrong(name, array, "an array")
    element = Term(array.type.args[0], f"an element of {array.text}", "e")
    kept, wanted = comparable(scope, "=", element, wanted)
    if kept.source != "e":
        raise BadQueryError(f"Cannot look for {wanted.text} ({wanted.type}) in {array.text} ({array.type}).")
    text = call_text(name, [array, wanted])
    found = _found(scope, array, wanted)
    guards = (*array.guards, *wanted.guards)
    missing = f"({found} or (None if None in {array.source} else False))"
    answer = nullable(scope, BOOLEAN, text, missing, strict(BOOLEAN, text, "", array, wanted))
    yes = f"({' and '.join((*guards, found))})"
    return Term(BOOLEAN, text, answer.source, answer.guards, answer.raw, yes=yes)


def _found(scope: Scope, array: Term, wanted: Term) -> str:
    if wanted.type.floating and not (wanted.is_const and wanted.const == wanted.const):
        return f"{scope.reference(holds_double)}({array.source}, {wanted.source})"
    return f"({wanted.source} in {array.source})"


def holds_double(values: Sequence[float | None], wanted: float) -> bool:
    return wanted in values or (wanted != wanted and any(value != value for value in values))


def _size(scope: Scope, name: str, arguments: Sequence[Term]) -> Term:
    (array,) = arguments
    if array.type.kind not in ("array", "map"):
        raise _wrong(name, array, "an array or a map")
    return strict(INT, call_text(name, arguments), f"len({array.source})", array)


# The table

MANY: Final = 100  # more arguments than a filter of 500 parts has reason to pass


def _table() -> dict[str, Function]:
    functions = [
        Function("lower", 1, 1, _of_string("{}.lower()")),
        Function("upper", 1, 1, _of_string("{}.upper()")),
        Function("trim", 1, 1, _of_string("{}.strip(' ')")),
        Function("ltrim", 1, 1, _of_string("{}.lstrip(' ')")),
        Function("rtrim", 1, 1, _of_string("{}.rstrip(' ')")),
        Function("length", 1, 1, _length),
        Function("substring", 2, 3, _substring),
        Function("concat", 1, MANY, _concat),
        Function("abs", 1, 1, _abs),
        Function("round", 1, 2, _round),
        Function("floor", 1, 1, _whole(down=True)),
        Function("ceil", 1, 1, _whole(down=False)),
        Function("year", 1, 1, _field("year", TIMESTAMP, LOCAL, DATE)),
        Function("month", 1, 1, _field("month", TIMESTAMP, LOCAL, DATE)),
        Function("day", 1, 1, _field("day", TIMESTAMP, LOCAL, DATE)),
        Function("hour", 1, 1, _field("hour", TIMESTAMP, LOCAL)),
        Function("minute", 1, 1, _field("minute", TIMESTAMP, LOCAL)),
        Function("second", 1, 1, _field("second", TIMESTAMP, LOCAL)),
        Function("coalesce", 1, MANY, _coalesce),
        Function("if", 3, 3, _if),
        Function("isnull", 1, 1, _is_null),
        Function("array_contains", 2, 2, array_contains),
        Function("size", 1, 1, _size),
    ]
    return {function.name: function for function in functions}


FUNCTIONS: Final = _table()
ALIASES: Final = {
    "substr": "substring",
    "char_length": "length",
    "ceiling": "ceil",
    "dayofmonth": "day",
    "nvl": "coalesce",
    "ifnull": "coalesce",
    "cardinality": "size",
    "lcase": "lower",
    "ucase": "upper",
}


def find_function(name: str) -> Function:
    """The function of this name, in any case; an unknown one is an error that lists what there is."""
    lower = name.lower()
    function = FUNCTIONS.get(ALIASES.get(lower, lower))
    if function is None:
        raise BadQueryError(
            f"A filter cannot call '{name}'.", hint=f"Functions in a filter: {', '.join(sorted(FUNCTIONS))}."
        )
    return function
