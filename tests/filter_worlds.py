"""Random filters and rows that meet in every type, for comparing the edge's answers with an index's and Spark's."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from penstock.change import Column

COLUMNS = (
    Column("id", "bigint"),
    Column("s", "string"),
    Column("n", "int"),
    Column("b", "bigint"),
    Column("x", "double"),
    Column("f", "float"),
    Column("d", "decimal(10,2)"),
    Column("ok", "boolean"),
    Column("at", "timestamp"),
    Column("local", "timestamp_ntz"),
    Column("day", "date"),
    Column("tags", "array<string>"),
    Column("nums", "array<int>"),
    Column("counts", "map<string,int>"),
    Column("place", "struct<city:string,lat:double,lon:double>"),
    Column("grp", "struct<name:string,topics:array<struct<topic:string,n:int>>>"),
)

NAN = float("nan")
STRINGS = [
    "",
    "a",
    "A",
    "ab",
    "abc",
    "b",
    "B ",
    " b",
    "ba",
    "50%",
    "a_c",
    "æ",
    "é",
    "\U0001f600",
    "\uffff",
    "Jazz",
    "jazz",
]
INTS = [-(2**31), -7, -1, 0, 1, 2, 3, 5, 7, 42, 2**31 - 1]
BIGS = [*INTS, 2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63)]
DOUBLES = [-1.5, -0.0, 0.0, 0.5, 1.0, 2.5, 3.0, 7.0, 1e300, float("inf"), float("-inf"), NAN, 9007199254740992.0]
FLOATS = [-1.5, -0.0, 0.0, 0.5, 1.0, 2.5, 0.10000000149011612, float("inf"), NAN]
DECIMALS = [
    Decimal(text) for text in ("-7.00", "-1.50", "0.00", "0.50", "1.00", "2.50", "3.00", "42.00", "99999999.99")
]
START = datetime(2024, 5, 1, 10, tzinfo=UTC)
MOMENTS = [START + timedelta(minutes=m) for m in (-600, -1, 0, 1, 59, 60, 60 * 14, 60 * 24 * 40)] + [
    START + timedelta(microseconds=1),
    datetime(1969, 12, 31, 23, 59, 59, 500_000, tzinfo=UTC),
]
DAYS = [
    date(2024, 2, 29),
    date(2024, 4, 30),
    date(2024, 5, 1),
    date(2024, 5, 2),
    date(2024, 12, 30),
    date(1969, 12, 31),
]
LATITUDES = [-90.0, -33.9, 0.0, 59.9, 59.95, 60.4, 90.0, NAN]
LONGITUDES = [-180.0, -0.1, 0.0, 5.3, 10.7, 10.8, 179.9]


class Rows:
    """Rows of `COLUMNS`, with NULL in every place."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def row(self, number: int = 0) -> tuple[Any, ...]:
        pick = self._pick
        local = pick(MOMENTS)
        return (
            number,
            pick(STRINGS),
            pick(INTS),
            pick(BIGS),
            pick(DOUBLES),
            pick(FLOATS),
            pick(DECIMALS),
            pick([True, False]),
            pick(MOMENTS),
            None if local is None else local.replace(tzinfo=None),
            pick(DAYS),
            self._list(STRINGS),
            self._list(INTS),
            self._maybe(
                {key: self._pick(INTS) for key in self._rng.sample(["a", "b", "Jazz"], self._rng.randint(0, 3))}
            ),
            self._maybe({"city": pick(STRINGS), "lat": pick(LATITUDES), "lon": pick(LONGITUDES)}),
            self._maybe({"name": pick(STRINGS), "topics": self._topics()}),
        )

    def _pick(self, values: list[Any]) -> Any:
        return self._maybe(self._rng.choice(values))

    def _maybe(self, value: Any) -> Any:
        return None if self._rng.random() < 0.15 else value

    def _list(self, values: list[Any]) -> Any:
        return self._maybe([self._pick(values) for _ in range(self._rng.randint(0, 3))])

    def _topics(self) -> Any:
        each = [
            self._maybe({"topic": self._pick(STRINGS), "n": self._pick(INTS)}) for _ in range(self._rng.randint(0, 3))
        ]
        return self._maybe(each)


class Filters:
    """Conditions over `COLUMNS`, most of them well typed, and the parameters that they use."""

    def __init__(self, rng: random.Random, *, distance: bool = True, raising: bool = True) -> None:
        """Without `distance` Spark knows all functions; without `raising` none of them overflows."""
        self._rng = rng
        self._distance = distance
        self._wholes = _WHOLE + _RAISING if raising else _WHOLE
        self.params: dict[str, Any] = {}

    def condition(self, depth: int) -> str:
        if depth == 0 or self._rng.random() < 0.25:
            return self._simple()
        a, b = self.condition(depth - 1), self.condition(depth - 1)
        return self._rng.choice(
            [
                f"({a}) AND ({b})",
                f"({a}) AND ({b})",
                f"({a}) OR ({b})",
                f"({a}) AND ({b}) AND ({self.condition(0)})",
                f"NOT ({a})",
                f"({a}) IS TRUE",
                f"({a}) IS NOT NULL",
                f"coalesce({a}, {b})",
                f"CASE WHEN {a} THEN {b} ELSE ok END",
                f"({a}) <=> ({b})",
            ]
        )

    def _simple(self) -> str:
        made = self._rng.choice(
            [
                self._compared,
                self._compared,
                self._compared,
                self._among,
                self._between,
                self._pattern,
                self._element,
                self._null,
                self._near if self._distance else self._compared,
                self._columns,
            ]
        )
        return made()

    def _compared(self) -> str:
        side, value = self._sides()
        operator = self._rng.choice(
            ["=", "=", "<", "<=", ">", ">=", "<>", "<=>", "IS DISTINCT FROM", "IS NOT DISTINCT FROM"]
        )
        return f"{value} {operator} {side}" if self._rng.random() < 0.2 else f"{side} {operator} {value}"

    def _among(self) -> str:
        side, value = self._sides()
        values = ", ".join([value, *(self._value(side) for _ in range(self._rng.randint(0, 2)))])
        word = self._rng.choice(["IN", "IN", "NOT IN"])
        return f"{side} {word} ({values}{', NULL' if self._rng.random() < 0.1 else ''})"

    def _between(self) -> str:
        side, value = self._sides()
        return f"{side} {self._rng.choice(['', 'NOT '])}BETWEEN {value} AND {self._value(side)}"

    def _pattern(self) -> str:
        side = self._text()
        pattern = self._rng.choice(
            ["a%", "ab%", "%b", "%a%", "_b%", "a", "Ja__", "", "%", "50!%", "\U0001f600%", "\uffff%", "a!_%"]
        )
        word = self._rng.choice(["LIKE", "LIKE", "NOT LIKE", "ILIKE"])
        return f"{side} {word} '{pattern}' ESCAPE '!'" if "!" in pattern else f"{side} {word} '{pattern}'"

    def _element(self) -> str:
        array = self._rng.choice(["tags", "tags", "grp.topics.topic"])
        value = self._bound_to(self._rng.choice(STRINGS))
        if self._rng.random() < 0.3:
            array, value = self._rng.choice(["nums", "grp.topics.n"]), self._number(whole=True)
        return self._rng.choice([f"{value} = ANY({array})", f"array_contains({array}, {value})"])

    def _null(self) -> str:
        side = self._rng.choice([self._sides()[0], "tags", "place", "counts", "place.lat", "grp.topics"])
        return f"{side} IS {self._rng.choice(['', 'NOT '])}NULL"

    def _near(self) -> str:
        here = self._rng.choice(["59.91, 10.75", "0, 0", "-33.9, 18", "90, 0", "59.9D, 179.9D"])
        places = ["place.lat, place.lon", here]
        self._rng.shuffle(places)
        bound = self._rng.choice(["25", "0", "310.5", "1e4", "20100"])
        return f"distance({places[0]}, {places[1]}) {self._rng.choice(['<', '<=', '>', '='])} {bound}"

    def _columns(self) -> str:
        return self._rng.choice(
            ["n < b", "n = x", "x = f", "d > n", "at > day", "at = local", "place.city = s", "x <=> f", "ok"]
        )

    # One side and a value of a type that fits it

    def _sides(self) -> tuple[str, str]:
        side = self._rng.choice(
            [self._text(), "n", "b", "x", "f", "d", "ok", self._time(), self._whole(), "counts['a']"]
        )
        return side, self._value(side)

    def _value(self, side: str) -> str:
        if side == "ok":
            return self._rng.choice(["TRUE", "FALSE", "NULL", "'true'"])
        if side in _TEXTS:
            return self._string()
        if side in _MOMENTS:
            return self._bound_to(
                self._rng.choice(["2024-05-01T10:00:00Z", "2024-05-01", "2024-05-01 12:00:00+02:00", "1970"])
            )
        if side in _DAYS:
            return self._rng.choice(["'2024-05-01'", "DATE '2024-04-30'", "TIMESTAMP '2024-05-01 10:00:00'", "NULL"])
        return self._number(whole=side in self._wholes)

    def _text(self) -> str:
        return self._rng.choice(_TEXTS)

    def _time(self) -> str:
        return self._rng.choice(_MOMENTS + _DAYS)

    def _whole(self) -> str:
        return self._rng.choice(self._wholes)

    def _string(self) -> str:
        return self._bound_to(self._rng.choice([*STRINGS, None]))

    def _number(self, *, whole: bool = False) -> str:
        values: list[Any] = [0, 1, 2, 5, 42, -1, 2**31]
        if not whole:
            values += [1.0, 2.5, -0.0, 9007199254740992.0, Decimal("2.50"), Decimal("0.5"), 2**53 + 1, None]
        value = self._rng.choice(values)
        return self._bound_to(value)

    def _bound_to(self, value: Any) -> str:
        """Written out, or as a parameter."""
        if self._rng.random() < 0.4:
            name = f"p{len(self.params)}"
            self.params[name] = value
            return f":{name}"
        if isinstance(value, str):
            return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
        if isinstance(value, float):
            return f"{value!r}D"
        return "NULL" if value is None else str(value)


_TEXTS = [
    *("s", "s", "s", "place.city", "grp.name", "lower(s)", "upper(place.city)", "trim(s)", "ltrim(s)", "rtrim(s)"),
    *("reverse(s)", "concat(s, '!')", "s || grp.name", "substring(s, 2)", "substring(s, -2, 1)", "left(s, 2)"),
    *("right(s, 1)", "replace(s, 'a', 'xy')", "replace(s, '')", "coalesce(s, 'b')", "nullif(s, 'a')"),
    *("greatest(s, 'b')", "least(s, grp.name)", "if(ok, s, 'a')", "CAST(n AS string)", "CAST(d AS string)"),
]
_MOMENTS = [
    *("at", "at", "at", "local", "date_trunc('hour', at)", "date_trunc('week', at)", "date_trunc('quarter', at)"),
    *("date_trunc('day', at)", "date_trunc('month', at)", "date_trunc('year', at)", "date_trunc('minute', at)"),
    *(
        "date_trunc('second', at)",
        "timestamp_seconds(n)",
        "timestamp_millis(n)",
        "to_timestamp(day)",
        "CAST(day AS timestamp)",
    ),
]
_DAYS = ["day", "day", "to_date(at)", "CAST(at AS date)", "date_add(day, 1)", "date_sub(day, 31)"]
_WHOLE = [
    *("n", "length(s)", "size(tags)", "size(counts)", "instr(s, 'b')", "year(at)", "quarter(day)", "month(at)"),
    *("day(at)", "dayofweek(day)", "weekday(at)", "dayofyear(day)", "weekofyear(day)", "hour(at)", "minute(at)"),
    *("second(local)", "date_diff(day, '2024-04-01')", "unix_seconds(at)", "unix_millis(at)", "CAST(d AS int)"),
    *("floor(d)", "ceil(d)", "round(d)", "n % 3", "sign(d)", "abs(d)", "sqrt(abs(d))", "d + 1"),
    *("d * 2", "d - n", "round(x, 1)", "-d", "greatest(n, 2)", "least(x, n, 1)", "nullif(n, 5)", "coalesce(n, b)"),
    *("x * 2", "x + f", "n / 4", "CASE n WHEN 1 THEN 5 WHEN 2 THEN b END", "if(isnan(x), 1, 2)", "counts.b"),
]
_RAISING = [
    "n + 1",
    "n - 1",
    "n * 2",
    "-n",
    "b + 1",
    "abs(n)",
    "round(n, -1)",
    "CAST(b AS int)",
    "1 / n",
    "nums[1]",
    "floor(x)",
]
