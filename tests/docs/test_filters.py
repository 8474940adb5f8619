"""The reference of filters is complete and true: every function is in its table, and every example holds."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from penstock.change import Column
from penstock.errors import BadQueryError
from penstock.views.where.filter import compile_where
from penstock.views.where.functions import ALIASES, FUNCTIONS
from tests.docs.pages import page, section

PAGE = page("docs/reference/filters.md")
ROWS = re.findall(r"^\| `(\w+)` \| (.+?) \| `(.+)` \|$", section(PAGE, "Functions"), re.MULTILINE)

ROW: dict[str, tuple[str, Any]] = {
    "name": ("string", "Jazz"),
    "city": ("string", None),
    "n": ("int", 7),
    "price": ("decimal(10,2)", Decimal("9.50")),
    "score": ("double", 1.5),
    "at": ("timestamp", datetime(2024, 5, 1, 12, tzinfo=UTC)),
    "day": ("date", date(2024, 5, 1)),
    "tags": ("array<string>", ["Jazz", "Blues"]),
    "counts": ("map<string,int>", {"k": 1}),
    "venue": ("struct<lat:double,lon:double>", {"lat": 59.9139, "lon": 10.7522}),
}
COLUMNS = [Column(name, kind) for name, (kind, _) in ROW.items()]


def test_every_function_is_in_the_table_and_no_other() -> None:
    assert [name for name, _, _ in ROWS] == list(dict.fromkeys(name for name, _, _ in ROWS))
    assert {name for name, _, _ in ROWS} == set(FUNCTIONS)


def test_every_other_name_stands_beside_its_function() -> None:
    named = {other: name for name, text, _ in ROWS for other in re.findall(r"`(\w+)`", text)}
    assert named == ALIASES


@pytest.mark.parametrize(("name", "example"), [(name, example) for name, _, example in ROWS])
def test_the_example_of_a_function_calls_it_and_is_true(name: str, example: str) -> None:
    assert re.search(rf"\b{name}\(", example)
    compiled = compile_where(example, COLUMNS)
    assert compiled(tuple(value for _, value in ROW.values()))
    assert compiled.errors == 0


@pytest.mark.parametrize("other", ALIASES)
def test_another_name_means_the_same(other: str) -> None:
    example = next(example for name, _, example in ROWS if name == ALIASES[other])
    renamed = re.sub(rf"\b{ALIASES[other]}\(", f"{other}(", example)
    assert compile_where(renamed, COLUMNS) == compile_where(example, COLUMNS)


EXAMPLES = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)[0].strip().split("\n")
_SAMPLE = (
    Column("topic", "string"),
    Column("rsvps", "bigint"),
    Column("window", "struct<start:timestamp,end:timestamp>"),
    Column("city", "string"),
    Column("price", "decimal(10,2)"),
    Column("group_topics", "array<struct<topic_name:string>>"),
    Column("venue", "struct<lat:double,lon:double>"),
    Column("response", "string"),
    Column("guests", "int"),
    Column("country", "string"),
    Column("amount", "bigint"),
    Column("name", "string"),
    Column("cancelled", "boolean"),
)


@pytest.mark.parametrize("text", EXAMPLES)
def test_an_example_is_a_filter(text: str) -> None:
    compile_where(text, _SAMPLE, params={"my_topics": ["Jazz"], "least": 1, "lat": 59.9, "lon": 10.7})


@pytest.mark.parametrize("text", ["rsvps % 2 = 0", "NOT rsvps = 5", "rsvps <> 5"])
def test_what_the_page_says_has_no_term_has_none(text: str) -> None:
    assert f"`{text.replace('rsvps', 'x')}`" in PAGE or f"`{text}`" in PAGE
    assert not compile_where(text, _SAMPLE).needs


@pytest.mark.parametrize(
    "text",
    [
        *("topic = 'a'", "topic IN ('a')", "topic <=> 'a'", "topic IS NULL", "topic = ANY(:list)"),
        *("'a' = ANY(group_topics.topic_name)", "array_contains(group_topics.topic_name, 'a')"),
        *("rsvps < 1", "rsvps <= 1", "rsvps > 1", "rsvps >= 1", "rsvps BETWEEN 1 AND 2", "topic LIKE 'abc%'"),
        *("startswith(topic, 'a')", "distance(venue.lat, venue.lon, 59.9, 10.7) < 25", "lower(city) = 'oslo'"),
        *("date_trunc('hour', window.start) = '2024-05-01'", "topic = 'a' OR rsvps > 5"),
    ],
)
def test_what_the_page_says_is_looked_up_has_a_term(text: str) -> None:
    assert compile_where(text, _SAMPLE, params={"list": ["a", "b"]}).needs


def test_what_the_page_says_is_refused_is() -> None:
    for text in ("topic RLIKE 'a'", "rand() > 0", "current_timestamp() > window.start"):
        with pytest.raises(BadQueryError):
            compile_where(text, _SAMPLE)
