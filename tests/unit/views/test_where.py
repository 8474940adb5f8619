"""Filters: what they let through, in three-valued logic; what they refuse; and that no text can break them."""

from __future__ import annotations

import itertools
import random
import string
import time
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.change import Column
from penstock.errors import BadQueryError
from penstock.views.where import Where, compile_where
from penstock.views.where_syntax import MAX_CHARS, MAX_DEPTH, MAX_NODES

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
LATER = datetime(2024, 5, 1, 12, 1, tzinfo=UTC)
NAN = float("nan")

COLUMNS = (
    Column("window", "struct<start:timestamp,end:timestamp>"),
    Column("topic", "string"),
    Column("rsvps", "bigint"),
    Column("n", "int"),
    Column("score", "double"),
    Column("price", "decimal(10,2)"),
    Column("ok", "boolean"),
    Column("at", "timestamp"),
    Column("day", "date"),
    Column("tags", "array<string>"),
    Column("counts", "map<string,int>"),
    Column("raw", "binary"),
    Column("venues", "array<struct<city:string,seats:int>>"),
    Column("place", "struct<geo:struct<lat:double,lon:double>,name:string>"),
    Column("local", "timestamp_ntz"),
    Column("Mixed Case", "string"),
)

FULL: dict[str, Any] = {
    "window": {"start": NOON, "end": LATER},
    "topic": "Jazz",
    "rsvps": 42,
    "n": 7,
    "score": 1.5,
    "price": Decimal("9.50"),
    "ok": True,
    "at": NOON,
    "day": date(2024, 5, 1),
    "tags": ["Jazz", "Blues"],
    "counts": {"k": 1},
    "raw": b"\x1a",
    "venues": [{"city": "Oslo", "seats": 10}, None],
    "place": {"geo": {"lat": 59.9, "lon": 10.7}, "name": "Oslo"},
    "local": datetime(2024, 5, 1, 12),
    "Mixed Case": "x",
}


def row(**values: Any) -> tuple[Any, ...]:
    return tuple(values.get(column.name, FULL[column.name]) for column in COLUMNS)


NULLS = tuple(None for _ in COLUMNS)


def where(text: str) -> Where:
    return compile_where(text, COLUMNS)


def holds(text: str, **values: Any) -> bool:
    """Whether the row passes, and did so without a row error."""
    compiled = where(text)
    answer = compiled(row(**values))
    assert compiled.errors == 0, text
    assert type(answer) is bool
    return answer


TRUE = """
rsvps = 42 | rsvps == 42 | rsvps <> 41 | rsvps != 41 | rsvps < 43 | rsvps <= 42 | rsvps > 41 | rsvps >= 42
42 = rsvps | 41 < rsvps | rsvps <=> 42 | rsvps is distinct from 41 | NOT rsvps = 41 | ! (rsvps = 41)
topic = 'Jazz' | topic = "Jazz" | TOPIC = 'Jazz' | `topic` = 'Jazz' | topic > 'Jaz' | topic = 'Ja' 'zz'
topic = 'Jazz' AND rsvps > 40 | topic = 'x' OR rsvps > 40 | ok | ok = true | ok IS TRUE | (topic = 'x') IS FALSE
rsvps IN (1, 42) | rsvps NOT IN (1, 2) | topic IN ('Jazz', 'Blues') | rsvps IN (n, n * 6) | price IN (9.5, 1)
rsvps BETWEEN 42 AND 43 | rsvps NOT BETWEEN 1 AND 41 | at BETWEEN '2024-05-01' AND '2024-05-02'
topic LIKE 'J%' | topic LIKE '%zz' | topic LIKE '%az%' | topic LIKE 'J__z' | topic LIKE 'J%z' | topic LIKE '%'
topic LIKE 'J%a%z' | topic NOT LIKE 'j%' | topic ILIKE 'jAZZ' | topic NOT ILIKE 'x%' | topic LIKE '_a%z'
rsvps + 1 = 43 | rsvps - 1 = 41 | rsvps * 2 = 84 | rsvps / 4 = 10.5 | rsvps % 5 = 2 | -rsvps = -42 | +rsvps = 42
-rsvps % 5 = -2 | price * 2 = 19 | price + 0.01 = 9.51 | price / 2 = 4.75 | score * 2 = 3 | 1e0 < score
at = TIMESTAMP '2024-05-01 12:00:00' | at = '2024-05-01T12:00:00Z' | at = '2024-05-01T14:00:00+02:00'
at > '2024' | at > '2024-05' | at < '2024-05-01 12:00:00.000001' | at > DATE '2024-05-01' | at > day
day = DATE '2024-05-01' | day = '2024-05-01' | day < '2024-5-2' | local = '2024-05-01 12:00' | local = at
window.start = '2024-05-01 12:00' | window.end > window.start | window['start'] = at | WINDOW.Start = at
place.geo.lat > 59 | place.name = 'Oslo' | venues[0].city = 'Oslo' | venues.city[0] = 'Oslo'
tags[0] = 'Jazz' | counts['k'] = 1 | counts.k = 1 | counts['none'] IS NULL | size(tags) = 2
array_contains(tags, 'Jazz') | 'Jazz' = ANY(tags) | NOT 'x' = ANY(tags) | 'Oslo' = ANY(venues.city)
lower(topic) = 'jazz' | upper(topic) = 'JAZZ' | length(topic) = 4 | trim('  a ') = 'a' | concat(topic, '!') = 'Jazz!'
topic || '!' = 'Jazz!' | substring(topic, 2, 2) = 'az' | substring(topic, -2) = 'zz' | substr(topic, 0, 1) = 'J'
coalesce(NULL, topic) = 'Jazz' | abs(-rsvps) = 42 | round(price) = 10 | round(2.5) = 3 | round(-2.5D) = -3
round(rsvps, -1) = 40 | floor(score) = 1 | ceil(score) = 2 | floor(price) = 9 | round(1.005D, 2) = 1.01
year(at) = 2024 | month(day) = 5 | day(at) = 1 | hour(at) = 12 | minute(window.end) = 1 | year(local) = 2024
CASE WHEN rsvps > 50 THEN 'big' ELSE 'small' END = 'small' | CASE n WHEN 7 THEN true END | if(ok, 1, 2) = 1
CAST(rsvps AS string) = '42' | CAST('42' AS int) = n * 6 | CAST(at AS date) = day | CAST(price AS int) = 9
CAST(1 AS boolean) | rsvps = '42' | score = '1.5' | ok = 'true' | raw = X'1A' | `Mixed Case` = 'x' | n = 7L
rsvps > 41.5 | rsvps < 42.5 | price = 9.5 | price > 9 | score > 1 | n < 3000000000 | topic IS NOT NULL
reverse(topic) = 'zzaJ' | left(topic, 2) = 'Ja' | right(topic, 2) = 'zz' | replace(topic, 'z', '+') = 'Ja++'
replace(topic, 'zz') = 'Ja' | startswith(topic, 'Ja') | endswith(topic, 'zz') | contains(topic, 'az')
instr(topic, 'z') = 3 | sign(-rsvps) = -1 | sqrt(price * 9.5) = 9.5 | isnan(score) = false | isnan(CAST('NaN' AS double)) | isnotnull(topic)
nullif(n, 8) = 7 | nullif(n, 7) IS NULL | greatest(n, rsvps, NULL) = 42 | least(topic, 'Golf') = 'Golf' | quarter(day) = 2
dayofweek(day) = 4 | weekday(day) = 2 | dayofyear(day) = 122 | weekofyear(day) = 18 | date_trunc('hour', window.end) = at
date_trunc('WEEK', at) = '2024-04-29' | date_trunc('quarter', at) = '2024-04-01' | date_add(day, 1) = '2024-05-02'
date_sub(day, 1) = '2024-04-30' | date_diff(day, '2024-04-30') = 1 | datediff(at, DATE '2024-05-03') = -2
to_date(at) = day | to_timestamp('2024-05-01 12:00:00') = at | unix_seconds(at) = 1714564800 | unix_millis(at) % 1000 = 0
timestamp_seconds(1714564800) = at | timestamp_millis(1714564800000) = at | distance(60, 10, 60, 10) = 0
distance(place.geo.lat, place.geo.lon, 60.3913, 5.3221) BETWEEN 300 AND 310 | distance(0, 0, 0, 180) > 20015
window = window | -9223372036854775808 < rsvps | 'it''s' = 'it\\'s' | rsvps = 42 -- a comment
""".replace("\n", " | ")


@pytest.mark.parametrize("text", [text.strip() for text in TRUE.split(" | ") if text.strip()])
def test_a_true_condition_passes_and_its_negation_does_not(text: str) -> None:
    assert holds(text)
    condition = text.partition("--")[0]
    assert not holds(f"NOT ({condition})")
    assert holds(f"NOT NOT ({condition})")


UNKNOWN = """
rsvps = 1 | rsvps <> 1 | rsvps < 1 | rsvps + 1 = 1 | -rsvps = 1 | topic = 'x' | topic LIKE '%' | topic IN ('x')
rsvps NOT IN (1) | rsvps BETWEEN 1 AND 2 | ok | NOT ok | ok AND true | ok OR false | ok = ok | score > score
window.start > '2024' | place.geo.lat > 1 | tags[0] = 'x' | counts['k'] = 1 | 'x' = ANY(tags) | lower(topic) = 'x'
array_contains(venues.city, 'x') | NULL | NULL = NULL | 1 = NULL | 1 IN (2, NULL) | 1 NOT IN (2, NULL) | price > 1
coalesce(rsvps, n) = 1 | CASE WHEN ok THEN true END | CASE n WHEN 7 THEN true END | round(price) = 1 | at > day
concat(topic, 'x') = 'x' | year(at) = 1 | substring(topic, n) = 'x' | CAST(rsvps AS string) = '1' | window = window
""".replace("\n", " | ")


@pytest.mark.parametrize("text", [text.strip() for text in UNKNOWN.split(" | ") if text.strip()])
def test_an_unknown_condition_passes_neither_way(text: str) -> None:
    for condition in (text, f"NOT ({text})"):
        compiled = where(condition)
        assert not compiled(NULLS)
        assert compiled.errors == 0
    assert where(f"({text}) IS NULL")(NULLS)
    assert where(f"coalesce({text}, true)")(NULLS)


THREE = {"true": True, "false": False, "null": None}


def _and(a: bool | None, b: bool | None) -> bool | None:
    return False if a is False or b is False else None if a is None or b is None else True


def _or(a: bool | None, b: bool | None) -> bool | None:
    return True if a is True or b is True else None if a is None or b is None else False


@pytest.mark.parametrize(("word", "truth"), [("AND", _and), ("OR", _or)])
def test_and_and_or_follow_the_truth_table(word: str, truth: Callable[[Any, Any], bool | None]) -> None:
    columns = (Column("a", "boolean"), Column("b", "boolean"))
    for (left, a), (right, b) in itertools.product(THREE.items(), THREE.items()):
        expected = truth(a, b)
        for text in (f"a {word} b", f"{left} {word} b", f"a {word} {right}"):
            assert compile_where(text, columns)((a, b)) is (expected is True)
            assert compile_where(f"NOT ({text})", columns)((a, b)) is (expected is False)
            word_of = next(name for name, value in THREE.items() if value is expected)
            assert compile_where(f"({text}) <=> {word_of}", columns)((a, b))


def test_null_safe_equality_knows_null() -> None:
    assert where("rsvps <=> NULL")(NULLS)
    assert where("topic <=> `Mixed Case`")(NULLS)
    assert not holds("rsvps <=> NULL")
    assert where("NOT (rsvps <=> 1)")(NULLS)


def test_array_contains_is_unknown_when_only_a_null_could_match() -> None:
    assert holds("'x' = ANY(tags)", tags=[None, "x"])
    assert holds("('y' = ANY(tags)) IS NULL", tags=[None, "x"])
    assert holds("NOT 'y' = ANY(tags)", tags=["x"])


def test_nan_equals_itself_and_is_above_every_number() -> None:
    for text in (
        "score > 5",
        "score >= 5",
        "score <> 5",
        "score = score",
        "score >= score",
        "score = 'NaN'",
        "score > price",
        "n < score",
        "score <=> score",
        "score IN (1, 'NaN')",
        "NOT score < 5",
    ):
        assert holds(text, score=NAN), text
        assert not holds(f"NOT ({text})", score=NAN), text
    for text in ("score < 5", "score <= 5", "score = 5", "score > score", "score < score"):
        assert not holds(text, score=NAN), text


def test_nan_and_infinities_become_whole_numbers_and_decimals_as_in_spark() -> None:
    assert holds("floor(score) = 0 AND ceil(score) = 0", score=NAN)
    assert holds("CAST(score AS decimal(10,2)) IS NULL", score=NAN)
    assert holds("CAST(score AS decimal(10,2)) = 1.5")


def test_a_bigint_meets_a_double_as_a_double_and_a_decimal_exactly() -> None:
    assert holds("rsvps = 9007199254740992D", rsvps=2**53 + 1)
    assert not holds("rsvps = 9007199254740992.0", rsvps=2**53 + 1)


def test_decimals_keep_all_their_digits() -> None:
    columns = (Column("x", "decimal(38,0)"),)
    digits = "1" * 37 + "9"
    for text in (f"-x = -{digits}", f"abs(x) = {digits}", f"x = {digits}"):
        assert compile_where(text, columns)((Decimal(digits),)), text


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1 / n > 0", {"n": 0}),
        ("1 % n > 0", {"n": 0}),
        ("price / 0 > 0", {}),
        ("n + 1 > 0", {"n": 2**31 - 1}),
        ("rsvps * 2 > 0", {"rsvps": 2**62}),
        ("-n > 0", {"n": -(2**31)}),
        ("tags[9] = 'x'", {}),
        ("CAST(topic AS int) = 1", {}),
        ("CAST(rsvps AS int) = 1", {"rsvps": 2**40}),
        ("rsvps > 1", {"rsvps": "not a number"}),
        ("floor(score) > 1", {"score": float("inf")}),
        ("ceil(score) < 1", {"score": -1e300}),
        ("distance(score, 0, 0, 0) < 1", {"score": 90.1}),
        ("distance(0, 0, 0, score) < 1", {"score": float("inf")}),
        ("date_add(day, 3000000) > day", {}),
        ("length(replace(topic, 'a', 'aaaaaaaaaa')) > 1", {"topic": "a" * 200_000}),
        ("timestamp_seconds(rsvps) > at", {"rsvps": 2**62}),
    ],
)
def test_a_row_that_raises_does_not_pass_and_is_counted(text: str, values: dict[str, Any]) -> None:
    compiled = where(text)
    assert not compiled(row(**values))
    assert not compiled(row(**values))
    assert compiled.errors == 2


def test_what_a_short_circuit_skips_does_not_raise() -> None:
    assert not holds("n <> 0 AND 1 / n > 0", n=0)
    assert holds("n = 0 OR 1 / n > 0", n=0)
    assert holds("CASE WHEN n = 0 THEN true ELSE 1 / n > 0 END", n=0)


REFUSED = [
    ("", "empty"),
    ("   ", "empty"),
    ("rsvps", "bigint, not a condition"),
    ("rsvps >", "cannot be read"),
    ("rsvps > 1; rsvps > 2", "exactly one"),
    ("DROP TABLE x", "cannot be read"),
    ("SELECT 1", "cannot be read"),
    ("nothing = 1", "no column 'nothing'"),
    ("window.middle = at", "no field 'middle'"),
    ("topic.x = 1", "no field 'x'"),
    ("rsvps IN (SELECT 1)", "not a query"),
    ("rsvps IN ()", "IN takes a list"),
    ("EXISTS (SELECT 1)", "cannot contain"),
    ("rsvps = (SELECT 1)", "a query"),
    ("topic = 5", r"topic \(string\) and 5 \(int\)"),
    ("topic > rsvps", r"topic \(string\) and rsvps \(bigint\)"),
    ("ok = 1", r"ok \(boolean\) and 1 \(int\)"),
    ("tags > tags", "array<string>"),
    ("counts = counts", "map<string,int>"),
    ("topic + 1 = 2", "apply"),
    ("at = 'garbage'", "'garbage' cannot be read as timestamp"),
    ("at > '2024-13-01'", "cannot be read as timestamp"),
    ("day = '2024-05-01 10:00'", "cannot be read as date"),
    ("rsvps = 'many'", "cannot be read as bigint"),
    ("CAST('x' AS int) = 1", "cannot be read as int"),
    ("TIMESTAMP 'now' < at", "cannot be read as timestamp"),
    ("evil(topic) = 1", "cannot call 'evil'"),
    ("current_timestamp() > at", "cannot call 'current_timestamp'"),
    ("rand() > 0", "cannot call 'rand'"),
    ("lower(rsvps) = 'x'", "'lower' needs string, but rsvps is bigint"),
    ("lower(topic, topic) = 'x'", "takes 1 argument, not 2"),
    ("substring(topic) = 'x'", "takes 2 to 3 arguments, not 1"),
    ("struct(1) = 1", "is a type"),
    ("topic RLIKE 'a+'", "RLIKE"),
    ("topic LIKE topic", "pattern of LIKE"),
    ("topic LIKE 'a\\\\b'", "must stand before"),
    ("topic LIKE 'a!' ESCAPE '!'", "must stand before"),
    ("topic LIKE 'a' ESCAPE 'ab'", "one character"),
    ("tags[-1] = 'x'", "index"),
    ("tags[n] = 'x'", "index"),
    ("topic[0] = 'x'", "no elements"),
    ("rsvps = ANY(topic)", "an array"),
    ("rsvps < ANY(tags)", "ANY"),
    ("1 = ANY(tags)", "string"),
    ("at - INTERVAL 1 DAY < at", "INTERVAL"),
    ("TRY_CAST(topic AS int) = 1", "TRY_CAST"),
    ("CAST(topic AS array<int>) = 1", "cannot cast to"),
    ("CAST(tags AS string) = 'x'", "cannot cast tags"),
    ("count(*) OVER () > 1", "OVER"),
    ("rsvps = ?", "parameter"),
    ("rsvps = :x", "parameter"),
    ("rsvps = @x", "variable"),
    ("date_trunc('fortnight', at) = at", "needs a unit"),
    ("left(topic, topic) = 'x'", "an integer"),
    ("greatest(topic, rsvps) = 'x'", "string"),
    ("greatest(tags, tags) = tags", "order"),
    ("distance(1, 2, 3) < 4", "takes 4 arguments, not 3"),
    ("distance(topic, 2, 3, 4) < 4", "a number"),
    ("date_add(day, 1.5) > day", "an integer"),
    ("year(topic) = 1", "timestamp"),
    ("* = 1", r"\*"),
    ("1e999 > score", "1e999"),
    (f"rsvps > {'9' * 39}", "number"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED, ids=[text[:30] for text, _ in REFUSED])
def test_what_is_not_on_the_allow_list_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(BadQueryError, match=message):
        where(text)


def test_an_unknown_column_is_answered_with_the_columns_there_are() -> None:
    with pytest.raises(BadQueryError) as caught:
        where("topics = 'x'")
    assert caught.value.hint is not None
    assert "'topic', 'rsvps'" in caught.value.hint


PARAMS: list[tuple[str, dict[str, Any]]] = [
    ("rsvps = :n", {"n": 42}),
    ("rsvps = :n", {"n": "42"}),
    ("rsvps > :n AND :n > 40", {"n": 41}),
    ("price = :p", {"p": Decimal("9.5")}),
    ("price < :p", {"p": 1e3}),
    ("score = :x", {"x": 1.5}),
    ("topic = :t", {"t": "Jazz"}),
    ("topic <> :t", {"t": "' OR '1'='1"}),
    ("at = :at", {"at": "2024-05-01T12:00:00Z"}),
    ("at = :at", {"at": NOON}),
    ("local = :at", {"at": datetime(2024, 5, 1, 12)}),
    ("day = :day", {"day": "2024-05-01"}),
    ("day = :day", {"day": date(2024, 5, 1)}),
    ("raw = :raw", {"raw": b"\x1a"}),
    ("ok = :ok", {"ok": True}),
    ("(rsvps = :none) IS NULL", {"none": None}),
    ("topic LIKE :pattern", {"pattern": "J%"}),
    ("topic LIKE :p ESCAPE :e", {"p": "J!azz%", "e": "a"} | {"p": "Ja%", "e": "!"}),
    ("tags[:i] = :t", {"i": 1, "t": "Blues"}),
    ("counts[:key] = 1", {"key": "k"}),
    (":t = ANY(tags)", {"t": "Blues"}),
    ("topic = ANY(:topics)", {"topics": ["Golf", "Jazz"]}),
    ("rsvps = ANY(:numbers)", {"numbers": [1, 42, None]}),
    ("(topic = ANY(:topics)) IS NULL", {"topics": ["Golf", None]}),
    ("NOT topic = ANY(:topics)", {"topics": []}),
    ("rsvps BETWEEN :low AND :high", {"low": 1, "high": 2**70}),
    ("distance(place.geo.lat, place.geo.lon, :lat, :lon) < :km", {"lat": 59.91, "lon": 10.75, "km": 5}),
]


@pytest.mark.parametrize(("text", "params"), PARAMS, ids=[text for text, _ in PARAMS])
def test_a_parameter_stands_for_its_value(text: str, params: dict[str, Any]) -> None:
    compiled = compile_where(text, COLUMNS, params=params)
    assert compiled(row())
    assert compiled.errors == 0
    assert where(compiled.text) == compiled, "the text of a filter holds its parameters' values"


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=30) | st.text("'\"\\\\`;:-/*)( OR1=", max_size=20), st.booleans())
def test_a_text_that_is_bound_is_never_read_as_sql(value: str, listed: bool) -> None:
    """Whatever it holds, it is compared as it is, and nothing else of the filter changes."""
    text = "topic = ANY(:v) AND n = 7" if listed else "topic = :v AND n = 7"
    compiled = compile_where(text, COLUMNS, params={"v": [value, "other"] if listed else value})
    assert compiled(row(topic=value))
    assert not compiled(row(topic=value + "x"))
    assert not compiled(row(topic=value, n=8))
    assert compiled.columns == {"topic", "n"}


WRONG_PARAMS: list[tuple[str, Any, str]] = [
    ("rsvps = :n", {}, "no value for the parameter ':n'"),
    ("rsvps = :n", {"N": 1}, "no value for the parameter ':n'"),
    ("rsvps = ?", {}, "needs a name"),
    ("rsvps = :n", {"n": "many"}, "cannot be read as bigint"),
    ("topic = :n", {"n": 5}, "string.*int"),
    ("rsvps = :n", {"n": [1]}, "is a list"),
    ("rsvps = :n", {"n": {"a": 1}}, "does not know"),
    ("rsvps = ANY(:n)", {"n": 1}, "needs an array"),
    ("rsvps = ANY(:n)", {"n": [[1]]}, "does not know"),
    ("rsvps = ANY(:n)", {"n": list(range(1001))}, "1000 are allowed"),
    ("rsvps = :n", {"n": 10**40}, "more than 38 digits"),
    ("rsvps = :n", {"n": Decimal("NaN")}, "finite"),
    ("topic = :n", {"n": "x" * 5000}, "4096 are allowed"),
    ("at > :n", {"n": "yesterday"}, "cannot be read as timestamp"),
    ("rsvps = :n", {f"n{i}": i for i in range(101)}, "100 are allowed"),
    ("rsvps = :n", [1], "must be an object"),
    (":n", {"n": "ok"}, "string, not a condition"),
    ("topic = :a.b", {"a": "x"}, "no field"),
]


@pytest.mark.parametrize(("text", "params", "message"), WRONG_PARAMS, ids=[m for _, _, m in WRONG_PARAMS])
def test_a_parameter_that_does_not_fit_is_refused(text: str, params: Any, message: str) -> None:
    with pytest.raises(BadQueryError, match=message):
        compile_where(text, COLUMNS, params=params)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("ok AND rsvps = 1 AND topic = 'x'", "topic = 'x' AND (rsvps = 1 AND ok)"),
        ("rsvps = 1 OR topic = 'x' OR rsvps = 1", "topic = 'x' OR rsvps = 1"),
        ("topic IN ('b', 'a', 'b')", "topic IN ('a', 'b')"),
        ("NULL <=> rsvps", "rsvps <=> NULL"),
        ("ANY(tags) = 'x'", "array_contains(tags, 'x')"),
    ],
)
def test_the_order_of_parts_does_not_make_another_filter(one: str, two: str) -> None:
    assert where(one) == where(two)


def test_the_order_stays_where_a_part_may_raise() -> None:
    assert not holds("n <> 0 AND 1 / n > 0", n=0)
    assert where("topic = 'x' AND 1 / n > 0") != where("1 / n > 0 AND topic = 'x'")


def test_filters_with_equal_parameters_are_equal_and_with_others_are_not() -> None:
    def of(value: Any, text: str = "rsvps > :n") -> Where:
        return compile_where(text, COLUMNS, params={"n": value, "unused": 1})

    assert of(5) == of(5) == where("rsvps > 5")
    assert of(5) != of(6)
    assert of(5, "rsvps > :n") == compile_where("rsvps > :least", COLUMNS, params={"least": 5})


def test_equal_filters_are_equal_however_they_are_written() -> None:
    one, two = where("RSVPS>=10 and ( topic!='x' )"), where('10 <= rsvps AND topic <> "x" /* same */')
    assert one == two
    assert hash(one) == hash(two)
    assert one.text == "(rsvps >= 10) AND (topic <> 'x')"
    assert one != where("rsvps >= 10")
    assert one != compile_where("rsvps >= 10 AND topic <> 'x'", COLUMNS[1:3])


def test_a_filter_names_the_columns_it_reads() -> None:
    assert where("window.start > '2024' AND 'a' = ANY(tags) AND 1 = 1").columns == {"window", "tags"}


def test_text_within_the_limits_passes_and_beyond_them_is_refused() -> None:
    assert where("rsvps = 42" + " OR rsvps = 42" * 120)(row())
    assert where("rsvps IN (" + ", ".join(str(i) for i in range(MAX_NODES - 10)) + ")")(row())
    assert where("(" * MAX_DEPTH + "ok" + ")" * MAX_DEPTH)(row())
    for text in (
        "rsvps = 42".ljust(MAX_CHARS + 1),
        "rsvps IN (" + ", ".join("1" for _ in range(MAX_NODES)) + ")",
        "(" * (MAX_DEPTH + 1) + "ok" + ")" * (MAX_DEPTH + 1),
        "NOT " * 1000 + "ok",
        "rsvps" + " + 1" * 40 + " > 0",
    ):
        with pytest.raises(BadQueryError):
            where(text)


BOMBS = [
    *("(", "f(", "a[", "not ", "- ", "~", "case when ", "case ", "cast(", "any(", "array<", "struct<a:", "(select "),
    *("timestamp(", "decimal(", "struct(", "map(", "array(", "exists(", "interval ", "date ", "x in (", "a.b(", "["),
    *("{'a':", "a between (", "ok and (", "coalesce(", "window.end = (", "'", '"', "`", "/*", "--", "\\", "a.", "a ->"),
    *("a::", "a::decimal(", "cast(a as decimal(", "x'", "r'", "1e", "@", "$", ":", "\x00", "\ud800", "end "),
]


@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.parametrize("times", [3, 31, 300, 4000])
def test_deeply_nested_text_gives_a_filter_or_the_declared_error_and_soon(bomb: str, times: int) -> None:
    text = (bomb * times)[: MAX_CHARS - 4] + " ok"
    started = time.process_time()
    _outcome(text)
    assert time.process_time() - started < 2


def _outcome(text: str) -> Where | None:
    """Compiles, and if that works, runs; anything but a `BadQueryError` is a failure of the test."""
    try:
        compiled = where(text)
    except BadQueryError:
        return None
    for values in (row(), NULLS):
        assert type(compiled(values)) is bool
    return compiled


WORDS = """\
and or not in between like ilike rlike escape is null true false case when then else end cast as int any date
timestamp 'x' '2024-05-01' '%' 1 0 -1 2.5 1e3 ( ) ( ) [ ] , . = <> < <= > >= <=> + - * / % || :: window start
topic rsvps n score price ok at day tags counts raw venues place local `Mixed Case` lower coalesce round size
substring concat if array_contains decimal(10,2) string select from struct interval exists over distinct
""".split()  # noqa: SIM905


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=25).map(" ".join))
def test_fuzz_words_give_a_filter_or_the_declared_error(text: str) -> None:
    _outcome(text)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60) | st.text(string.printable, max_size=60))
def test_fuzz_text_gives_a_filter_or_the_declared_error(text: str) -> None:
    _outcome(text)


class Grammar:
    """Random filters that are well formed more often than not."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def condition(self, depth: int) -> str:
        if depth == 0:
            return self.random.choice(["ok", "true", "null", "topic = 'Jazz'", "rsvps > 1", "score < 2"])
        word = self.random.choice(["AND", "OR", "=", "<=>", "<>"])
        a, b = self.condition(depth - 1), self.condition(depth - 1)
        number, text = self.number(depth - 1), self.text(depth - 1)
        return self.random.choice(
            [
                f"({a}) {word} ({b})",
                f"NOT ({a})",
                f"({a}) IS NULL",
                f"CASE WHEN {a} THEN {b} END",
                f"coalesce({a}, {b})",
                f"{number} {self.random.choice(['<', '=', '>='])} {self.number(depth - 1)}",
                f"{number} BETWEEN 1 AND {self.number(0)}",
                f"{number} IN (1, {self.number(0)}, NULL)",
                f"{text} LIKE '%a_'",
                f"{text} IN ('a', {self.text(0)})",
                f"{text} = ANY(tags)",
            ]
        )

    def number(self, depth: int) -> str:
        if depth == 0:
            return self.random.choice(["rsvps", "n", "score", "price", "1", "2.5", "1e0", "counts['k']", "NULL"])
        a, b = self.number(depth - 1), self.number(depth - 1)
        operator = self.random.choice("+-*/%")
        return self.random.choice(
            [f"({a} {operator} {b})", f"abs({a})", f"round({a}, 1)", f"-({a})", f"length({self.text(depth - 1)})"]
        )

    def text(self, depth: int) -> str:
        if depth == 0:
            return self.random.choice(["topic", "'Jazz'", "tags[0]", "venues[0].city", "place.name", "NULL"])
        return self.random.choice([f"lower({self.text(depth - 1)})", f"({self.text(depth - 1)} || 'a')"])


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 5))
def test_a_filters_canonical_text_reads_back_as_the_same_filter(seed: int, depth: int) -> None:
    compiled = _outcome(Grammar(seed).condition(depth))
    if compiled is None:
        return
    again = where(compiled.text)
    assert again == compiled
    assert [again(values) for values in (row(), NULLS)] == [compiled(values) for values in (row(), NULLS)]


@settings(max_examples=120, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 4))
def test_a_row_passes_a_condition_or_its_negation_or_it_is_null(seed: int, depth: int) -> None:
    text = Grammar(seed).condition(depth)
    if _outcome(text) is None:
        return
    for values in (row(), NULLS):
        filters = [where(text), where(f"NOT ({text})"), where(f"({text}) IS NULL")]
        answers = [compiled(values) for compiled in filters]
        assert sum(answers) == 1 or any(compiled.errors for compiled in filters), text


LIKE_LETTERS = st.text("ab%_", max_size=8)


@settings(max_examples=200, deadline=None)
@example("a%a", "a")
@example("a%b%b", "ab")
@example("%_b%b", "bb")
@given(LIKE_LETTERS, st.text("ab\n", max_size=8))
def test_like_agrees_with_its_definition(pattern: str, value: str) -> None:
    def matches(at: int, start: int) -> bool:
        if at == len(pattern):
            return start == len(value)
        if pattern[at] == "%":
            return any(matches(at + 1, later) for later in range(start, len(value) + 1))
        return start < len(value) and pattern[at] in ("_", value[start]) and matches(at + 1, start + 1)

    assert holds(f"topic LIKE '{pattern}'", topic=value) == matches(0, 0)


def test_a_hostile_pattern_costs_no_more_than_its_length() -> None:
    compiled = where(f"topic LIKE '{'%a_' * 300}%b'")
    started = time.process_time()
    assert not compiled(row(topic="a" * 20_000))
    assert time.process_time() - started < 1


@pytest.mark.parametrize(
    ("wrap", "start"),
    [
        ("({} BETWEEN false AND true)", "ok"),
        ("({} IN (ok, true, NULL))", "ok"),
        ("({} AND (ok IS NOT NULL OR ok))", "ok"),
        ("({} <=> true)", "ok"),
        ("({} = true)", "ok"),
        ("CASE {} WHEN true THEN true WHEN false THEN ok ELSE ok END", "ok"),
        ("coalesce({}, ok)", "ok"),
        ("if({}, ok, false)", "ok"),
    ],
)
def test_source_and_text_grow_with_the_filter_and_not_with_its_nesting(wrap: str, start: str) -> None:
    text = start
    for _ in range(20):
        text = wrap.format(text)
    started = time.process_time()
    compiled = where(text)
    assert compiled(row())
    assert len(compiled.text) < 2 * len(text) + 100
    assert time.process_time() - started < 2
