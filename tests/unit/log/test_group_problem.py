"""Whether the log can be written to is known from its commits, and found out again when nobody commits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from penstock.errors import DiskFullError, LogUnavailableError, StaleTermError
from penstock.log import group_commit
from penstock.log.group_commit import GroupCommit
from penstock.log.log import Append, Log, Stream
from penstock.log.opening import open_log
from penstock.testing.contracts.log_backends import BACKENDS
from penstock.testing.contracts.log_events import events, eventually, everything


@pytest.fixture
def group(log: Log, monkeypatch: pytest.MonkeyPatch) -> Iterator[GroupCommit]:
    monkeypatch.setattr(group_commit, "TIDY_S", 0.02)
    group = GroupCommit(log)
    yield group
    group.close()


def test_a_full_disk_is_a_problem_until_there_is_room_and_nobody_has_to_send(
    group: GroupCommit, log: Log, stream: Stream
) -> None:
    group.submit([Append(stream, events([0]))]).result(60)
    assert group.problem is None
    with BACKENDS["memory"].starved(log):
        with pytest.raises(DiskFullError):
            group.submit([Append(stream, events(range(1, 10_000)))]).result(60)
        assert isinstance(group.problem, DiskFullError)
    eventually(lambda: group.problem is None)
    assert everything(log, stream) == [0]


def test_a_writer_that_was_replaced_stays_a_problem(group: GroupCommit, log: Log, stream: Stream) -> None:
    newer = open_log(log.place, app="unit")
    with pytest.raises(StaleTermError):
        group.submit([Append(stream, events([0]))]).result(60)
    assert isinstance(group.problem, StaleTermError)
    newer.close()


def test_a_commit_that_hangs_is_a_problem(log: Log, stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    class Hanging:
        def append(self, appends: Sequence[Append]) -> Any:
            eventually(lambda: group.problem is not None)
            seen.append(group.problem)
            return log.append(appends)

        def __getattr__(self, name: str) -> Any:
            return getattr(log, name)

    monkeypatch.setattr(group_commit, "STALLED_S", 0.01)
    group = GroupCommit(Hanging())
    group.submit([Append(stream, events([0]))]).result(60)
    assert isinstance(seen[0], LogUnavailableError)
    assert group.problem is None
    group.close()


def test_a_writer_that_died_is_a_problem_and_takes_nothing(log: Log, stream: Stream) -> None:
    class Dying:
        def append(self, appends: Sequence[Append]) -> Any:
            raise SystemExit

        def __getattr__(self, name: str) -> Any:
            return getattr(log, name)

    group = GroupCommit(Dying())
    group.submit([Append(stream, events([0]))])
    eventually(lambda: not group._thread.is_alive())
    assert isinstance(group.problem, LogUnavailableError)
    with pytest.raises(LogUnavailableError):
        group.submit([Append(stream, events([1]))])
    with pytest.raises(LogUnavailableError):
        group.run(lambda: None)
    group.close()
