from __future__ import annotations

import zlib

import pyarrow as pa
import pytest

from penstock.log import commit_plan
from penstock.log.commit_plan import StreamEnd, draft, split
from penstock.log.log import Append, Log, Stream
from penstock.schema import KEY
from penstock.testing.contracts.log_events import CHANGELOG, CHANGES, SCHEMA, changes, events


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_plan, "PIECE_BYTES", 1000)


def test_the_partition_of_a_key_is_its_crc_so_that_it_never_moves() -> None:
    keys = ["a", "b", "über", ""]
    parts = split(events(range(4), keys=keys), 7, before=3)
    for partition, part in enumerate(parts):
        for key in part.column(KEY).to_pylist():
            assert partition == zlib.crc32(key.encode()) % 7
    assert sum(part.num_rows for part in parts) == 4
    assert zlib.crc32(b"a") == 3904355907


def test_events_without_a_key_take_turns_from_where_the_stream_ends() -> None:
    parts = split(events(range(5), keys=[None, None, "a", None, None]), 3, before=7)
    at_a = zlib.crc32(b"a") % 3
    expected = {1: [0, 4], 2: [1], 0: [3]}  # the seventh event of a stream goes to partition 1 of 3
    expected[at_a] = sorted([*expected[at_a], 2])
    assert {n: part.column("n").to_pylist() for n, part in enumerate(parts)} == expected


def test_a_batch_without_keys_is_not_split() -> None:
    batch = pa.record_batch({"n": [1, 2]})
    first, second = split(batch, 2)
    assert (first.num_rows, second.num_rows) == (2, 0)


@pytest.mark.usefixtures("small_pieces")
def test_a_large_append_is_cut_into_blocks_of_consecutive_offsets() -> None:
    tail = StreamEnd(Stream("s", "e", 1, False, "events", (), SCHEMA, "memory://unit"), (10,))
    pieces = draft(tail, events(range(200)), None, 0).pieces
    assert len(pieces) > 5
    assert [p.start for p in pieces] == [10, *(p.stop for p in pieces[:-1])]
    assert all(p.stop - p.start == p.rows for p in pieces)
    assert pieces[-1].stop == 210


@pytest.mark.usefixtures("small_pieces")
def test_a_large_commit_of_a_changelog_stays_one_offset(log: Log) -> None:
    changelog = log.create(CHANGELOG)
    rows = [(f"word-{n:04d}", n) for n in range(300)]
    for _ in range(3):
        log.append([Append(changelog, changes(rows))])
    blocks = list(log.read(changelog, 0, 1))
    assert [(b.start, b.end) for b in blocks if b.commit == 1] == [(1, 2)] * (len(blocks) // 2)
    assert len(blocks) > 10
    assert pa.Table.from_batches([b.batch for b in blocks if b.commit == 2]).equals(
        pa.Table.from_batches([changes(rows)], CHANGES)
    )
    log.compact(changelog, 2)
    assert sum(b.batch.num_rows for b in log.read(changelog, 0, 0)) == 600


def test_columns_in_another_order_or_narrower_type_are_fitted(log: Log, stream: Stream) -> None:
    batch = events([1, 2])
    turned = batch.select(batch.schema.names[::-1])
    log.append([Append(stream, turned), Append(stream, batch)])
    (block,) = log.read(stream, 0, 0)
    assert block.batch.column("n").to_pylist() == [1, 2, 1, 2]


def test_columns_that_the_stream_does_not_have_are_named(log: Log, stream: Stream) -> None:
    odd = events([1]).append_column("odd", pa.array([1]))
    with pytest.raises(ValueError, match="odd"):
        log.append([Append(stream, odd)])
