"""What keeps a checkpoint and the log together: the JVM's lock, and the sync before each commit."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock import App, Event
from penstock.errors import FolderHeldError, OutcomeUnknownError
from penstock.flows import checkpoint
from penstock.flows.session import hold
from penstock.log.group_commit import GroupCommit
from tests.flows.world import World


class Sale(Event):
    n: int
    at: int


def test_the_lock_of_the_checkpoints_is_held_by_the_jvm(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "flows.lock"
    with path.open("w") as other:
        fcntl.lockf(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(FolderHeldError, match="another process"):
            hold(spark, path, timeout_s=0.3)
        fcntl.lockf(other, fcntl.LOCK_UN)
        lock = hold(spark, path)
        with pytest.raises(BlockingIOError):
            fcntl.lockf(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        lock.release()


def test_a_checkpoint_is_synced_before_the_log_knows_of_its_batch(
    world: Callable[[App], World], monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []
    sync, submit = checkpoint.sync, GroupCommit.submit

    def synced(path: Path) -> None:
        happened.append("sync")
        sync(path)

    def submitted(group: GroupCommit, appends: Any, remember: Any = None) -> Any:
        happened.extend("commit" for append in appends if append.stream.name == "groups")
        return submit(group, appends, remember)

    monkeypatch.setattr(checkpoint, "sync", synced)
    monkeypatch.setattr(GroupCommit, "submit", submitted)
    app = App("sales")
    app.stream("sales", Sale, time="at", id="n")

    @app.view(key="n")
    def groups(sales: DataFrame) -> DataFrame:
        return sales.groupBy("n").count()

    one = world(app)
    one.send("sales", [[Sale(n=n, at=1_700_000_000_000)] for n in range(3)])
    one.run(max_rows=1)
    assert happened == ["sync", "commit"] * 3


def test_a_batch_whose_commit_was_late_is_in_the_log_once(
    world: Callable[[App], World], monkeypatch: pytest.MonkeyPatch
) -> None:
    late: list[Any] = []
    submit = GroupCommit.submit

    def submitted(group: GroupCommit, appends: Any, remember: Any = None) -> Any:
        if not any(append.stream is not None and append.stream.name == "copies" for append in appends):
            return submit(group, appends, remember)
        if not late:
            late.append(appends)
            unknown: Future[Any] = Future()
            unknown.set_exception(OutcomeUnknownError("the log did not answer in time"))
            return unknown
        if len(late) == 1:
            late.append(submit(group, late[0]).result())
        return submit(group, appends, remember)

    monkeypatch.setattr(GroupCommit, "submit", submitted)
    app = App("sales")
    app.stream("sales", Sale, time="at", id="n")

    @app.flow(time="at")
    def copies(sales: DataFrame) -> DataFrame:
        return sales.select("n", "at")

    one = world(app)
    one.send("sales", [[Sale(n=n, at=1_700_000_000_000)] for n in range(3)])
    one.run(max_rows=1)
    assert len(late) == 2
    assert [event["n"] for event in one.events("copies")] == [0, 1, 2]
