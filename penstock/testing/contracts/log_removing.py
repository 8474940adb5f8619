"""Tests of what a log promises about making streams, and about trimming, compacting and dropping them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PositionGoneError, SchemaChangeError
from penstock.log.log import Append, Log, LogReader, Stream, StreamSpec
from penstock.testing.contracts.log_backends import LogBackend
from penstock.testing.contracts.log_events import (
    CHANGELOG,
    SCHEMA,
    LogFixtures,
    changes,
    content,
    events,
    everything,
    numbers,
    put,
    quick,
)

Batches = list[list[tuple[str, int | None]]]
batches = st.lists(
    st.lists(st.tuples(st.sampled_from("abcdef"), st.none() | st.integers(0, 9)), max_size=4), min_size=1, max_size=12
)


def defaulted(name: str, kind: pa.DataType, default: bytes) -> pa.Field:
    return pa.field(name, kind, metadata={b"default": default})


class Removing(LogFixtures):
    """Streams, schemas, trimming, compaction, dropping."""

    # Streams and their schemas

    def test_making_a_stream_twice_finds_it(self, log: Log, reader: LogReader) -> None:
        spec = StreamSpec("numbers", SCHEMA, partitions=2, unique=True)
        made = log.create(spec)
        assert log.create(spec) == made == reader.find("numbers") == reader.find("numbers", made.epoch)
        assert [s for s in reader.streams() if s.name == "numbers"] == [made]

    def test_an_unknown_stream_is_not_found(self, log: Log, reader: LogReader) -> None:
        assert reader.find("nobody") is None
        log.create(StreamSpec("numbers", SCHEMA))
        assert reader.find("numbers", "another") is None

    def test_of_several_epochs_the_one_made_last_is_found(self, log: Log, reader: LogReader) -> None:
        old, new = (log.create(StreamSpec("numbers", SCHEMA, epoch=epoch)) for epoch in ("z1", "a2"))
        put(log, old, [1])
        put(log, new, [2, 3])
        found = reader.find("numbers")
        assert found is not None
        assert found.epoch == "a2"
        assert (everything(reader, old), everything(reader, new)) == ([1], [2, 3])

    def test_a_new_field_reads_as_its_default_in_older_events(self, log: Log, stream: Stream) -> None:
        put(log, stream, [1])
        added = defaulted("mood", pa.string(), b'"calm"')
        newer = log.create(StreamSpec("numbers", pa.schema([*SCHEMA, added])))
        log.append([Append(newer, events([2]).append_column(added, pa.array(["wild"])))])
        rows = [row for block in log.read(newer, 0, 0, columns=["n", "mood"]) for row in block.batch.to_pylist()]
        assert rows == [{"n": 1, "mood": "calm"}, {"n": 2, "mood": "wild"}]
        assert newer.epoch == stream.epoch

    def test_defaults_survive_a_restart(self, backend: LogBackend, place: str, reader: LogReader) -> None:
        field = defaulted("mood", pa.string(), b'"calm"')
        with closing(backend.open(place)) as log:
            put(log, log.create(StreamSpec("numbers", SCHEMA)), [1])
            log.create(StreamSpec("numbers", pa.schema([*SCHEMA, field])))
        found = reader.find("numbers")
        assert found is not None
        assert found.schema.equals(pa.schema([*SCHEMA, field]), check_metadata=True)
        assert [b.batch.column("mood").to_pylist() for b in reader.read(found, 0, 0)] == [["calm"]]

    def test_a_changed_default_is_the_one_that_counts(self, log: Log, stream: Stream, reader: LogReader) -> None:
        put(log, stream, [1])
        for default in (b'"calm"', b'"wild"'):
            newer = log.create(StreamSpec("numbers", pa.schema([*SCHEMA, defaulted("mood", pa.string(), default)])))
        assert [b.batch.column("mood").to_pylist() for b in reader.read(newer, 0, 0)] == [["wild"]]
        found = reader.find("numbers")
        assert found is not None
        assert found.schema.equals(newer.schema, check_metadata=True)

    def test_an_old_handle_reads_newer_events_without_what_it_does_not_know(self, log: Log, stream: Stream) -> None:
        newer = log.create(StreamSpec("numbers", pa.schema([*SCHEMA, defaulted("mood", pa.string(), b"null")])))
        log.append([Append(newer, events([1]).append_column(newer.schema.field("mood"), pa.array(["wild"])))])
        (block,) = log.read(stream, 0, 0)
        assert block.batch.schema.equals(SCHEMA)

    def test_a_schema_that_stored_events_do_not_fit_is_refused(self, log: Log, stream: Stream) -> None:
        put(log, stream, [1])
        with pytest.raises(SchemaChangeError):
            log.create(StreamSpec("numbers", pa.schema([*SCHEMA, pa.field("mood", pa.string())])))
        other_type = pa.schema([pa.field("n", pa.string()), *list(SCHEMA)[1:]])
        with pytest.raises(SchemaChangeError):
            log.create(StreamSpec("numbers", other_type))
        assert log.find("numbers") == stream

    def test_every_stored_version_must_fit_not_only_the_newest(self, log: Log, stream: Stream) -> None:
        put(log, stream, [1])
        without = pa.schema(list(SCHEMA)[1:])
        log.create(StreamSpec("numbers", without))
        with pytest.raises(SchemaChangeError):
            log.create(StreamSpec("numbers", pa.schema([defaulted("n", pa.string(), b'"x"'), *without])))

    def test_versions_are_numbered_and_say_whether_events_of_them_are_held(
        self, log: Log, stream: Stream, reader: LogReader
    ) -> None:
        assert [(v.number, v.held) for v in reader.versions(stream)] == [(1, False)]
        newer = log.create(StreamSpec("numbers", pa.schema([*SCHEMA, defaulted("mood", pa.string(), b"null")])))
        log.append([Append(newer, events([1]).append_column(newer.schema.field("mood"), pa.nulls(1, pa.string())))])
        log.create(StreamSpec("numbers", newer.schema))
        one, two = reader.versions(stream)
        assert (one.number, one.held, two.number, two.held) == (1, False, 2, True)
        assert one.schema.equals(SCHEMA, check_metadata=True)
        assert two.schema.equals(newer.schema, check_metadata=True)
        assert one.made_us is not None
        assert two.made_us is not None
        assert one.made_us <= two.made_us

    def test_an_empty_stream_takes_any_schema(self, log: Log, stream: Stream) -> None:
        changed = log.create(StreamSpec("numbers", pa.schema([("other", pa.string())])))
        assert changed.schema.names == ["other"]

    def test_another_number_of_partitions_is_refused(self, log: Log, stream: Stream) -> None:
        with pytest.raises(SchemaChangeError):
            log.create(StreamSpec("numbers", SCHEMA, partitions=2))

    # Trimming

    def test_trimming_removes_whole_commits_from_the_start(self, log: Log, reader: LogReader) -> None:
        stream = log.create(StreamSpec("numbers", SCHEMA, partitions=2))
        for first in range(0, 50, 10):
            put(log, stream, range(first, first + 10))
        ends = log.commits(stream, 1)[0].ends
        assert log.trim(stream, 2) == 20
        bounds = reader.bounds(stream)
        assert (bounds.starts, bounds.first_commit, bounds.next_commit, bounds.rows) == (ends, 2, 5, 50)
        assert sorted(everything(reader, stream)) == list(range(20, 50))
        assert [c.number for c in reader.commits(stream, 0)] == [2, 3, 4]

    def test_the_newest_commit_always_stays(self, log: Log, stream: Stream) -> None:
        put(log, stream, [1])
        put(log, stream, [2])
        assert log.trim(stream, 99) == 1
        assert log.trim(stream, 99) == 0
        assert numbers(log, stream, start=1) == [2]

    def test_positions_and_bounds_go_on_after_trimming_and_a_restart(self, backend: LogBackend, place: str) -> None:
        with closing(backend.open(place)) as log:
            stream = log.create(StreamSpec("numbers", SCHEMA, unique=True))
            put(log, stream, [100])
            put(log, stream, [1])
            log.trim(stream, 1)
        with closing(backend.open(place)) as log:
            assert put(log, stream, [2]).position == stream.position([3])
            assert [(c.bound_us, c.total_rows) for c in log.commits(stream, 0)] == [(100, 2), (100, 3)]

    def test_trimming_frees_room(self, log: Log, stream: Stream) -> None:
        for n in range(20):
            put(log, stream, range(n * 100, n * 100 + 100))
        before = log.bounds(stream).bytes
        log.trim(stream, 10)
        assert 0.4 * before < log.bounds(stream).bytes < 0.6 * before

    def test_a_reader_below_the_start_is_told(self, log: Log, stream: Stream) -> None:
        for n in range(4):
            put(log, stream, [n])
        log.trim(stream, 2)
        with pytest.raises(PositionGoneError):
            numbers(log, stream, start=1)
        assert numbers(log, stream, start=2) == [2, 3]

    def test_a_reader_that_trimming_overtakes_is_told(self, log: Log, stream: Stream) -> None:
        for n in range(200):
            put(log, stream, [n])
        blocks = log.read(stream, 0, 0)
        seen = [next(blocks).start]
        log.trim(stream, 190)
        with pytest.raises(PositionGoneError):
            seen += [block.start for block in blocks]
        assert seen == list(range(len(seen)))

    # Compaction

    def test_a_changelog_numbers_its_commits(self, log: Log, changelog: Stream) -> None:
        sizes = [2, 0, 1]
        for size in sizes:
            log.append([Append(changelog, changes([("a", n) for n in range(size)]), meta={})])
        blocks = list(log.read(changelog, 0, 0))
        assert [(b.start, b.end, b.commit, b.batch.num_rows) for b in blocks] == [
            (0, 1, 0, 2),
            (1, 2, 1, 0),
            (2, 3, 2, 1),
        ]
        assert blocks[0].offsets.to_pylist() == [0, 0]
        assert log.last_commit(changelog).ends == (3,)  # type: ignore[union-attr]
        assert [b.start for b in log.read(changelog, 0, 1, 2)] == [1]

    def test_compaction_keeps_the_newest_of_each_key_and_no_tombstones(self, log: Log, changelog: Stream) -> None:
        for batch in ([("a", 1), ("b", 1)], [("a", None), ("c", 1)], [("b", 2)], [("d", 1)]):
            log.append([Append(changelog, changes(batch), meta={"rows": len(batch)})])
        assert log.compact(changelog, 3) == 3
        merged, last = log.read(changelog, 0, 0)
        assert (merged.start, merged.end, merged.commit) == (0, 3, 2)
        assert merged.batch.select(["word", "count"]).to_pylist() == [
            {"word": "c", "count": 1},
            {"word": "b", "count": 2},
        ]
        assert merged.offsets.to_pylist() == [1, 2]
        assert (last.start, last.commit) == (3, 3)

    def test_the_merged_commit_stands_for_the_newest_that_went_into_it(self, log: Log, changelog: Stream) -> None:
        for n in range(4):
            log.append([Append(changelog, changes([("a", n)]), meta={"batch": n})])
        log.compact(changelog, 3)
        assert [(c.number, c.ends, c.meta, c.rows) for c in log.commits(changelog, 0)] == [
            (2, (3,), {"batch": 2}, 1),
            (3, (4,), {"batch": 3}, 1),
        ]
        bounds = log.bounds(changelog)
        assert (bounds.starts, bounds.ends, bounds.first_commit, bounds.next_commit, bounds.rows) == (
            (0,),
            (4,),
            2,
            4,
            4,
        )

    def test_whoever_stands_in_a_merged_range_is_told(self, log: Log, changelog: Stream) -> None:
        for n in range(5):
            log.append([Append(changelog, changes([(str(n), n)]))])
        log.compact(changelog, 3)
        for start, end in ((1, None), (2, None), (0, 2), (1, 2)):
            with pytest.raises(PositionGoneError):
                list(log.read(changelog, 0, start, end))
        assert content(log.read(changelog, 0, 3)) == {"3": 3, "4": 4}

    def test_a_reader_that_began_before_a_compaction_sees_what_was_before(self, log: Log, changelog: Stream) -> None:
        for n in range(150):
            log.append([Append(changelog, changes([("a", n), (str(n), None if n % 2 else n)]))])
        blocks = log.read(changelog, 0, 0)
        first = next(blocks)
        log.compact(changelog, 140)
        assert [b.start for b in blocks] == list(range(1, 150))
        assert first.start == 0
        assert log.bounds(changelog).first_commit == 139

    def test_compacting_nothing_changes_nothing(self, log: Log, changelog: Stream, stream: Stream) -> None:
        assert log.compact(changelog, 5) == 0
        put(log, stream, [1, 1])
        assert log.compact(stream, 5) == 0
        assert numbers(log, stream) == [1, 1]

    @quick
    @given(batches=batches, cuts=st.lists(st.integers(0, 12), max_size=3), reopen=st.booleans())
    def test_compaction_never_changes_what_a_changelog_adds_up_to(
        self, backend: LogBackend, fresh: Callable[[], str], batches: Batches, cuts: list[int], reopen: bool
    ) -> None:
        place = fresh()
        log = backend.open(place)
        changelog = log.create(CHANGELOG)
        expected: dict[str, int] = {}
        for batch in batches:
            log.append([Append(changelog, changes(batch))])
            for word, count in batch:
                expected.pop(word, None) if count is None else expected.update({word: count})
        rows = sum(map(len, batches))
        for cut in cuts:
            rows -= log.compact(changelog, cut)
            if reopen:
                log.close()
                log = backend.open(place)
            blocks = list(log.read(changelog, 0, 0))
            assert content(iter(blocks)) == expected
            assert sum(b.batch.num_rows for b in blocks) == rows
            assert [b.start for b in blocks[1:]] == [b.end for b in blocks[:-1]]
        assert log.bounds(changelog).ends == (len(batches),)
        log.close()

    def test_keys_may_be_nested_and_null(self, log: Log) -> None:
        window = pa.struct([("start", pa.int64()), ("end", pa.int64())])
        schema = pa.schema([("window", window), ("word", pa.string()), ("n", pa.int64())])
        stream = log.create(StreamSpec("nested", schema, counts="commits", compact_by=("window", "word")))
        keys = [
            ({"start": 1, "end": 2}, "a"),
            ({"start": 1, "end": 2}, None),
            ({"start": 1, "end": 3}, "a"),
            (None, "a"),
        ]
        for n in range(3):
            rows = [{"window": w, "word": word, "n": n} for w, word in keys]
            log.append([Append(stream, pa.RecordBatch.from_pylist(rows, schema=schema))])
        assert log.compact(stream, 3) == 2 * len(keys)
        (block,) = log.read(stream, 0, 0)
        assert block.batch.column("n").to_pylist() == [2] * len(keys)

    def test_keys_may_be_lists(self, log: Log) -> None:
        schema = pa.schema([("words", pa.list_(pa.string())), ("n", pa.int64())])
        stream = log.create(StreamSpec("lists", schema, counts="commits", compact_by=("words",)))
        for n in range(2):
            rows = [{"words": words, "n": n} for words in (["a"], ["a", "b"], [], None, ["a"])]
            log.append([Append(stream, pa.RecordBatch.from_pylist(rows, schema=schema))])
        assert log.compact(stream, 2) == 6

    # Dropping

    def test_a_dropped_stream_is_gone_and_the_rest_is_not(self, log: Log, reader: LogReader) -> None:
        old, new = (log.create(StreamSpec("numbers", SCHEMA, epoch=epoch)) for epoch in ("e1", "e2"))
        put(log, old, [1])
        put(log, new, [2])
        log.drop(old)
        assert reader.find("numbers", "e1") is None
        for ask in (
            reader.bounds,
            log.bounds,
            lambda s: reader.read(s, 0, 0),
            lambda s: log.append([Append(s, events([1]))]),
        ):
            with pytest.raises(PositionGoneError):
                ask(old)
        assert everything(reader, new) == [2]

    def test_an_epoch_that_was_dropped_can_be_made_again(self, log: Log, reader: LogReader) -> None:
        spec = StreamSpec("numbers", SCHEMA, epoch="e1", unique=True)
        stream = log.create(spec)
        put(log, stream, [1])
        assert everything(reader, stream) == [1]
        log.drop(stream)
        put(log, log.create(spec), [1, 2])
        assert everything(reader, stream) == [1, 2]
