"""A filter must know the SQL type of every expression before a row arrives: types, literals and casts.

Types are Spark's, values are Python's as a view row holds them. A cast raises `ValueError` or an
`ArithmeticError` where Spark in ANSI mode would raise, and returns a value otherwise. Zones by region name
("Europe/Berlin") are not read: a filter must not depend on the machine's time zone files.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import ROUND_DOWN, ROUND_HALF_UP, Context, Decimal
from typing import Any, Final

Cast = Callable[[Any], Any]

MAX_PRECISION: Final = 38  # digits of Spark's widest decimal
BITS: Final = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
INTEGRAL_DIGITS: Final = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 20}

# Wide enough that no result of two 38-digit decimals, or of a double written out, is rounded twice.
WIDE: Final = Context(prec=800, rounding=ROUND_HALF_UP, Emax=99999, Emin=-99999)


@dataclass(frozen=True, slots=True)
class SqlType:
    """A Spark type: its kind, a decimal's digits, and the types inside an array, map or struct."""

    kind: str
    args: tuple[SqlType, ...] = ()
    names: tuple[str, ...] = ()
    precision: int = 0
    scale: int = 0

    def __str__(self) -> str:
        if self.kind == "decimal":
            return f"decimal({self.precision},{self.scale})"
        if self.kind == "struct":
            fields = (f"{name}:{arg}" for name, arg in zip(self.names, self.args, strict=True))
            return f"struct<{','.join(fields)}>"
        return f"{self.kind}<{','.join(map(str, self.args))}>" if self.args else self.kind

    @property
    def integral(self) -> bool:
        return self.kind in BITS

    @property
    def floating(self) -> bool:
        return self.kind in ("float", "double")

    @property
    def numeric(self) -> bool:
        return self.integral or self.floating or self.kind == "decimal"


BOOLEAN: Final = SqlType("boolean")
STRING: Final = SqlType("string")
INT: Final = SqlType("int")
BIGINT: Final = SqlType("bigint")
FLOAT: Final = SqlType("float")
DOUBLE: Final = SqlType("double")
TIMESTAMP: Final = SqlType("timestamp")  # an aware datetime in UTC
LOCAL: Final = SqlType("timestamp_ntz")  # a naive datetime
DATE: Final = SqlType("date")
BINARY: Final = SqlType("binary")
VOID: Final = SqlType("void")

_ATOMIC: Final = {
    str(kind): kind for kind in (BOOLEAN, STRING, INT, BIGINT, FLOAT, DOUBLE, TIMESTAMP, LOCAL, DATE, BINARY, VOID)
} | {
    "tinyint": SqlType("tinyint"),
    "smallint": SqlType("smallint"),
    "integer": INT,
    "long": BIGINT,
}


def decimal_type(precision: int, scale: int) -> SqlType:
    """A decimal with Spark's rule for results that need more than 38 digits: give up scale, down to 6."""
    if precision <= MAX_PRECISION:
        return SqlType("decimal", precision=precision, scale=scale)
    whole = precision - scale
    return SqlType("decimal", precision=MAX_PRECISION, scale=max(MAX_PRECISION - whole, min(scale, 6)))


# Spark's simpleString


def parse_type(text: str) -> SqlType:
    """Reads `struct<start:timestamp,end:timestamp>` and the like; an unknown type becomes its own kind."""
    text = text.strip()
    if atomic := _ATOMIC.get(text.lower()):
        return atomic
    if match := re.fullmatch(r"decimal\((\d+),\s*(\d+)\)", text, re.IGNORECASE):
        return SqlType("decimal", precision=int(match[1]), scale=int(match[2]))
    if re.fullmatch(r"(var)?char\(\d+\)|string collate \w+", text, re.IGNORECASE):
        return STRING
    if match := re.fullmatch(r"(array|map|struct)<(.*)>", text, re.IGNORECASE | re.DOTALL):
        return _nested_type(match[1].lower(), list(_split(match[2])))
    return SqlType(text)


def _nested_type(kind: str, parts: list[str]) -> SqlType:
    if kind != "struct":
        return SqlType(kind, tuple(map(parse_type, parts)))
    fields = [part.partition(":") for part in parts]
    names = tuple(name.strip().strip("`") for name, _, _ in fields)
    return SqlType(kind, tuple(parse_type(inner) for _, _, inner in fields), names)


def _split(text: str) -> Iterator[str]:
    """The parts between the commas that stand outside every bracket."""
    depth = start = 0
    for at, char in enumerate(text):
        depth += (char in "<(") - (char in ">)")
        if char == "," and depth == 0:
            yield text[start:at]
            start = at + 1
    if text[start:].strip():
        yield text[start:]


# Text to values

_BLANKS: Final = "".join(map(chr, range(33))) + "\x7f"
"""What Spark leaves out around a text that it reads; Python's own `strip` knows more, such as no-break spaces."""


def _bare(text: str) -> str:
    return text.strip(_BLANKS)


_TIME = re.compile(
    r"(\d{4})(?:-(\d{1,2})(?:-(\d{1,2})(?:[T ](?:(\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d{0,9}))?)?"
    r"\s*(Z|(?:UTC|GMT)?(?:[+-]\d{1,2}(?::?\d{2})?)?)?)?)?)?)?",
    re.ASCII,
)


def parse_timestamp(text: str) -> datetime:
    """Spark's forms, from '2024' to '2024-05-01T10:00:00.123456+02:00'; without a zone it is UTC."""
    match = _TIME.fullmatch(_bare(text))
    if not match:
        raise ValueError(f"{text!r} is not a timestamp")
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    micros = int((fraction or "0").ljust(6, "0")[:6])
    day_start = datetime(int(year), int(month or 1), int(day or 1), tzinfo=_zone(zone or ""))
    moment = day_start.replace(
        hour=int(hour or 0), minute=int(minute or 0), second=int(second or 0), microsecond=micros
    )
    return moment.astimezone(UTC)


def parse_local(text: str) -> datetime:
    """A wall clock time; a zone in the text is ignored, as Spark does."""
    return parse_timestamp(re.sub(r"(Z|(UTC|GMT)?[+-]\d{1,2}:\d{2})$", "", _bare(text))).replace(tzinfo=None)


def in_utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _zone(text: str) -> timezone:
    digits = re.search(r"([+-])(\d{1,2}):?(\d{2})?$", text)
    if not digits:
        return UTC
    offset = timedelta(hours=int(digits[2]), minutes=int(digits[3] or 0))
    if offset > timedelta(hours=18):
        raise ValueError(f"{text!r} is not a zone")
    return timezone(-offset if digits[1] == "-" else offset)


def parse_date(text: str) -> date:
    """'2024', '2024-5' or '2024-05-01'. Spark ignores a time of day behind it; in a filter's text it is an error."""
    match = re.fullmatch(r"(\d{4})(?:-(\d{1,2})(?:-(\d{1,2}))?)?", _bare(text), re.ASCII)
    if not match:
        raise ValueError(f"{text!r} is not a date")
    return date(*(int(part or 1) for part in match.groups()))


def cut_date(text: str) -> date:
    """Of a row's text, as Spark reads it: what stands behind a whole date is cut off."""
    return parse_date(re.sub(r"^(\s*\d{4}-\d{1,2}-\d{1,2})[T ].*", r"\1", text, flags=re.ASCII | re.DOTALL))


def parse_boolean(text: str) -> bool:
    word = _bare(text).lower()
    if word in ("t", "true", "y", "yes", "1"):
        return True
    if word in ("f", "false", "n", "no", "0"):
        return False
    raise ValueError(f"{text!r} is not a boolean")


def parse_double(text: str) -> float:
    word = _bare(text)
    if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?[dDfF]?", word, re.ASCII):
        return float(word.rstrip("dDfF"))
    if re.fullmatch(r"[+-]?inf(inity)?|nan", word, re.IGNORECASE):
        return float(word)
    raise ValueError(f"{text!r} is not a number")


def parse_decimal(text: str) -> Decimal:
    word = _bare(text)
    if not re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?", word, re.ASCII):
        raise ValueError(f"{text!r} is not a number")
    return Decimal(word)


def parse_integer(text: str) -> int:
    word = _bare(text)
    if not re.fullmatch(r"[+-]?\d{1,40}", word, re.ASCII):
        raise ValueError(f"{text!r} is not an integer")
    return int(word)


def midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)


def timestamp_text(moment: datetime) -> str:
    """As Spark prints it in UTC: no zone, no trailing zeros in the fraction."""
    clock = in_utc(moment).strftime("%H:%M:%S")
    fraction = f".{moment.microsecond:06}".rstrip("0") if moment.microsecond else ""
    return f"{in_utc(moment).date().isoformat()} {clock}{fraction}"


# Values that must fit


def fit_integer(value: int, kind: str) -> int:
    limit = 1 << (BITS[kind] - 1)
    if not -limit <= value < limit:
        raise OverflowError(f"{value} does not fit {kind}")
    return value


def fit_decimal(value: Decimal, precision: int, scale: int) -> Decimal:
    """Rounds half up to the scale, as Spark does, and refuses what then has too many digits."""
    rounded = WIDE.quantize(value, Decimal(1).scaleb(-scale))
    if rounded.copy_abs() >= Decimal(10) ** (precision - scale):
        raise OverflowError(f"{value} does not fit decimal({precision},{scale})")
    return rounded


def single(value: float) -> float:
    """The nearest 32-bit float, which is what Spark's `float` holds."""
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def _truncated(value: float | Decimal) -> int:
    return int(Decimal(value).to_integral_value(ROUND_DOWN))


# Casts


def cast(source: SqlType, target: SqlType) -> Cast | None:
    """The function that turns a value of one type into the other, or None where a filter has no such cast."""
    if source == target:
        return lambda value: value
    if target.integral:
        return _to_integer(source, target.kind)
    if target.kind == "decimal":
        return _to_decimal(source, target)
    return _CASTS.get((_family(source), target.kind))


def _family(kind: SqlType) -> str:
    return "integral" if kind.integral else "floating" if kind.floating else kind.kind


def _to_integer(source: SqlType, kind: str) -> Cast | None:
    steps: dict[str, Cast] = {
        "integral": int,
        "boolean": int,
        "floating": _truncated,
        "decimal": _truncated,
        "string": parse_integer,
    }
    step = steps.get(_family(source))
    return step and (lambda value: fit_integer(step(value), kind))


def _to_decimal(source: SqlType, target: SqlType) -> Cast | None:
    steps: dict[str, Cast] = {
        "integral": Decimal,
        "boolean": Decimal,
        "decimal": lambda value: value,
        "string": parse_decimal,
    }
    if source.floating:
        return lambda value: _finite_decimal(value, target)
    step = steps.get(_family(source))
    return step and (lambda value: fit_decimal(step(value), target.precision, target.scale))


def _finite_decimal(value: float, target: SqlType) -> Decimal | None:
    """NULL for NaN and the infinities: Spark does not raise here, also in ANSI mode."""
    if not math.isfinite(value):
        return None
    return fit_decimal(Decimal(repr(value)), target.precision, target.scale)


_CASTS: Final[dict[tuple[str, str], Cast]] = {
    ("integral", "double"): float,
    ("floating", "double"): float,
    ("decimal", "double"): float,
    ("boolean", "double"): float,
    ("string", "double"): parse_double,
    ("integral", "float"): single,
    ("floating", "float"): single,
    ("decimal", "float"): single,
    ("string", "float"): lambda text: single(parse_double(text)),
    ("integral", "boolean"): bool,
    ("floating", "boolean"): bool,
    ("decimal", "boolean"): bool,
    ("string", "boolean"): parse_boolean,
    ("string", "timestamp"): parse_timestamp,
    ("date", "timestamp"): midnight,
    ("string", "date"): cut_date,
    ("timestamp", "date"): lambda moment: moment.astimezone(UTC).date(),
    ("timestamp_ntz", "date"): datetime.date,
    ("timestamp_ntz", "timestamp"): in_utc,
    ("timestamp", "timestamp_ntz"): lambda moment: in_utc(moment).replace(tzinfo=None),
    ("string", "timestamp_ntz"): parse_local,
    ("date", "timestamp_ntz"): lambda day: midnight(day).replace(tzinfo=None),
    ("timestamp_ntz", "string"): timestamp_text,
    ("integral", "string"): str,
    ("decimal", "string"): lambda value: f"{value:f}",
    ("boolean", "string"): lambda value: "true" if value else "false",
    ("date", "string"): date.isoformat,
    ("timestamp", "string"): timestamp_text,
    ("string", "binary"): str.encode,
}


# Literals


def number_literal(text: str) -> tuple[SqlType, int | float | Decimal]:
    """A number as SQL writes it: with an exponent a double, with a point a decimal, else an integer."""
    if "e" in text.lower():
        number = float(text)
        if math.isinf(number):
            raise OverflowError(f"{text} does not fit double")
        return DOUBLE, number
    digits = text.replace(".", "").lstrip("0")
    if max(len(digits), len(text.partition(".")[2])) > MAX_PRECISION:
        raise OverflowError(f"{text} has more than {MAX_PRECISION} digits")
    return typed_number(Decimal(text) if "." in text else int(text))


def typed_number(value: int | Decimal) -> tuple[SqlType, int | Decimal]:
    """The type that Spark gives a literal of this value."""
    if isinstance(value, int):
        for kind in (INT, BIGINT):
            if -(1 << (BITS[kind.kind] - 1)) <= value < 1 << (BITS[kind.kind] - 1):
                return kind, value
        value = Decimal(value)
    return literal_decimal(value), value


def literal_decimal(value: Decimal) -> SqlType:
    scale = max(0, -int(value.as_tuple().exponent))
    return SqlType("decimal", precision=max(len(value.as_tuple().digits), scale, 1), scale=scale)


_SUFFIX: Final = {"tinyint": "Y", "smallint": "S", "int": "", "bigint": "L", "float": "F", "double": "D"}


def literal_text(kind: SqlType, value: Any) -> str:
    """A literal that reads back as this value of this type: filters are equal when their texts are."""
    if value is None:
        return "NULL"
    if kind.numeric:
        return _number_text(kind, value)
    if kind == BOOLEAN:
        return str(value).upper()
    if kind == BINARY:
        return f"X'{value.hex()}'"
    if kind in (TIMESTAMP, LOCAL):
        return f"{kind.kind.upper()} '{timestamp_text(value)}'"
    return f"DATE '{value.isoformat()}'" if kind == DATE else quoted(value)


def _number_text(kind: SqlType, value: Any) -> str:
    if kind.floating:
        return f"{value!r}{_SUFFIX[kind.kind]}" if math.isfinite(value) else f"CAST('{value}' AS {kind})"
    if kind.kind != "decimal":
        plain = typed_number(value)[0] == kind
        return f"{value}{'' if plain else _SUFFIX[kind.kind]}"
    text = f"{value:f}" if kind.scale else f"{value:f}BD"
    return text if literal_decimal(value) == kind else f"CAST({text} AS {kind})"


def quoted(text: str) -> str:
    """A SQL string literal in printable characters."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return "'" + "".join(char if char.isprintable() else _escape(char) for char in escaped) + "'"


def _escape(char: str) -> str:
    return f"\\u{ord(char):04x}" if ord(char) <= 0xFFFF else f"\\U{ord(char):08x}"
