"""A batch is planned and run once: what it costs is what its freshness hangs on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock import App, Event, plain
from penstock.clock import SystemClock
from penstock.flows import query
from penstock.flows.engine.batch_sink import Handed
from penstock.flows.engine.small_batches import FEW_EVENTS
from penstock.flows.query import state_partitions
from penstock.log.opening import open_reader
from tests.flows.world import World
from tests.parts import about


class Reading(Event):
    n: int
    kind: str
    at: int


def _app() -> App:
    app = App("query")
    app.stream("readings", Reading, time="at", late_after="1 minute")

    @app.view(key=["kind"], where="total > 0")
    def kinds(readings: DataFrame) -> DataFrame:
        return readings.groupBy("kind").agg(F.sum("n").alias("total"))

    return app


def _events(*values: int) -> list[Reading]:
    now = SystemClock().now_us() // 1000
    return [Reading(n=value, kind=f"k{value % 3}", at=now) for value in values]


def _executions(spark: SparkSession) -> list[tuple[str, int]]:
    """The plans that Spark has run, in their order, and how many stages each had; its listeners hear of them later."""
    session: Any = spark._jsparkSession
    session.sparkContext().listenerBus().waitUntilEmpty()
    found = session.sharedState().statusStore().executionsList()
    told = [found.apply(n) for n in range(found.size())]
    in_order = sorted(told, key=lambda one: one.executionId())
    return [(one.physicalPlanDescription(), one.stages().size()) for one in in_order]


def _commits(there: World) -> int:
    changelog, log = there.stream("kinds"), open_reader(there.folder.flows_log)
    assert changelog is not None
    try:
        return log.bounds(changelog).next_commit
    finally:
        log.close()


@about("sink", "interpreting")
def test_a_batch_is_one_execution_of_spark(spark: SparkSession, world: Callable[[App], World]) -> None:
    there = world(_app())
    there.send("readings", [_events(1, 2, 3), _events(4, 5)])
    before = _executions(spark)
    there.run(max_rows=3)
    assert {row["kind"]: row["total"] for row in there.rows("kinds")} == {"k0": 3, "k1": 5, "k2": 7}
    assert there.memory()["flow/kinds"]["restarts"] == 0
    run = _executions(spark)[len(before) :]
    assert len(run) == _commits(there)
    assert not any("*(" in plan for plan, _ in run)  # few events wait: nothing is compiled for them, not even at first


@about("sink", "interpreting")
def test_what_follows_a_large_batch_is_compiled_and_spread_and_what_follows_a_small_one_is_one_task(
    spark: SparkSession, world: Callable[[App], World]
) -> None:
    there = world(_app())
    many = range(FEW_EVENTS + 1)
    there.send("readings", [_events(1), _events(*many), _events(2), _events(3)])
    before = _executions(spark)
    there.run(max_rows=1)
    run = _executions(spark)[len(before) :]
    assert ["*(" in plan for plan, _ in run] == [True, False, True, False]
    if plain.uses("one_task"):
        assert [stages for _, stages in run] == [2, 1, 2, 1]
    assert sum(row["total"] for row in there.rows("kinds")) == sum(many) + 6
    assert there.verify()["kinds"].result == "equal"


def test_state_that_is_in_more_pieces_already_stays_right(
    spark: SparkSession, world: Callable[[App], World], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = world(_app())
    there.send("readings", [_events(*range(9))])
    with monkeypatch.context() as patched:
        patched.setattr(query, "state_partitions", lambda cores: 3)
        there.run()
    there.send("readings", [_events(*range(9, 20))])
    before = _executions(spark)
    there.run()
    stages = sum(stages for _, stages in _executions(spark)[len(before) :])
    assert stages == 2  # what the checkpoint says holds
    assert there.verify()["kinds"].result == "equal"
    assert there.memory()["flow/kinds"]["restarts"] == 0


@pytest.mark.parametrize(("cores", "pieces"), [(1, 1), (2, 1), (4, 4), (64, 8)])
def test_state_is_in_one_piece_where_there_are_few_cores(cores: int, pieces: int) -> None:
    assert state_partitions(cores) == pieces


@about("notes")
def test_settings_that_every_batch_sends_carry_no_notes_on_their_files(
    spark: SparkSession, world: Callable[[App], World]
) -> None:
    there = world(_app())
    there.send("readings", [_events(1)])
    there.run()  # what it loads must not bring them back
    sent: Any = spark._jsparkSession
    settings = sent.sessionState().newHadoopConf()
    assert settings.get("io.file.buffer.size") is not None  # from a file
    assert settings.getPropertySources("io.file.buffer.size") is None


def test_what_java_has_collected_comes_whole_and_leaves_no_file(spark: SparkSession, tmp_path: Path) -> None:
    java: Any = spark._jvm.java
    handed = Handed(spark._jvm, tmp_path / "batch")
    pieces = [b"", b"x", bytes(range(256)) * 100_000]
    found = java.util.ArrayList()
    for piece in pieces:
        found.add(piece)
    came = handed.over(found)
    assert [piece.to_pybytes() for piece in came] == pieces
    assert [piece.address % 8 for piece in came] == [0, 0, 0]  # or Arrow warns at every use
    assert handed.over(java.util.ArrayList()) == []
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_handed_over_is_an_error_and_leaves_no_file(spark: SparkSession, tmp_path: Path) -> None:
    found: Any = spark._jvm.java.util.ArrayList()
    found.add(b"whole")
    found.add(object().__hash__())  # no bytes
    with pytest.raises(Py4JJavaError):
        Handed(spark._jvm, tmp_path / "batch").over(found)
    assert list(tmp_path.iterdir()) == []


def test_functions_of_machine_learning_are_there_when_they_are_imported(spark: SparkSession) -> None:
    from pyspark.ml.functions import array_to_vector, vector_to_array

    there_and_back = vector_to_array(array_to_vector(F.array(F.lit(1.5), F.lit(2.0))))
    assert spark.range(1).select(there_and_back.alias("v")).collect()[0].v == [1.5, 2.0]
