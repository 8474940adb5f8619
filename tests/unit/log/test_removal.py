from __future__ import annotations

import itertools
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest

from penstock.log import control
from penstock.log.index import removal
from penstock.log.log import Append, Log, Stream, StreamSpec
from penstock.log.opening import open_log
from penstock.testing.contracts.log_events import CHANGELOG, SCHEMA, changes, content, everything, put


def count(log: Any, table: str) -> int:
    if table == "payloads":
        return len(log.payloads.payloads)
    return int(log.database.rows(f"SELECT count(*) FROM {table}")[0][0])


@pytest.fixture
def changelog(log: Log, monkeypatch: pytest.MonkeyPatch) -> Stream:
    """Twenty commits of a tombstone and fifty words each, which compact into several small blocks."""
    monkeypatch.setattr(removal, "MERGED_BYTES", 20)
    changelog = log.create(CHANGELOG)
    for n in range(20):
        log.append([Append(changelog, changes([("nobody", None), *((f"{word}", n) for word in range(n, n + 50))]))])
    return changelog


def expected() -> dict[str, int]:
    return {str(word): min(word, 19) for word in range(69)}


def test_an_interrupted_compaction_leaves_only_garbage(log: Log, changelog: Stream) -> None:
    steps = log.compacting(changelog, 20)
    assert list(itertools.islice(steps, 3)) == [0, 0, 0]
    assert content(log.read(changelog, 0, 0)) == expected()
    assert count(log, "garbage") == 3
    with closing(open_log(log.place, app="unit")) as again:
        list(again.tidying())
        assert (count(again, "garbage"), count(again, "payloads")) == (0, count(again, "blocks"))
        assert content(again.read(changelog, 0, 0)) == expected()
        assert again.bounds(changelog).first_commit == 0


def test_commits_between_the_slices_of_a_compaction_stay(log: Log, changelog: Stream) -> None:
    for n, _ in enumerate(log.compacting(changelog, 15)):
        log.append([Append(changelog, changes([("new", n)]))])
    assert content(log.read(changelog, 0, 0)) == {**expected(), "new": n}
    assert log.bounds(changelog).first_commit == 14
    assert count(log, "garbage") > 0
    list(log.tidying())
    assert count(log, "payloads") == count(log, "blocks")


@pytest.mark.parametrize("before", [1, 12])
@pytest.mark.parametrize("begun", [True, False])
def test_a_compaction_that_another_overtook_changes_nothing(
    log: Log, changelog: Stream, before: int, begun: bool
) -> None:
    log.append([Append(changelog, changes([("x", None)]))])
    slow = log.compacting(changelog, 10)
    if begun:
        next(slow)
    log.compact(changelog, before)
    assert sum(slow) == 0
    assert content(log.read(changelog, 0, 0)) == expected()
    assert log.bounds(changelog).first_commit == before - 1


def test_what_is_merged_is_not_written_again_for_nothing(log: Log, changelog: Stream) -> None:
    log.compact(changelog, 15)
    assert list(log.compacting(changelog, 15)) == []


def test_merged_blocks_are_merged_again(log: Log, changelog: Stream) -> None:
    went = [log.compact(changelog, before) for before in (5, 10, 20, 20)]
    assert sum(went) == 1020 - 69
    assert went[-1] == 0
    assert content(log.read(changelog, 0, 0)) == expected()
    offsets = [o for block in log.read(changelog, 0, 0) for o in block.offsets.to_pylist()]
    assert offsets == sorted(offsets)
    assert log.bounds(changelog).bytes == sum(commit.bytes for commit in log.commits(changelog, 0))


def test_compaction_goes_by_the_newest_schema(log: Log, changelog: Stream) -> None:
    wider = pa.schema([*changelog.schema, pa.field("mood", pa.string(), metadata={b"default": b'"calm"'})])
    log.create(StreamSpec("words", wider, counts="commits", compact_by=("word",)))
    log.compact(changelog, 20)
    newest = log.find("words")
    assert newest is not None
    assert {m for b in log.read(newest, 0, 0) for m in b.batch.column("mood").to_pylist()} == {"calm"}


def test_an_interrupted_drop_is_finished_by_tidying(log: Log, changelog: Stream) -> None:
    other = log.create(StreamSpec("other", SCHEMA))
    put(log, other, [1])
    next(log.dropping(changelog))
    with closing(open_log(log.place, app="unit")) as again:
        assert again.find("words") is None
        assert count(again, "blocks") > 1
        list(again.tidying())
        assert count(again, "blocks") == count(again, "payloads") == count(again, "commits") == 1
        assert everything(again, other) == [1]


def test_dropping_goes_in_slices(log: Log, changelog: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removal, "SLICE_COMMITS", 4)
    monkeypatch.setattr(removal, "SLICE_ROWS", 3)
    steps = list(log.dropping(changelog))
    assert sum(steps) == 1020
    assert len(steps) > 10
    assert count(log, "commits") == count(log, "blocks") == 0


def test_trimming_goes_in_slices_of_commits_and_of_bytes(
    log: Log, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removal, "SLICE_BYTES", 40_000)
    for n in range(100):
        put(log, stream, range(1 if n < 80 else 100))
    steps = list(log.trimming(stream, 99))
    assert steps[0] == 64
    assert len(steps) > 2
    assert sum(steps) == 80 + 19 * 100
    assert log.bounds(stream).first_commit == 99
    assert count(log, "payloads") == 1


def test_the_control_stream_is_compacted_when_it_has_grown(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "_ROWS_BEFORE_COMPACTION", 20)
    for n in range(50):
        log.append([], {"a": n, "b": n})
    assert sum(log.tidying()) == 98
    assert sum(log.tidying()) == 0
    log.append([], {"c": 1})
    with closing(open_log(log.place, app="unit")) as again:
        assert dict(again.memory()) == {"a": 49, "b": 49, "c": 1}
