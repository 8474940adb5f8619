"""A value that is bound to a filter's parameter comes from a stranger, so it stays a value: it is typed, never parsed.

JSON has few types: a text beside a time, a date or a number in the filter is read as that, as a literal in quotes
would be. In a Python process the value may also be a `Decimal`, `datetime`, `date` or `bytes`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final

from penstock.errors import BadQueryError
from penstock.views.where.sql_types import (
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    LOCAL,
    MAX_PRECISION,
    STRING,
    TIMESTAMP,
    VOID,
    SqlType,
    typed_number,
)

MAX_VALUES: Final = 1_000
"""Of a list."""
MAX_CHARS: Final = 4096
MAX_PARAMS: Final = 100

Typed = tuple[SqlType, Any]


def check_params(params: Any) -> Mapping[str, Any]:
    """The parameters as a client gave them, before there is a filter to bind them to."""
    if not isinstance(params, Mapping) or not all(isinstance(name, str) for name in params):
        raise BadQueryError("'params' must be an object.", hint='params={"least": 10} for `rsvps >= :least`')
    if len(params) > MAX_PARAMS:
        raise BadQueryError(f"There are {len(params)} parameters; {MAX_PARAMS} are allowed.")
    return params


def typed_parameter(name: str, value: Any) -> Typed:
    """The value with the type that a literal of it has in Spark."""
    if value is None:
        return VOID, None
    if isinstance(value, bool):
        return BOOLEAN, value
    if isinstance(value, (int, Decimal)):
        return _exact(name, value)
    if isinstance(value, float):
        return DOUBLE, value
    if isinstance(value, str):
        return STRING, _text(name, value)
    return _other(name, value)


def _other(name: str, value: Any) -> Typed:
    if isinstance(value, datetime):
        return (LOCAL, value) if value.tzinfo is None else (TIMESTAMP, value.astimezone(UTC))
    if isinstance(value, date):
        return DATE, value
    if isinstance(value, bytes):
        return BINARY, value
    raise BadQueryError(
        f"The parameter ':{name}' is of a kind that a filter does not know.",
        hint="A parameter is a text, a number, true, false, null, or a list of these for `= ANY(:name)`.",
    )


def _exact(name: str, value: int | Decimal) -> Typed:
    number = Decimal(value)
    if not number.is_finite():
        raise BadQueryError(f"The parameter ':{name}' is not a finite number.")
    places = max(0, -int(number.as_tuple().exponent))
    if max(number.adjusted() + 1, 0) + places > MAX_PRECISION:
        raise BadQueryError(f"The parameter ':{name}' has more than {MAX_PRECISION} digits.")
    if isinstance(value, int):
        return typed_number(value)
    return typed_number(number if places else Decimal(int(number)))  # 1E+3 is written with its zeros


def _text(name: str, value: str) -> str:
    if len(value) > MAX_CHARS:
        raise BadQueryError(f"The parameter ':{name}' has {len(value)} characters; {MAX_CHARS} are allowed.")
    return value


def typed_list(name: str, values: Sequence[Any]) -> list[Typed]:
    if len(values) > MAX_VALUES:
        raise BadQueryError(f"The list ':{name}' has {len(values)} values; {MAX_VALUES} are allowed.")
    return [typed_parameter(name, value) for value in values]
