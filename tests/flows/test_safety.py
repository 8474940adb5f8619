"""What keeps a checkpoint and the log together: the JVM's lock, and the sync before each commit."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock import App, Event
from penstock.errors import FolderHeldError
from penstock.flows import checkpoint
from penstock.flows.session import hold
from penstock.log.group import GroupCommit
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
