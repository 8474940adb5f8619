"""Tests of what a log promises about taking things once, and about what it remembers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import FencedError, SequenceGapError
from penstock.horizon import Horizon
from penstock.log.log import Append, Appended, KnownIds, Log, LogReader, Producer, Stream, StreamSpec
from penstock.testing.contracts.log_backends import LogBackend
from penstock.testing.contracts.log_events import SCHEMA, LogFixtures, ManualClock, events, numbers, put, quick


class TakingOnce(LogFixtures):
    """Ids, producers, memory."""

    # Ids

    def test_an_id_is_taken_once(self, log: Log, unique: Stream) -> None:
        put(log, unique, [1, 2])
        result = put(log, unique, [2, 3, 1])
        assert (result.accepted, result.duplicates) == (1, (0, 2))
        assert numbers(log, unique) == [1, 2, 3]

    def test_the_first_of_equal_ids_in_a_batch_wins(self, log: Log, unique: Stream) -> None:
        result = put(log, unique, [1, 2, 3], ids=["a", "b", "a"])
        assert (result.accepted, result.duplicates) == (2, (2,))
        assert numbers(log, unique) == [1, 2]

    def test_appends_of_one_call_know_of_each_others_ids(self, log: Log, unique: Stream) -> None:
        results = log.append([Append(unique, events([1, 2])), Append(unique, events([2, 3]))])
        assert [(r.accepted, r.duplicates) for r in results if isinstance(r, Appended)] == [(2, ()), (1, (0,))]
        assert numbers(log, unique) == [1, 2, 3]

    def test_events_without_an_id_are_all_taken(self, log: Log, unique: Stream) -> None:
        put(log, unique, [1, 2], ids=[None, "a"])
        assert put(log, unique, [3, 4], ids=[None, "a"]).duplicates == (1,)
        assert numbers(log, unique) == [1, 2, 3]

    def test_ids_survive_a_restart(self, backend: LogBackend, place: str) -> None:
        with closing(backend.open(place)) as log:
            unique = log.create(StreamSpec("unique", SCHEMA, partitions=3, unique=True))
            for first in range(0, 300, 100):
                put(log, unique, range(first, first + 100))
        with closing(backend.open(place)) as log:
            result = put(log, unique, [300, *range(300)])
            assert (result.accepted, result.duplicates) == (1, tuple(range(1, 301)))

    def test_only_duplicates_make_no_commit(self, log: Log, unique: Stream) -> None:
        first = put(log, unique, [1])
        again = put(log, unique, [1])
        assert (again.accepted, again.position, again.commit) == (0, first.position, first.commit)
        assert log.bounds(unique).next_commit == 1

    def test_only_duplicates_with_meta_make_one(self, log: Log, unique: Stream) -> None:
        put(log, unique, [1])
        log.append([Append(unique, events([1]), meta={"batch": 2})])
        assert [(c.rows, c.meta) for c in log.commits(unique, 0)] == [(1, None), (0, {"batch": 2})]

    def test_ids_of_an_append_that_failed_are_free(self, backend: LogBackend, log: Log, unique: Stream) -> None:
        with pytest.raises(ValueError, match="columns"):
            log.append([Append(unique, events([1])), Append(unique, events([1]).select(["n"]))])
        assert put(log, unique, [1]).accepted == 1

    def test_other_streams_may_repeat_ids(self, log: Log, unique: Stream, stream: Stream) -> None:
        put(log, unique, [1])
        assert put(log, stream, [1]).accepted == put(log, stream, [1]).accepted == 1
        assert put(log, log.create(StreamSpec("more", SCHEMA, unique=True)), [1]).accepted == 1

    def test_the_time_of_a_commit_never_goes_back(self, backend: LogBackend, place: str) -> None:
        """The clock of the machine that writes next may be behind that of the one before."""
        clock = ManualClock()
        with closing(backend.open(place, clock)) as log:
            stream = log.create(StreamSpec("dated", SCHEMA))
            put(log, stream, [1])
            clock.us -= 60_000_000
            put(log, stream, [2])
        clock.us -= 60_000_000
        with closing(backend.open(place, clock)) as log:
            put(log, stream, [3])
            times = [commit.written_us for commit in log.commits(stream, 0)]
        assert times == sorted(times)

    def test_the_known_ids_are_counted_and_dated_also_after_a_restart(self, backend: LogBackend, place: str) -> None:
        clock = ManualClock()
        first_us = clock.us
        with closing(backend.open(place, clock)) as log:
            unique = log.create(StreamSpec("unique", SCHEMA, partitions=3, unique=True))
            for n in range(3):
                put(log, unique, [n, n + 1])
                clock.us += 10_000_000
            assert log.known_ids(unique) == KnownIds(4, first_us)
            assert log.known_ids(log.create(StreamSpec("plain", SCHEMA))) is None
        with closing(backend.open(place, clock)) as log:
            assert log.known_ids(unique) is None, "nothing is loaded yet"
            log.horizon(unique)
            assert log.known_ids(unique) == KnownIds(4, first_us)

    def test_the_horizon_says_how_many_ids_are_remembered(self, log: Log, unique: Stream, stream: Stream) -> None:
        assert log.horizon(unique) >= 1_000_000
        assert log.horizon(stream) == 0

    def test_a_declared_horizon_counts_at_once_and_may_be_another_at_each_start(
        self, backend: LogBackend, place: str
    ) -> None:
        clock = ManualClock()
        first, then = Horizon(ids=20_000), Horizon(age_us=3_600_000_000)
        with closing(backend.open(place, clock)) as log:
            unique = log.create(StreamSpec("unique", SCHEMA, unique=True))
            put(log, unique, range(30_000))
            assert log.horizon(log.create(StreamSpec("unique", SCHEMA, unique=True, horizon=first))) == first.ids
            assert put(log, unique, range(10_000, 30_000)).accepted == 0, "the newest 20,000 are known"
            for start in range(30_000, 200_000, 10_000):
                put(log, unique, range(start, start + 10_000))
            known = log.known_ids(unique)
            assert known is not None
            assert first.ids <= known.ids < 3 * first.ids, "what is beyond is forgotten: memory is bounded"
        clock.us += then.age_us // 2
        with closing(backend.open(place, clock)) as log:
            unique = log.create(StreamSpec("unique", SCHEMA, unique=True, horizon=then))
            assert put(log, unique, [199_999, 1]).accepted == 0, "by the age all are known again: the log has them"
        clock.us += then.age_us
        with closing(backend.open(place, clock)) as log:
            unique = log.create(StreamSpec("unique", SCHEMA, unique=True, horizon=then))
            assert put(log, unique, [199_999]).accepted == 1, "older than the horizon"

    @quick
    @given(
        batches=st.lists(st.lists(st.text("ab\0", max_size=3) | st.none(), max_size=6), min_size=1, max_size=8),
        reopen=st.integers(0, 8),
    )
    def test_ids_are_taken_as_a_set_would(
        self, backend: LogBackend, fresh: Callable[[], str], batches: list[list[str | None]], reopen: int
    ) -> None:
        place = fresh()
        log = backend.open(place)
        unique = log.create(StreamSpec("unique", SCHEMA, unique=True))
        seen: set[str] = set()
        for number, ids in enumerate(batches):
            if number == reopen:
                log.close()
                log = backend.open(place)
            known = []
            for row, text in enumerate(ids):
                if text is not None and text in seen:
                    known.append(row)
                seen |= set() if text is None else {text}
            assert put(log, unique, range(len(ids)), ids=ids).duplicates == tuple(known)
        log.close()

    # Producers

    def test_a_repeated_sequence_is_a_success_and_no_second_event(self, log: Log, stream: Stream) -> None:
        first = self._sent(log, stream, 0, 0)
        put(log, stream, [7])
        again = self._sent(log, stream, 0, 0)
        assert isinstance(first, Appended)
        assert isinstance(again, Appended)
        assert (first.repeated, again.repeated, again.accepted) == (False, True, 0)
        assert again.position.covers(first.position)
        assert len(numbers(log, stream)) == 2

    def test_an_older_sequence_is_repeated_too(self, log: Log, stream: Stream) -> None:
        for sequence in range(3):
            self._sent(log, stream, 0, sequence)
        again = self._sent(log, stream, 0, 1)
        assert isinstance(again, Appended)
        assert again.repeated

    def test_a_gap_names_the_expected_sequence(self, log: Log, stream: Stream) -> None:
        for sequence, expected in ((3, 0), (0, None), (1, None), (3, 2)):
            result = self._sent(log, stream, 0, sequence)
            assert (result.expected if isinstance(result, SequenceGapError) else None) == expected
        assert len(numbers(log, stream)) == 2

    def test_a_new_epoch_starts_at_0_and_fences_the_old_one(self, log: Log, stream: Stream) -> None:
        self._sent(log, stream, 4, 0)
        gap = self._sent(log, stream, 5, 1)
        assert isinstance(gap, SequenceGapError)
        assert gap.expected == 0
        assert isinstance(self._sent(log, stream, 5, 0), Appended)
        assert isinstance(self._sent(log, stream, 4, 1), FencedError)
        assert len(numbers(log, stream)) == 2

    def test_a_refused_producer_holds_up_nobody_else(self, log: Log, stream: Stream) -> None:
        refused = Append(stream, events([1]), producer=Producer("p", 0, 5))
        results = log.append([refused, Append(stream, events([2]))])
        assert isinstance(results[0], SequenceGapError)
        assert isinstance(results[1], Appended)
        assert numbers(log, stream) == [2]

    def test_a_retry_within_the_same_commit_is_repeated(self, log: Log, stream: Stream) -> None:
        sent = Append(stream, events([1]), producer=Producer("p", 0, 0))
        results = log.append([sent, sent, Append(stream, events([2]), producer=Producer("p", 0, 1))])
        assert [r.repeated for r in results if isinstance(r, Appended)] == [False, True, False]
        assert numbers(log, stream) == [1, 2]

    def test_the_ack_of_a_retry_within_the_same_commit_covers_the_original(self, log: Log, stream: Stream) -> None:
        self._sent(log, stream, 0, 0)
        sent = Append(stream, events([1]), producer=Producer("p", 0, 1))
        first, again = log.append([sent, sent])
        assert isinstance(first, Appended)
        assert isinstance(again, Appended)
        assert again.position.covers(first.position)

    def test_sequences_are_counted_per_stream(self, log: Log, stream: Stream, unique: Stream) -> None:
        assert isinstance(self._sent(log, stream, 0, 0), Appended)
        assert isinstance(self._sent(log, unique, 0, 0), Appended)

    def test_producers_survive_a_restart(self, backend: LogBackend, place: str) -> None:
        with closing(backend.open(place)) as log:
            stream = log.create(StreamSpec("numbers", SCHEMA))
            first = self._sent(log, stream, 0, 0)
            assert isinstance(first, Appended)
        with closing(backend.open(place)) as log:
            again = self._sent(log, stream, 0, 0)
            assert isinstance(again, Appended)
            assert again.repeated
            assert again.position.covers(first.position)
            assert isinstance(self._sent(log, stream, 0, 2), SequenceGapError)
            assert isinstance(self._sent(log, stream, 0, 1), Appended)

    def test_a_sequence_whose_events_were_all_duplicates_is_used_up(self, log: Log, unique: Stream) -> None:
        put(log, unique, [0])
        taken = log.append([Append(unique, events([0]), producer=Producer("p", 0, 0))])
        assert [r.duplicates for r in taken if isinstance(r, Appended)] == [(0,)]
        again = self._sent(log, unique, 0, 0)
        assert isinstance(again, Appended)
        assert again.repeated

    @staticmethod
    def _sent(log: Log, stream: Stream, epoch: int, sequence: int) -> Appended | Exception:
        name = epoch * 1000 + sequence
        (result,) = log.append([Append(stream, events([name]), producer=Producer("p", epoch, sequence))])
        return result

    # Memory

    def test_what_is_remembered_is_there_for_all_and_after_a_restart(
        self, backend: LogBackend, place: str, reader: LogReader
    ) -> None:
        with closing(backend.open(place)) as log:
            log.append([], {"a": {"x": [1, None, "é"]}, "b": 2, "c": 3})
            assert dict(reader.memory()) == dict(log.memory()) == {"a": {"x": [1, None, "é"]}, "b": 2, "c": 3}
            log.append([], {"b": None, "c": 4})
            assert dict(reader.memory()) == dict(log.memory()) == {"a": {"x": [1, None, "é"]}, "c": 4}
        with closing(backend.open(place)) as log:
            assert dict(log.memory()) == {"a": {"x": [1, None, "é"]}, "c": 4}

    def test_a_memory_that_a_reader_was_given_does_not_change(self, log: Log, reader: LogReader) -> None:
        log.append([], {"a": 1})
        before = reader.memory()
        log.append([], {"a": 2})
        assert (before["a"], reader.memory()["a"]) == (1, 2)

    def test_what_follows_is_taken_only_with_what_it_follows(self, log: Log, stream: Stream, unique: Stream) -> None:
        self._sent(log, stream, 0, 0)
        for sequence, taken in ((0, 0), (9, 0), (1, 1)):
            first = Append(stream, events([1]), producer=Producer("p", 0, sequence))
            second = Append(unique, events([sequence]), follows=True, sets={"follower": sequence})
            _, follower = log.append([first, second])
            assert isinstance(follower, Appended)
            assert (follower.repeated, follower.accepted) == (not taken, taken)
        assert log.bounds(unique).ends == (1,)
        assert log.memory()["follower"] == 1

    def test_a_failed_commit_remembers_nothing(self, log: Log, stream: Stream, reader: LogReader) -> None:
        with pytest.raises(ValueError, match="columns"):
            log.append([Append(stream, events([1]).select(["n"]))], {"told": True})
        assert "told" not in log.memory()
        assert "told" not in reader.memory()

    def test_memory_survives_compaction(self, backend: LogBackend, place: str, reader: LogReader) -> None:
        with closing(backend.open(place)) as log:
            for n in range(50):
                log.append([], {"n": n, f"odd/{n}": n if n % 2 else None, "gone": n if n < 40 else None})
                if n == 20:
                    assert reader.memory()["n"] == 20
            expected = {"n": 49, **{f"odd/{n}": n for n in range(1, 50, 2)}}
            (control,) = [s for s in log.streams() if s.name.startswith("_")]
            assert log.compact(control, 45) > 0
            assert dict(reader.memory()) == dict(log.memory()) == expected
        with closing(backend.open(place)) as log, closing(backend.reader(place)) as newcomer:
            assert dict(log.memory()) == dict(newcomer.memory()) == expected
