"""Filters: what they let through, in three-valued logic, and which are the same."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from where_columns import COLUMNS, NAN, NULLS, holds, row, where

from penstock.change import Column
from penstock.views.where.filter import compile_where

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
instr(topic, 'z') = 3 | sign(-rsvps) = -1 | sqrt(price * 9.5) = 9.5 | isnan(score) = false
isnan(CAST('NaN' AS double)) | isnotnull(topic) | nullif(n, 8) = 7 | nullif(n, 7) IS NULL
greatest(n, rsvps, NULL) = 42 | least(topic, 'Golf') = 'Golf' | quarter(day) = 2 | dayofweek(day) = 4
weekday(day) = 2 | dayofyear(day) = 122 | weekofyear(day) = 18 | date_trunc('hour', window.end) = at
date_trunc('WEEK', at) = '2024-04-29' | date_trunc('quarter', at) = '2024-04-01' | date_add(day, 1) = '2024-05-02'
date_sub(day, 1) = '2024-04-30' | date_diff(day, '2024-04-30') = 1 | datediff(at, DATE '2024-05-03') = -2
to_date(at) = day | to_timestamp('2024-05-01 12:00:00') = at | unix_seconds(at) = 1714564800
unix_millis(at) % 1000 = 0 | timestamp_seconds(1714564800) = at | timestamp_millis(1714564800000) = at
distance(60, 10, 60, 10) = 0 | distance(place.geo.lat, place.geo.lon, 60.3913, 5.3221) BETWEEN 300 AND 310
distance(0, 0, 0, 180) > 20015
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


def test_equal_filters_are_equal_however_they_are_written() -> None:
    one, two = where("RSVPS>=10 and ( topic!='x' )"), where('10 <= rsvps AND topic <> "x" /* same */')
    assert one == two
    assert hash(one) == hash(two)
    assert one.text == "(rsvps >= 10) AND (topic <> 'x')"
    assert one != where("rsvps >= 10")
    assert one != compile_where("rsvps >= 10 AND topic <> 'x'", COLUMNS[1:3])


def test_a_filter_names_the_columns_it_reads() -> None:
    assert where("window.start > '2024' AND 'a' = ANY(tags) AND 1 = 1").columns == {"window", "tags"}
