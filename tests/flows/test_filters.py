"""A filter means on the edge what it means in Spark: generated conditions on generated rows, compared one by one."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from penstock.errors import BadQueryError
from penstock.views.where import compile_where
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


def ours(text: str, params: dict[str, Any], rows: Sequence[tuple[Any, ...]]) -> list[Truth]:
    used = {name: params[name] for name in re.findall(r":(p\d+)\b", text)}
    yes, no = (compile_where(t, COLUMNS, params=used) for t in (text, f"NOT ({text})"))
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
