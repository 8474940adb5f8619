"""Tests of what a log promises about appending, reading, partitions and the bound of lateness."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.log.log import Append, Appended, Log, LogReader, Stream, StreamSpec
from penstock.schema import ID
from penstock.testing.contracts.log_backends import LogBackend
from penstock.testing.contracts.log_events import (
    SCHEMA,
    LogFixtures,
    changes,
    events,
    everything,
    numbers,
    one,
    put,
    quick,
)


def most_within(sizes: Sequence[int], start: int, rows: int) -> int:
    """The number behind the last commit such that those from `start` on hold at most `rows`, or what the first holds
    that holds any."""
    most = max(rows, next(filter(None, sizes[start:]), 0))
    number = start
    while number < len(sizes) and sum(sizes[start : number + 1]) <= most:
        number += 1
    return number


class Appending(LogFixtures):
    """Commits, offsets, partitions, times."""

    # Appending and reading

    def test_events_are_read_back_as_they_were_appended(self, log: Log, reader: LogReader, stream: Stream) -> None:
        batch = events([3, 1, 2])
        log.append([Append(stream, batch)])
        (block,) = reader.read(stream, 0, 0)
        assert block.batch.equals(batch)
        assert block.batch.schema.equals(stream.schema, check_metadata=True)
        assert (block.partition, block.start, block.end, block.commit) == (0, 0, 3, 0)
        assert block.offsets.to_pylist() == [0, 1, 2]

    def test_a_position_is_just_behind_what_was_appended(self, log: Log, stream: Stream) -> None:
        assert put(log, stream, [1, 2]).position == stream.position([2])
        result = put(log, stream, [3])
        assert (result.position, result.commit, result.accepted) == (stream.position([3]), 1, 1)

    def test_appends_to_one_stream_in_one_call_are_one_commit_in_their_order(self, log: Log, stream: Stream) -> None:
        results = log.append([Append(stream, events([1, 2])), Append(stream, events([3]))])
        assert [r.position for r in results if isinstance(r, Appended)] == [stream.position([3])] * 2
        assert [r.accepted for r in results if isinstance(r, Appended)] == [2, 1]
        assert [(c.number, c.rows) for c in log.commits(stream, 0)] == [(0, 3)]
        assert numbers(log, stream) == [1, 2, 3]

    def test_streams_in_one_call_commit_together_or_not_at_all(self, log: Log, stream: Stream) -> None:
        other = log.create(StreamSpec("other", SCHEMA))
        with pytest.raises(ValueError, match="columns"):
            log.append([Append(stream, events([1])), Append(other, changes([("a", 1)]))])
        assert everything(log, stream) == everything(log, other) == []
        log.append([Append(stream, events([1])), Append(other, events([2]))])
        assert (everything(log, stream), everything(log, other)) == ([1], [2])

    def test_an_append_without_rows_makes_a_commit(self, log: Log, stream: Stream) -> None:
        assert one(log.append([Append(stream, events([]), meta={"at": 7})])).commit == 0
        (commit,) = log.commits(stream, 0)
        assert (commit.rows, commit.ends, commit.meta) == (0, (0,), {"at": 7})
        assert put(log, stream, [1]).commit == 1

    def test_two_metas_for_one_stream_in_one_commit_are_refused(self, log: Log, stream: Stream) -> None:
        twice = [Append(stream, events([n]), meta={"n": n}) for n in (1, 2)]
        with pytest.raises(ValueError, match="meta"):
            log.append(twice)
        assert everything(log, stream) == []

    def test_a_range_is_cut_to_the_offsets_asked_for(self, log: Log, stream: Stream) -> None:
        for first in range(0, 30, 3):
            put(log, stream, range(first, first + 3))
        assert numbers(log, stream, start=4, end=11) == list(range(4, 11))
        assert numbers(log, stream, start=5, end=6) == [5]
        assert numbers(log, stream, start=28, end=99) == [28, 29]
        assert numbers(log, stream, start=30) == numbers(log, stream, start=7, end=7) == []
        (block,) = log.read(stream, 0, 4, 5)
        assert (block.start, block.end, block.offsets.to_pylist()) == (4, 5, [4])

    def test_only_the_columns_asked_for_come_in_the_order_asked_for(self, log: Log, stream: Stream) -> None:
        put(log, stream, [1, 2])
        (block,) = log.read(stream, 0, 1, columns=[ID, "n"])
        assert block.batch.to_pylist() == [{ID: "2", "n": 2}]
        assert block.batch.schema.names == [ID, "n"]

    def test_large_events_come_back_whole(self, log: Log) -> None:
        stream = log.create(StreamSpec("large", pa.schema([("text", pa.string())])))
        texts = [chr(65 + n) * 3_000_000 for n in range(4)]
        for text in texts:
            log.append([Append(stream, pa.record_batch([pa.array([text])], schema=stream.schema))])
        assert [b.batch.column(0)[0].as_py() for b in log.read(stream, 0, 0)] == texts

    @quick
    @given(
        sizes=st.lists(st.integers(0, 5), min_size=1, max_size=12), start=st.integers(0, 12), rows=st.integers(0, 30)
    )
    @example(sizes=[1, 0, 0, 5, 1], start=1, rows=3)
    @example(sizes=[1, 0], start=0, rows=0)
    def test_commits_within_are_whole_and_at_least_one_has_events(
        self, backend: LogBackend, fresh: Callable[[], str], sizes: list[int], start: int, rows: int
    ) -> None:
        with closing(backend.open(fresh())) as log:
            stream = log.create(StreamSpec("numbers", SCHEMA))
            for size in sizes:
                put(log, stream, range(size))
            number = log.commit_within(stream, start, rows)
            assert number == most_within(sizes, start, rows)

    def test_commits_are_listed_by_number(self, log: Log, stream: Stream) -> None:
        for n in range(5):
            put(log, stream, [n])
        assert [c.number for c in log.commits(stream, 1, 4)] == [1, 2, 3]
        assert [c.number for c in log.commits(stream, 3)] == [3, 4]
        assert [c.number for c in log.commits(stream, 0, limit=2)] == [0, 1]
        last, before = log.last_commit(stream), log.last_commit(stream, 2)
        assert last is not None
        assert before is not None
        assert (last.number, last.total_rows, before.number) == (4, 5, 1)
        assert log.last_commit(stream, 0) is None

    # Partitions

    def test_offsets_are_dense_in_each_partition(self, log: Log) -> None:
        stream = log.create(StreamSpec("numbers", SCHEMA, partitions=3))
        for first in range(0, 60, 20):
            put(log, stream, range(first, first + 20))
        ends = log.bounds(stream).ends
        assert sum(ends) == 60
        assert all(ends)
        for partition, end in enumerate(ends):
            offsets = [o for block in log.read(stream, partition, 0) for o in block.offsets.to_pylist()]
            assert offsets == list(range(end))

    def test_a_key_stays_in_its_partition_and_in_order(self, backend: LogBackend, place: str) -> None:
        spec = StreamSpec("numbers", SCHEMA, partitions=4)
        for first in (0, 10):
            with closing(backend.open(place)) as log:
                stream = log.create(spec)
                put(log, stream, range(first, first + 10), keys=["a", "b"] * 5)
        with closing(backend.reader(place)) as reader:
            held = [numbers(reader, stream, partition) for partition in range(4)]
        assert sorted(filter(None, held)) == [list(range(0, 20, 2)), list(range(1, 20, 2))]

    def test_events_without_a_key_go_to_the_partitions_in_turn(self, log: Log) -> None:
        stream = log.create(StreamSpec("numbers", SCHEMA, partitions=4))
        put(log, stream, [1, 2, 3], keys=[None] * 3)
        put(log, stream, [4, 5], keys=[None] * 2)
        assert [numbers(log, stream, partition) for partition in range(4)] == [[1, 5], [2], [3], [4]]

    def test_one_call_moves_all_partitions_in_one_commit(self, log: Log) -> None:
        stream = log.create(StreamSpec("numbers", SCHEMA, partitions=3))
        result = put(log, stream, range(30))
        (commit,) = log.commits(stream, 0)
        assert result.position.offsets == commit.ends == log.bounds(stream).ends

    # The bound of lateness

    def test_every_block_carries_the_largest_time_before_its_commit(self, log: Log) -> None:
        stream = log.create(StreamSpec("numbers", SCHEMA, partitions=2))
        put(log, stream, range(10), times=range(100, 110))
        log.append([Append(stream, events(range(10), times=[5] * 10)), Append(stream, events([1], times=[500]))])
        put(log, stream, range(10))
        bounds = {b.commit: b.bound_us for p in (0, 1) for b in log.read(stream, p, 0)}
        assert bounds == {0: None, 1: 109, 2: 500}

    # How far a stream is complete

    def test_a_stream_is_complete_late_after_behind_its_newest_event(self, log: Log) -> None:
        stream = log.create(StreamSpec("numbers", SCHEMA, partitions=2, late_after_us=10))
        for times in ([100, 50], [95], [200, 1], [180]):
            put(log, stream, range(len(times)), times=times)
        commits = [(c.earliest_us, c.complete_us) for c in log.commits(stream, 0)]
        assert commits == [(None, 90), (90, 90), (90, 190), (190, 190)]
        assert {b.commit: b.earliest_us for p in (0, 1) for b in log.read(stream, p, 0)} == {
            0: None,
            1: 90,
            2: 90,
            3: 190,
        }
        assert log.bounds(stream).complete_us == 190

    def test_a_commit_without_events_can_move_what_is_complete_and_nothing_moves_it_back(
        self, backend: LogBackend, fresh: Callable[[], str]
    ) -> None:
        place, spec = fresh(), StreamSpec("numbers", SCHEMA, late_after_us=10)
        with closing(backend.open(place)) as log:
            stream = log.create(spec)
            put(log, stream, [1], times=[100])
            log.append([Append(stream, events([]), complete_us=150), Append(stream, events([]), complete_us=140)])
        with closing(backend.open(place)) as log:
            put(log, log.create(replace(spec, late_after_us=90)), [2, 3], times=[120, 200])
            log.append([Append(stream, events([]), complete_us=20)])
        with closing(backend.reader(place)) as reader:
            told = [(c.rows, c.earliest_us, c.complete_us) for c in reader.commits(stream, 0)]
        assert told == [(1, None, 90), (0, 90, 150), (2, 150, 150), (0, 150, 150)]

    def test_a_stream_of_which_nobody_says_it_is_never_complete(self, log: Log) -> None:
        stream = log.create(StreamSpec("numbers", SCHEMA))
        put(log, stream, [1, 2], times=[100, 200])
        assert [(c.earliest_us, c.complete_us) for c in log.commits(stream, 0)] == [(None, None)]
        put(log, log.create(StreamSpec("numbers", SCHEMA, late_after_us=10)), [3], times=[150])
        assert log.commits(stream, 1)[0].earliest_us == log.bounds(stream).complete_us == 190

    @quick
    @given(
        commits=st.lists(st.lists(st.none() | st.integers(-(10**15), 10**15), max_size=4), min_size=1, max_size=8),
        reopen=st.integers(0, 8),
    )
    def test_times_of_commits_follow_from_the_events(
        self, backend: LogBackend, fresh: Callable[[], str], commits: list[list[int | None]], reopen: int
    ) -> None:
        place = fresh()
        log = backend.open(place)
        stream = log.create(StreamSpec("numbers", SCHEMA))
        expected: list[tuple[int | None, ...]] = []
        bound: int | None = None
        for number, times in enumerate(commits):
            if number == reopen:
                log.close()
                log = backend.open(place)
            put(log, stream, range(len(times)), times=times)
            known = [t for t in times if t is not None]
            most = max([*known, *([] if bound is None else [bound])], default=None)
            expected.append((bound, most, min(known, default=None)))
            bound = most
        assert [(c.bound_us, c.max_us, c.min_us) for c in log.commits(stream, 0)] == expected
        assert log.bounds(stream).max_us == bound
        log.close()
