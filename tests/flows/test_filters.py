"""A filter means on the edge what it means in Spark: generated conditions on generated rows, compared one by one."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from penstock.change import Column
from penstock.errors import BadQueryError
from penstock.views.where.filter import compile_where
from tests.filter_worlds import COLUMNS, Filters, Rows

CONDITIONS = 700
ROWS = 60
TOGETHER = 70
"""Conditions per query."""
Truth = bool | str | None
RAISED = "raised"


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> Iterator[list[tuple[Any, ...]]]:
    made = Rows(random.Random(7))
    rows = [made.row(number) for number in range(ROWS)]
    schema = StructType.fromDDL(", ".join(f"{column.name} {column.type}" for column in COLUMNS))
    frame = spark.createDataFrame(rows, schema).coalesce(1).cache()
    frame.createOrReplaceTempView("filter_rows")
    spark.conf.set("spark.sql.codegen.wholeStage", "false")
    spark.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    yield rows
    spark.conf.unset("spark.sql.codegen.wholeStage")
    spark.conf.unset("spark.sql.codegen.factoryMode")
    spark.catalog.dropTempView("filter_rows")
    frame.unpersist()


def ours(
    text: str, params: dict[str, Any], rows: Sequence[tuple[Any, ...]], columns: Sequence[Column] = COLUMNS
) -> list[Truth]:
    used = {name: params[name] for name in re.findall(r":(p\d+)\b", text)}
    yes, no = (compile_where(t, columns, params=used) for t in (text, f"NOT ({text})"))
    found: list[Truth] = []
    for row in rows:
        raised, passed, failed = yes.errors + no.errors, yes(row), no(row)
        found.append(RAISED if yes.errors + no.errors > raised else True if passed else False if failed else None)
    return found


def in_spark(text: str) -> str:
    """The same in Spark's words: it has no ANY of an array."""
    return re.sub(r"('(?:[^'\\]|\\.)*'|:p\d+|-?\w+) = ANY\(([\w.]+)\)", r"array_contains(\2, \1)", text)


def sparks(spark: SparkSession, texts: Sequence[str], params: dict[str, Any]) -> list[list[Truth]]:
    wanted = ", ".join(f"({in_spark(text)}) AS c{number}" for number, text in enumerate(texts))
    used = {name: params[name] for name in re.findall(r":(p\d+)\b", wanted)}
    answer = spark.sql(f"SELECT {wanted} FROM filter_rows ORDER BY id", args=used).collect()
    return [[row[number] for row in answer] for number in range(len(texts))]


def test_generated_conditions_mean_what_spark_means(spark: SparkSession, rows: list[tuple[Any, ...]]) -> None:
    rng = random.Random(20)
    filters = Filters(rng, distance=False, raising=False)
    texts: list[str] = []
    answers: list[list[Truth]] = []
    while len(texts) < CONDITIONS:
        text = filters.condition(rng.choice([0, 0, 1, 2]))
        try:
            answers.append(ours(text, filters.params, rows))
        except BadQueryError:
            continue  # stricter than Spark is allowed, and there must not be much of it
        texts.append(text)
    wrong: list[str] = []
    for start in range(0, CONDITIONS, TOGETHER):
        wrong += _wrong(spark, texts[start : start + TOGETHER], answers[start : start + TOGETHER], filters.params, rows)
    assert not wrong, "\n".join(wrong[:40])
    assert sum(answer.count(True) for answer in answers) > CONDITIONS * ROWS / 10
    assert sum(answer.count(None) for answer in answers) > CONDITIONS * ROWS / 20


def _wrong(
    spark: SparkSession, texts: Sequence[str], answers: Sequence[list[Truth]], params: dict[str, Any], rows: Any
) -> list[str]:
    """What differs; a query that Spark refuses or fails is halved until the condition is found that it is about."""
    try:
        theirs = sparks(spark, texts, params)
    except (AnalysisException, PySparkException) as error:
        if len(texts) == 1:
            return [f"{texts[0]}: {str(error).partition(chr(10))[0][:200]}"]
        middle = len(texts) // 2
        first = _wrong(spark, texts[:middle], answers[:middle], params, rows)
        return first + _wrong(spark, texts[middle:], answers[middle:], params, rows)
    return [
        f"{text}: here {mine}, in Spark {answer}, of {row}, {params if ':p' in text else ''}"
        for text, answered, answer_of in zip(texts, answers, theirs, strict=True)
        for mine, answer, row in zip(answered, answer_of, rows, strict=True)
        if mine is not answer
    ]


@pytest.mark.parametrize(
    "text",
    [
        "n + 1 > 0",
        "n * 2 > 0",
        "-n > 0",
        "abs(n) > 0",
        "CAST(b AS int) > 0",
        "1 / n > 0",
        "nums[9] > 0",
        "floor(x) < 0",
        "ceil(f) < 0",
    ],
)
def test_a_row_on_which_spark_fails_is_counted_here(spark: SparkSession, rows: list[Any], text: str) -> None:
    raising = [number for number, truth in enumerate(ours(text, {}, rows)) if truth == RAISED]
    assert raising
    for number in raising[:3]:
        with pytest.raises(PySparkException):
            spark.sql(f"SELECT {text} FROM filter_rows WHERE id = {number}").collect()
    rest = f"SELECT count({text}) FROM filter_rows WHERE id NOT IN ({', '.join(map(str, raising))})"
    assert spark.sql(rest).collect()


def test_a_distance_is_the_great_circle_in_kilometres(spark: SparkSession, rows: list[Any]) -> None:
    here, there = ("59.91D", "10.75D"), ("place.lat", "place.lon")
    formula = (
        f"2 * 6371.0088D * asin(sqrt(power(sin(radians({there[0]} - {here[0]}) / 2), 2) + "
        f"cos(radians({here[0]})) * cos(radians({there[0]})) * power(sin(radians({there[1]} - {here[1]}) / 2), 2)))"
    )
    for bound in (0.1, 5.0, 305.0, 306.0, 6_500.0, 10_000.0, 20_000.0):
        mine = ours(f"distance({', '.join(there)}, {', '.join(here)}) < {bound}D", {}, rows)
        assert mine == sparks(spark, [f"{formula} < {bound}D"], {})[0]
        assert mine == ours(f"distance({', '.join(here)}, {', '.join(there)}) < {bound}D", {}, rows)


ODD_COLUMNS = (
    Column("id", "bigint"),
    Column("s", "string"),
    Column("n", "int"),
    Column("x", "double"),
    Column("f", "float"),
    Column("e", "decimal(38,18)"),
    Column("at", "timestamp"),
    Column("xs", "array<double>"),
)
_INF, _NAN = float("inf"), float("nan")
ODD_ROWS = [
    (
        0,
        "straße",
        -(2**31),
        _INF,
        0.10000000149011612,
        Decimal("0.1"),
        datetime(2024, 2, 29, 23, 59, tzinfo=UTC),
        [_NAN],
    ),
    (1, "İstanbul", 2**31 - 1, -_INF, _NAN, Decimal("2.5"), datetime(2024, 3, 31, 1, 0, tzinfo=UTC), [-0.0, 1.0]),
    (2, "ΟΔΟΣ", -1, _NAN, 16777216.0, None, datetime(2024, 10, 27, 0, 30, tzinfo=UTC), None),
    (3, "2024-02-29 12:00:00", 0, -0.0, -0.0, Decimal("-1"), datetime(1969, 12, 31, 23, 59, tzinfo=UTC), [None, 2.5]),
    (4, "a\\b", 7, 2.5, None, Decimal("99999999999999999999.999999999999999999"), None, []),
    (5, "ﬁne_%", None, -2.5, 0.0, Decimal(0), datetime(1582, 10, 10, tzinfo=UTC), [0.0]),
    (6, "7\u00a0", 1, 9007199254740993.0, 2.5, Decimal("0.5"), datetime(2000, 2, 29, tzinfo=UTC), [_NAN, None]),
]


ODD = [
    "x % 1 = 0",
    "x % n = 0",
    "f % 2 = 0",
    "lower(upper(s)) = s",
    "upper(lower(upper(s))) = upper(s)",
    "lower(s) = 'οδος'",
    "length(lower(s)) = length(s)",
    "upper(s) LIKE 'FINE!_!%' ESCAPE '!'",
    "s LIKE 'a\\\\\\\\b'",
    "substring(s, n) = s",
    "substring(s, -3, 2) = 'bu'",
    "substring(s, n, 2147483647) = s",
    "left(s, n) = s",
    "right(s, n) = s",
    "to_date(s) = '2024-02-29'",
    "CAST(s AS date) > '2000-01-01'",
    "CAST(s AS int) = 7",
    "CAST(s AS double) = 7",
    "CAST(s AS decimal(10,2)) = 7",
    "CAST(s AS boolean)",
    "round(f, 1) = 0.1",
    "round(x) = -3",
    "x = 9007199254740993",
    "x <> x",
    "x >= f",
    "e = x",
    "e * e > 0",
    "e + 0.5 = e + 0.50",
    "n NOT IN (1, 7, NULL)",
    "n BETWEEN 5 AND 1",
    "NOT (n BETWEEN NULL AND 0)",
    "n * 2 > 0",
    "-n > 0",
    "date_trunc('week', at) = '2024-02-26'",
    "hour(at) = 1",
    "dayofyear(at) = 366",
    "date_add(at, 1) = '2024-03-01'",
    "at > '2024-03-31 02:30:00+02:00'",
    "array_contains(xs, 0.0D)",
    "array_contains(xs, x)",
    "greatest(x, f) > 1",
]


def test_odd_values_mean_what_they_mean_in_spark(spark: SparkSession, odd: None) -> None:
    """What random rows seldom meet: infinities, letters without a counterpart, ends of types, days that are rare."""

    def theirs(texts: Sequence[str], ids: Sequence[int]) -> list[Any]:
        wanted = ", ".join(f"({text})" for text in texts)
        listed = ", ".join(map(str, ids))
        return spark.sql(f"SELECT {wanted} FROM odd_rows WHERE id IN ({listed}) ORDER BY id").collect()

    mine = {text: ours(text, {}, ODD_ROWS, ODD_COLUMNS) for text in ODD}
    calm = [text for text in ODD if RAISED not in mine[text]]
    everywhere = theirs(calm, range(len(ODD_ROWS)))
    for number, text in enumerate(calm):
        assert [row[number] for row in everywhere] == mine[text], text
    for text in (text for text in ODD if text not in calm):
        well = [row for row, truth in enumerate(mine[text]) if truth != RAISED]
        assert not well or [row[0] for row in theirs([text], well)] == [mine[text][row] for row in well], text
        with pytest.raises(PySparkException):
            theirs([text], [mine[text].index(RAISED)])


@pytest.fixture(scope="module")
def odd(spark: SparkSession) -> Iterator[None]:
    schema = StructType.fromDDL(", ".join(f"{column.name} {column.type}" for column in ODD_COLUMNS))
    frame = spark.createDataFrame(ODD_ROWS, schema).coalesce(1).cache()
    frame.createOrReplaceTempView("odd_rows")
    spark.conf.set("spark.sql.codegen.wholeStage", "false")
    spark.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    yield
    spark.conf.unset("spark.sql.codegen.wholeStage")
    spark.conf.unset("spark.sql.codegen.factoryMode")
    spark.catalog.dropTempView("odd_rows")
    frame.unpersist()
