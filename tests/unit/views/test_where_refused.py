"""What a filter refuses, and that no text can break it."""

from __future__ import annotations

import random
import string
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from where_columns import NULLS, holds, row, where

from penstock.errors import BadQueryError
from penstock.views.where.filter import Where
from penstock.views.where.syntax import MAX_CHARS, MAX_DEPTH, MAX_NODES

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


@settings(max_examples=300)
@given(st.lists(st.sampled_from(WORDS), max_size=25).map(" ".join))
def test_fuzz_words_give_a_filter_or_the_declared_error(text: str) -> None:
    _outcome(text)


@settings(max_examples=200)
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


@settings(max_examples=150)
@given(st.integers(0, 2**32), st.integers(1, 5))
def test_a_filters_canonical_text_reads_back_as_the_same_filter(seed: int, depth: int) -> None:
    compiled = _outcome(Grammar(seed).condition(depth))
    if compiled is None:
        return
    again = where(compiled.text)
    assert again == compiled
    assert [again(values) for values in (row(), NULLS)] == [compiled(values) for values in (row(), NULLS)]


@settings(max_examples=120)
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


@settings(max_examples=200)
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
