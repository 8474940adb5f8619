from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.config import Folder
from penstock.errors import PositionGoneError, UnknownStreamError
from penstock.evolution import changes_refused
from penstock.log.folder_log import DEAD, LATE, FolderLog
from penstock.log.log import Append, Log, StreamSpec
from penstock.log.opening import open_log
from penstock.position import Position
from penstock.schema import SENT
from penstock.testing.contracts.log_events import CHANGELOG, SCHEMA, ManualClock, put


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


@pytest.fixture
def both(folder: Folder) -> Iterator[FolderLog]:
    with closing(FolderLog(folder)) as both:
        yield both


@pytest.fixture
def writers(folder: Folder, clock: ManualClock) -> Iterator[tuple[Log, Log]]:
    with ExitStack() as stack:
        paths = (folder.edge_log, folder.flows_log)
        edge, flows = (stack.enter_context(closing(open_log(p, app="a", clock=clock))) for p in paths)
        yield edge, flows


def letters(reasons: Sequence[str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"reason": reason} for reason in reasons], schema=DEAD)


def read_all(both: FolderLog, name: str, limit: int, position: Position | None = None) -> list[tuple[int, int]]:
    """(partition, offset) of every event, in pages of `limit`."""
    seen: list[tuple[int, int]] = []
    while True:
        blocks, following = both.read_after(name, position, limit)
        page = [(block.partition, offset) for block in blocks for offset in block.offsets.to_pylist()]
        assert len(page) <= limit
        assert all(block.batch.num_rows == len(block.offsets) for block in blocks)
        if not page:
            return seen
        seen, position = seen + page, following


def test_a_folder_without_files_has_no_streams(both: FolderLog) -> None:
    with pytest.raises(UnknownStreamError):
        both.find("numbers")
    assert both.revision() == both.revision()


def test_a_stream_is_found_in_the_file_that_has_it(both: FolderLog, writers: tuple[Log, Log]) -> None:
    edge, flows = writers
    put(edge, edge.create(StreamSpec("door", SCHEMA)), [1, 2])
    put(flows, flows.create(StreamSpec("made", SCHEMA)), [3])
    assert (both.bounds("door").ends, both.bounds("made").ends) == ((2,), (1,))
    assert both.find("made").parts[0].log is both.flows


def test_of_a_flows_stream_the_served_build_is_read(both: FolderLog, writers: tuple[Log, Log]) -> None:
    _, flows = writers
    for epoch in ("old", "new"):
        put(flows, flows.create(StreamSpec("made", SCHEMA, epoch=epoch)), [1])
    flows.append([], {"live/made": "old"})
    assert both.find("made").epoch == "old"
    flows.append([], {"live/made": "new"})
    assert both.find("made").epoch == "new"


def test_changelogs_and_what_is_internal_are_no_streams_here(both: FolderLog, writers: tuple[Log, Log]) -> None:
    writers[1].create(CHANGELOG)
    for name in ("words", "_control"):
        with pytest.raises(UnknownStreamError):
            both.find(name)


@pytest.mark.parametrize("limit", [1, 2, 7, 1000])
def test_pages_cover_every_event_once(both: FolderLog, writers: tuple[Log, Log], limit: int) -> None:
    edge, _ = writers
    stream = edge.create(StreamSpec("door", SCHEMA, partitions=3))
    for first in range(0, 40, 8):
        put(edge, stream, range(first, first + 8))
    seen = read_all(both, "door", limit)
    assert sorted(seen) == [(p, n) for p, end in enumerate(both.bounds("door").ends) for n in range(end)]
    assert seen == read_all(both, "door", 5)


def test_no_partition_waits_for_another(both: FolderLog, writers: tuple[Log, Log]) -> None:
    edge, _ = writers
    stream = edge.create(StreamSpec("door", SCHEMA, partitions=2))
    for n in range(10):
        put(edge, stream, range(20 * n, 20 * n + 20))
    blocks, _ = both.read_after("door", None, 20)
    assert {block.partition for block in blocks} == {0, 1}
    assert {block.commit for block in blocks} == {0}


def test_the_end_is_behind_everything(both: FolderLog, writers: tuple[Log, Log]) -> None:
    edge, _ = writers
    stream = edge.create(StreamSpec("door", SCHEMA))
    done = put(edge, stream, [1, 2, 3])
    end = both.position_end("door")
    assert end == done.position
    assert both.read_after("door", end, 10) == ([], end)
    put(edge, stream, [4])
    blocks, following = both.read_after("door", end, 10)
    assert [b.batch.column("n").to_pylist() for b in blocks] == [[4]]
    assert following == stream.position([4])


def test_a_position_that_is_gone_is_told(both: FolderLog, writers: tuple[Log, Log]) -> None:
    edge, _ = writers
    stream = edge.create(StreamSpec("door", SCHEMA))
    for n in range(5):
        put(edge, stream, [n])
    edge.trim(stream, 3)
    position = stream.position([2])
    for gone in (position, replace(position, epoch="another"), stream.position([6]), stream.position([4, 4])):
        with pytest.raises(PositionGoneError):
            both.read_after("door", gone, 10)
    assert [b.start for b in both.read_after("door", None, 10)[0]] == [3, 4]


def test_dead_is_one_stream_with_a_partition_in_each_file(
    both: FolderLog, writers: tuple[Log, Log], clock: ManualClock
) -> None:
    edge, flows = writers
    spec = StreamSpec("dead", DEAD)
    first = edge.create(spec)
    edge.append([Append(first, letters(["a", "b"]))])
    early = both.position_end("dead")
    assert (early.epoch, early.offsets) == (f"{first.epoch}.-", (2, 0))
    second = flows.create(spec)
    clock.us += 1
    flows.append([Append(second, letters(["c"]))])
    clock.us += 1
    edge.append([Append(first, letters(["d"]))])

    blocks, end = both.read_after("dead", None, 10)
    found = [(b.partition, reason) for b in blocks for reason in b.batch.column("reason").to_pylist()]
    assert found == [(0, "a"), (0, "b"), (1, "c"), (0, "d")]
    assert (end.epoch, end.offsets) == (f"{first.epoch}.{second.epoch}", (3, 1))
    assert both.bounds("dead").rows == 4

    blocks, following = both.read_after("dead", early, 10)
    assert [b.batch.column("reason")[0].as_py() for b in blocks] == ["c", "d"]
    assert following == end
    assert read_all(both, "dead", 1) == [(0, 0), (0, 1), (1, 0), (0, 2)]


def test_dead_may_be_in_flows_alone(both: FolderLog, writers: tuple[Log, Log]) -> None:
    _, flows = writers
    dead = flows.create(StreamSpec("dead", DEAD))
    flows.append([Append(dead, letters(["c"]))])
    position = both.position_end("dead")
    assert (position.epoch, position.offsets) == (f"-.{dead.epoch}", (0, 1))
    assert both.read_after("dead", position, 5) == ([], position)


def test_ledgers_have_the_columns_that_the_wire_contract_names() -> None:
    assert DEAD.names[:6] == ["stream", "reason", "detail", "raw", "sender", "flow"]
    assert LATE.names[:6] == ["flow", "stream", "position", "bound", "event", "corrected"]
    assert DEAD.names[6] == SENT
    assert DEAD.names[7:] == LATE.names[6:] == ["_time", "_received", "_id", "_key"]


@pytest.mark.parametrize(("ledger", "added"), [(DEAD, SENT), (LATE, "corrected")])
def test_ledgers_of_an_older_penstock_are_read(ledger: pa.Schema, added: str) -> None:
    older = pa.schema([field for field in ledger if field.name != added])
    assert changes_refused(older, ledger) == []


def test_a_revision_differs_when_either_file_changed(both: FolderLog, writers: tuple[Log, Log]) -> None:
    revisions = [both.revision()]
    for writer in writers:
        writer.append([], {"a": 1})
        revisions.append(both.revision())
    assert len(set(revisions)) == 3


@pytest.mark.parametrize("newer", [0, 1], ids=["edge", "flows"])
def test_one_side_of_dead_may_still_have_an_older_schema(both: FolderLog, writers: tuple[Log, Log], newer: int) -> None:
    """The processes of an app that was updated start one after the other; then the older one adds the column."""
    older = DEAD.remove(DEAD.get_field_index(SENT))
    for writer in writers:
        made = writer.create(StreamSpec("dead", older))
        writer.append([Append(made, letters(["old"]).select(older.names))])
    made = writers[newer].create(StreamSpec("dead", DEAD))
    writers[newer].append([Append(made, letters(["new"]))])
    blocks, _ = both.read_after("dead", None, 10)
    schema = both.find("dead").schema
    assert all(block.batch.schema.equals(schema) for block in blocks)
    assert sorted(reason for block in blocks for reason in block.batch.column("reason").to_pylist()) == [
        "new",
        "old",
        "old",
    ]
