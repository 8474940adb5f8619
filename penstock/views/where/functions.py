"""What a filter may call is a table, so that nothing outside it can be reached and the reference can list it.

Each entry takes the scope and the argument terms and returns the term of the call; the argument count is
checked before. What a row needs at run time (substring, rounding) is a plain function of non-NULL values.
Functions of times stand in `time_functions`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any, Final

from penstock.errors import BadQueryError
from penstock.views.where.comparison_needs import expression, has_element, has_prefix
from penstock.views.where.comparison_needs import is_null as null_implied
from penstock.views.where.sql_types import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DOUBLE,
    INT,
    MAX_PRECISION,
    STRING,
    WIDE,
    SqlType,
    decimal_type,
    fit_integer,
    single,
)
from penstock.views.where.terms import (
    Build,
    FilterScope,
    Term,
    call_text,
    coerced,
    common_type,
    comparable,
    compare,
    expect,
    expect_number,
    expect_whole,
    is_null,
    is_ordered,
    negated,
    nullable,
    strict,
    wrong,
)
from penstock.views.where.time_functions import TIME_FUNCTIONS


@dataclass(frozen=True, slots=True)
class Function:
    """A callable of the filter language: how many arguments it takes and how its term is built."""

    name: str
    least: int
    most: int
    build: Build

    def call(self, scope: FilterScope, arguments: Sequence[Term]) -> Term:
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


# Strings


def _of_string(source: str) -> Build:
    """A function of one string, as a Python expression over `{}`."""

    def build(scope: FilterScope, name: str, arguments: Sequence[Term]) -> Term:
        (text,) = arguments
        expect(name, text, STRING)
        return strict(STRING, call_text(name, arguments), f"({source.format(text.source)})", text, total=True)

    return build


def _of_two_strings(kind: SqlType, source: str) -> Build:
    """A function of two strings, as a Python expression over `{}` and `{}`."""

    def build(scope: FilterScope, name: str, arguments: Sequence[Term]) -> Term:
        sources = [expect(name, argument, STRING).source for argument in arguments]
        return strict(kind, call_text(name, arguments), f"({source.format(*sources)})", *arguments, total=True)

    return build


def _starts_with(scope: FilterScope, name: str, arguments: Sequence[Term]) -> Term:
    term = _of_two_strings(BOOLEAN, "{}.startswith({})")(scope, name, arguments)
    prefix = arguments[1].const
    return replace(term, needs=has_prefix(arguments[0], prefix) if isinstance(prefix, str) else ())


def _length(scope: FilterScope, name: str, arguments: Sequence[Term]) -> Term:
    (text,) = arguments
    expect(name, text, STRING, BINARY)
    return strict(INT, call_text(name, arguments), f"len({text.source})", text, total=True)


def _of_string_and_numbers(function: Callable[..., str]) -> Build:
    def build(scope: FilterScope, name: str, arguments: Sequence[Term]) -> Term:
        expect(name, arguments[0], STRING)
        for number in arguments[1:]:
            expect_whole(name, number)
        sources = ", ".join(argument.source for argument in arguments)
        source = f"{scope.reference(function)}({sources})"
        return strict(STRING, call_text(name, arguments), source, *arguments, total=True)

    return build


def substring(text: str, position: int, length: int = 2**31 - 1) -> str:
    """SQL's substring: positions count from 1, negative ones from the end, and 0 is 1."""
    start = position - 1 if position > 0 else len(text) + position if position < 0 else 0
    return text[max(start, 0) : max(start + length, 0)]


def left(text: str, length: int) -> str:
    return text[: max(length, 0)]


def right(text: str, length: int) -> str:
    return text[-length:] if length > 0 else ""


def _replace(scope: FilterScope, name: str, arguments: Sequence[Term]) -> Term:
    sources = ", ".join(expect(name, argument, STRING).source for argument in arguments)
    source = f"{scope.reference(replaced)}({sources})"
    return strict(STRING, call_text(name, arguments), source, *arguments)


def replaced(text: str, old: str, new: str = "") -> str:
    """Bounded, because a nest of these could make a text of any length."""
    if not old:
        return text
    if len(text) + text.count(old) * (len(new) - len(old)) > MAX_TEXT:
        raise OverflowError(f"a text of more than {MAX_TEXT} characters")
    return text.replace(old, new)


def concatenated(scope: FilterScope, text: str, arguments: Sequence[Term]) -> Term:
    for argument in arguments:
        expect("concat", argument, STRING)
    source = f"{scope.reference(joined)}({', '.join(argument.source for argument in arguments)})"
    return strict(STRING, text, source, *arguments)


def joined(*texts: str) -> str:
    """Bounded for the same reason."""
    if sum(map(len, texts)) > MAX_TEXT:
        raise OverflowError(f"a text of more than {MAX_TEXT} characters")
    return "".join(texts)


def _concat(scope: FilterScope, name: str, arguments: Sequence[Term]) -> Term:
    return concatenated(scope, call_text(name, arguments), arguments)


# Numbers


def _abs(scope: FilterScope, name: str, arguments: Sequence[Term]) -> Term:
    number = expect_number(name, arguments[0])
    source = f"{number.source}.copy_abs()" if number.type.kind == "decimal" else f"abs({number.source})"
    if number.type.integral:
        source = f"{scope.reference(fit_integer)}({source}, {number.type.kind!r})"
    return strict(number.type, call_text(name, arguments), source, number, total=not number.type.integral)


def _of_double(function: Callable[[float], float]) -> Build:
    def build(scope: FilterScope, name: str, arguments: Sequence[Term]) -> Term:
        number = coerced(scope, expect_number(name, arguments[0]), DOUBLE)
        source = f"{scope.reference(function)}({number.source})"
        return strict(DOUBLE, call_text(name, arguments), source, number, total=True)

    return build


def sign(value: float) -> float:
    return value if value != value or value == 0 else math.copysign(1.0, value)


def sqrt(value: float) -> float:
    return math.nan if value < 0 else math.sqrt(value)


def _round(scope: FilterScope, name: str, arguments: Sequence[Term]) -> Term:
    number = expect_number(name, arguments[0])
    digits = arguments[1].const if len(arguments) == 2 else 0
    if type(digits) is not int or abs(digits) > MAX_PRECISION:
        raise BadQueryError(f"'{name}' needs a whole number of digits as its second argument, written out.")
    kind, source = number.type, f"({number.source}, {digits})"
    if kind.integral:
        rounded = f"{scope.reference(fit_integer)}({scope.reference(round_integer)}{source}, {kind.kind!r})"
    elif kind.floating:
        rounded = f"{scope.reference(round_double if kind == DOUBLE else round_float)}{source}"
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


def round_float(value: float, digits: int) -> float:
    return single(round_double(value, digits))


def round_decimal(value: Decimal, digits: int, scale: int) -> Decimal:
    rounded = WIDE.quantize(Decimal(value), Decimal(1).scaleb(-digits))
    return WIDE.quantize(rounded, Decimal(1).scaleb(-scale))


def _whole(down: bool) -> Build:
    rounding = ROUND_FLOOR if down else ROUND_CEILING
    to_whole = math.floor if down else math.ceil

    def of_double(value: float) -> int:
        """NaN is 0, as Java's conversion has it; what does not fit a bigint raises."""
        if value != value:
            return 0
        return fit_integer(to_whole(value), "bigint")

    def of_decimal(value: Decimal) -> Decimal:
        return value.to_integral_value(rounding)

    def build(scope: FilterScope, name: str, arguments: Sequence[Term]) -> Term:
        number = expect_number(name, arguments[0])
        text, kind = call_text(name, arguments), number.type
        if kind.integral:
            return strict(BIGINT, text, number.source, number)
        if kind.floating:
            return strict(BIGINT, text, f"{scope.reference(of_double)}({number.source})", number)
        digits = decimal_type(min(kind.precision - kind.scale + 1, MAX_PRECISION), 0)
        return strict(digits, text, f"{scope.reference(of_decimal)}({number.source})", number)

    return build


# NULL and choice


def _coalesce(scope: FilterScope, name: str, arguments: Sequence[Term]) -> Term:
    arguments = unified(scope, name, arguments)
    name_of = scope.temporary()
    tries = [f"{name_of} if ({name_of} := {argument.value()}) is not None else" for argument in arguments[:-1]]
    raw = f"({' '.join(tries)} {arguments[-1].value()})"
    return nullable(scope, arguments[0].type, call_text(name, arguments), raw)


def unified(scope: FilterScope, verb: str, terms: Sequence[Term]) -> list[Term]:
    """The terms in one type, as the branches of CASE and the arguments of coalesce need."""
    widest = terms[0]
    for term in terms[1:]:
        kind = common_type(f"use '{verb}' on", widest, term)
        widest = Term(kind, widest.text if kind == widest.type else term.text, "")
    return [coerced(scope, term, widest.type) for term in terms]


def _if(scope: FilterScope, name: str, arguments: Sequence[Term]) -> Term:
    condition, *values = arguments
    expect(name, condition, BOOLEAN)
    values = unified(scope, name, values)
    text = call_text(name, [condition, *values])
    return choice(scope, text, [(condition.truth(), values[0])], values[1])


def choice(scope: FilterScope, text: str, branches: Sequence[tuple[str, Term]], default: Term) -> Term:
    """The value of the first branch whose condition is true; the values have one type."""
    tries = " ".join(f"{value.value()} if {condition} else" for condition, value in branches)
    return nullable(scope, default.type, text, f"({tries} {default.value()})")


def _is_null(scope: FilterScope, name: str, arguments: Sequence[Term]) -> Term:
    return replace(is_null(f"({arguments[0].text} IS NULL)", arguments[0]), needs=null_implied(arguments[0]))


def _is_not_null(scope: FilterScope, name: str, arguments: Sequence[Term]) -> Term:
    null = _is_null(scope, name, arguments)
    return negated(f"(NOT {null.text})", null)


def _is_nan(scope: FilterScope, name: str, arguments: Sequence[Term]) -> Term:
    """FALSE for NULL, as Spark has it."""
    number = coerced(scope, expect_number(name, arguments[0]), DOUBLE)
    again = scope.temporary()
    source = f"({again} is not None and {again} != {again})"
    raw = f"(({again} := {number.value()}), {source})[1]"
    return Term(BOOLEAN, call_text(name, arguments), raw, safe=number.safe)


def _null_if(scope: FilterScope, name: str, arguments: Sequence[Term]) -> Term:
    value = arguments[0]
    again = scope.temporary()
    kept = Term(value.type, value.text, again, (f"{again} is not None",), raw=again)
    equal = compare(scope, "=", kept, arguments[1])
    raw = f"(({again} := {value.value()}), None if {equal.truth()} else {again})[1]"
    text = call_text(name, [value, comparable(scope, "=", value, arguments[1])[1]])
    return nullable(scope, value.type, text, raw, total=value.safe and arguments[1].safe)


def _extreme(most: Callable[..., Any]) -> Build:
    """The greatest or least of the values that are not NULL; NaN is above every number."""

    def choose(*values: Any) -> Any:
        return most((value for value in values if value is not None), key=ascending_number, default=None)

    def build(scope: FilterScope, name: str, arguments: Sequence[Term]) -> Term:
        terms = unified(scope, name, arguments)
        if not is_ordered(terms[0].type):
            raise wrong(name, terms[0], "values that have an order")
        raw = f"{scope.reference(choose)}({', '.join(term.value() for term in terms)})"
        total = all(term.safe for term in terms)
        return nullable(scope, terms[0].type, call_text(name, terms), raw, total=total)

    return build


def ascending_number(value: Any) -> tuple[bool, Any]:
    return (True, 0) if value != value else (False, value)


# Arrays


def array_contains(scope: FilterScope, name: str, arguments: Sequence[Term]) -> Term:
    """TRUE if the array holds the value, NULL if it does not but holds a NULL, else FALSE."""
    array, wanted = arguments
    if array.type.kind != "array":
        raise wrong(name, array, "an array")
    element = Term(array.type.args[0], f"an element of {array.text}", "e")
    kept, wanted = comparable(scope, "=", element, wanted)
    if kept.source != "e":
        raise BadQueryError(f"Cannot look for {wanted.text} ({wanted.type}) in {array.text} ({array.type}).")
    text = call_text(name, [array, wanted])
    contains = _contains(scope, array, wanted)
    raw = f"({contains} or (None if None in {array.source} else False))"
    answer = nullable(scope, BOOLEAN, text, raw, strict(BOOLEAN, text, "", array, wanted))
    yes = f"({' and '.join((*array.guards, *wanted.guards, contains))})"
    return replace(answer, yes=yes, safe=array.safe and wanted.safe, needs=has_element(array, wanted))


def _contains(scope: FilterScope, array: Term, wanted: Term) -> str:
    if wanted.type.floating and not (wanted.is_const and wanted.const == wanted.const):
        return f"{scope.reference(holds_double)}({array.source}, {wanted.source})"
    return f"({wanted.source} in {array.source})"


def holds_double(values: Sequence[float | None], wanted: float) -> bool:
    return wanted in values or (wanted != wanted and any(value != value for value in values))


def _size(scope: FilterScope, name: str, arguments: Sequence[Term]) -> Term:
    (array,) = arguments
    if array.type.kind not in ("array", "map"):
        raise wrong(name, array, "an array or a map")
    return strict(INT, call_text(name, arguments), f"len({array.source})", array, total=True)


# The table

MANY: Final = 100  # more arguments than a filter of 500 parts has reason to pass


EARTH_KM: Final = 6371.0088
"""Mean radius (IUGG)."""
KM_PER_DEGREE: Final = EARTH_KM * math.pi / 180


def distance(scope: FilterScope, name: str, arguments: Sequence[Term]) -> Term:
    """The great-circle distance in kilometres, which Spark's SQL has no function for and whoever looks for what is near
    needs: `distance(venue.lat, venue.lon, 59.91, 10.75) < 25`.

    A row whose latitude or longitude is no place on earth fails and is counted; NaN gives NaN. With one place written
    out, a bound on the distance bounds the other's latitude.
    """
    terms = [coerced(scope, expect_number(name, argument), DOUBLE) for argument in arguments]
    source = f"{scope.reference(great_circle_km)}({', '.join(term.source for term in terms)})"
    term = strict(DOUBLE, call_text(name, terms), source, *terms)
    for there, here in ((terms[:2], terms[2:]), (terms[2:], terms[:2])):
        on = expression(there[0])
        if on and here[0].is_const and not here[0].is_null:
            return replace(term, centre=(on, here[0].const, KM_PER_DEGREE))
    return term


def great_circle_km(lat1: float, lon1: float, lat2: float, lon2: float) -> float:
    """Raises `ValueError` for what is not a place.

    >>> round(great_circle_km(59.9139, 10.7522, 60.3913, 5.3221))
    305
    """
    if lat1 != lat1 or lon1 != lon1 or lat2 != lat2 or lon2 != lon2:
        return math.nan
    if not (-90 <= lat1 <= 90 and -180 <= lon1 <= 180 and -90 <= lat2 <= 90 and -180 <= lon2 <= 180):
        raise ValueError("not a latitude and a longitude")
    one, two = math.radians(lat1), math.radians(lat2)
    across = math.sin(math.radians(lon2 - lon1) / 2) ** 2
    part = math.sin((two - one) / 2) ** 2 + math.cos(one) * math.cos(two) * across
    return 2 * EARTH_KM * math.asin(math.sqrt(min(1.0, part)))


MAX_TEXT: Final = 65_536
"""Characters that a function may make: a nest of them is run on every row, on the loop."""


def _table() -> dict[str, Function]:
    functions = [
        Function("lower", 1, 1, _of_string("{}.lower()")),
        Function("upper", 1, 1, _of_string("{}.upper()")),
        Function("trim", 1, 1, _of_string("{}.strip(' ')")),
        Function("ltrim", 1, 1, _of_string("{}.lstrip(' ')")),
        Function("rtrim", 1, 1, _of_string("{}.rstrip(' ')")),
        Function("reverse", 1, 1, _of_string("{}[::-1]")),
        Function("length", 1, 1, _length),
        Function("substring", 2, 3, _of_string_and_numbers(substring)),
        Function("left", 2, 2, _of_string_and_numbers(left)),
        Function("right", 2, 2, _of_string_and_numbers(right)),
        Function("replace", 2, 3, _replace),
        Function("concat", 1, MANY, _concat),
        Function("startswith", 2, 2, _starts_with),
        Function("endswith", 2, 2, _of_two_strings(BOOLEAN, "{}.endswith({})")),
        Function("contains", 2, 2, _of_two_strings(BOOLEAN, "{1} in {0}")),
        Function("instr", 2, 2, _of_two_strings(INT, "{}.find({}) + 1")),
        Function("abs", 1, 1, _abs),
        Function("sign", 1, 1, _of_double(sign)),
        Function("sqrt", 1, 1, _of_double(sqrt)),
        Function("round", 1, 2, _round),
        Function("floor", 1, 1, _whole(down=True)),
        Function("ceil", 1, 1, _whole(down=False)),
        *(Function(name, *call) for name, call in TIME_FUNCTIONS.items()),
        Function("coalesce", 1, MANY, _coalesce),
        Function("nullif", 2, 2, _null_if),
        Function("if", 3, 3, _if),
        Function("isnull", 1, 1, _is_null),
        Function("isnotnull", 1, 1, _is_not_null),
        Function("isnan", 1, 1, _is_nan),
        Function("greatest", 2, MANY, _extreme(max)),
        Function("least", 2, MANY, _extreme(min)),
        Function("array_contains", 2, 2, array_contains),
        Function("size", 1, 1, _size),
        Function("distance", 4, 4, distance),
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
    "datediff": "date_diff",
    "dateadd": "date_add",
    "signum": "sign",
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
