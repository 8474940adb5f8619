"""Tests of what a log promises about what an append requires, sets and counts in its commit."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

import pytest

from penstock.errors import ConditionError
from penstock.log.log import (
    Append,
    Appended,
    Condition,
    Count,
    EndsAt,
    KeyIs,
    Log,
    LogReader,
    OutcomeKey,
    Producer,
    RowIs,
    Share,
    Stream,
    StreamSpec,
)
from penstock.testing.contracts.log_backends import LogBackend
from penstock.testing.contracts.log_events import (
    CHANGELOG,
    SCHEMA,
    LogFixtures,
    changes,
    content,
    events,
    everything,
    one,
    put,
)


def keys(sets: dict[str, Any | None], *requires: Condition) -> Append:
    return Append(sets=sets, requires=requires)


def refused(results: Sequence[Appended | Exception]) -> list[bool]:
    return [isinstance(result, ConditionError) for result in results]


class Conditions(LogFixtures):
    """Conditions, keys, outcomes and counts."""

    # Keys

    def test_a_key_is_set_only_while_it_has_the_value_that_is_required(self, log: Log, reader: LogReader) -> None:
        results = log.append([keys({"a": 1}, KeyIs("a", None))])
        results += log.append([keys({"a": 2}, KeyIs("a", None))])
        results += log.append([keys({"a": {"x": 3}}, KeyIs("a", 1))])
        results += log.append([keys({"a": None}, KeyIs("a", {"x": 3}))])
        assert refused(results) == [False, True, False, False]
        assert dict(log.memory()) == dict(reader.memory()) == {}

    def test_a_condition_sees_what_earlier_appends_of_its_commit_have_changed(self, log: Log, stream: Stream) -> None:
        log.append([keys({"gone": 1})])
        results = log.append(
            [
                keys({"a": 1, "gone": None}, KeyIs("a", None)),
                keys({"a": 2}, KeyIs("a", None)),
                Append(stream, events([1]), requires=(KeyIs("a", 1), KeyIs("gone", None)), sets={"a": 3}),
                Append(stream, events([2]), requires=(KeyIs("a", 1),), sets={"a": 4}),
                keys({"b": 1}, KeyIs("a", 3)),
            ]
        )
        assert refused(results) == [False, True, False, True, False]
        assert everything(log, stream) == [1]
        assert dict(log.memory()) == {"a": 3, "b": 1}

    def test_an_append_whose_condition_fails_leaves_nothing_and_holds_up_nothing(
        self, log: Log, stream: Stream, unique: Stream
    ) -> None:
        bad = Append(
            unique,
            events([1]),
            producer=Producer("p", 0, 0),
            requires=(KeyIs("missing", 1),),
            sets={"set": 1},
            outcomes=(OutcomeKey("outcome", {}),),
            counts=(Count("count", "n", 1), Count("count", "again", 1, repeated=True)),
        )
        results = log.append([Append(stream, events([1])), bad, Append(stream, events([2]), follows=True)])
        assert refused(results) == [False, True, False]
        follower = results[2]
        assert isinstance(follower, Appended)
        assert follower.repeated
        assert (everything(log, stream), everything(log, unique)) == ([1], [])
        assert dict(log.memory()) == {}
        again = one(log.append([Append(unique, events([1]), producer=Producer("p", 0, 0))]))
        assert (again.accepted, again.repeated) == (1, False), "neither its id nor its number was used up"

    def test_a_condition_holds_all_or_nothing(self, log: Log) -> None:
        log.append([keys({"a": 1, "b": 2})])
        assert refused(log.append([keys({"a": 9}, KeyIs("a", 1), KeyIs("b", 1))])) == [True]
        assert dict(log.memory()) == {"a": 1, "b": 2}

    def test_a_repeated_number_is_no_failed_condition(self, log: Log, stream: Stream) -> None:
        append = Append(stream, events([1]), producer=Producer("p", 0, 0), requires=(KeyIs("a", None),), sets={"a": 1})
        first, again = one(log.append([append])), one(log.append([append]))
        assert (first.repeated, again.repeated, again.position) == (False, True, first.position)
        assert log.memory()["a"] == 1

    def test_an_append_of_keys_alone_is_a_commit_of_the_control_stream(self, log: Log, reader: LogReader) -> None:
        first, second = one(log.append([keys({"a": 1})])), one(log.append([keys({"a": 2})]))
        control = reader.find(first.position.name)
        assert control is not None
        assert reader.bounds(control).ends == second.position.offsets
        assert second.position.covers(first.position)
        assert reader.memory() == {"a": 2}

    # The end of a stream

    def test_an_append_may_require_that_nobody_has_appended_before_it(self, log: Log, stream: Stream) -> None:
        at_0 = (EndsAt(stream, 0),)
        results = log.append([Append(stream, events([n]), requires=at_0) for n in (1, 2)])
        results += log.append([Append(stream, events([3]), requires=at_0)])
        results += log.append([Append(stream, events([4]), requires=(EndsAt(stream, 1),))])
        assert refused(results) == [False, True, True, False]
        assert everything(log, stream) == [1, 4]

    # Rows

    @staticmethod
    def _set(stream: Stream, word: str, count: int | None, **wanted: Any) -> Append:
        return Append(stream, changes([(word, count)]), requires=(RowIs(stream, (word,), **wanted),))

    def test_a_row_is_written_only_while_it_is_what_is_required(self, log: Log, changelog: Stream) -> None:
        steps: list[tuple[int | None, dict[str, Any], bool]] = [
            (1, {}, False),
            (1, {"exists": False}, True),
            (2, {"exists": False}, False),
            (2, {"version": 0}, True),
            (3, {"version": 0}, False),
            (3, {"values": {"count": 1}}, False),
            (3, {"values": {"count": 2}}, True),
            (None, {"version": 2, "values": {"count": 3}}, True),
            (5, {}, False),
            (5, {"exists": False}, True),
        ]
        for count, wanted, taken in steps:
            assert refused(log.append([self._set(changelog, "a", count, **wanted)])) == [not taken], (count, wanted)
        assert content(log.read(changelog, 0, 0))["a"] == 5

    def test_a_row_is_judged_behind_the_earlier_appends_of_its_commit(self, log: Log, changelog: Stream) -> None:
        log.append([Append(changelog, changes([("a", 1)]))])
        results = log.append(
            [
                self._set(changelog, "a", 2, version=0),
                self._set(changelog, "a", 3, version=0),
                self._set(changelog, "a", 4, values={"count": 2}),
                self._set(changelog, "a", None, exists=True),
                self._set(changelog, "a", 6, exists=True),
                self._set(changelog, "b", 7, exists=False),
            ]
        )
        assert refused(results) == [False, True, False, False, True, False]
        assert content(log.read(changelog, 0, 0)) == {"b": 7}
        assert refused(log.append([self._set(changelog, "b", 8, version=1)])) == [False]

    def test_a_duplicate_changes_no_row(self, log: Log) -> None:
        table = log.create(StreamSpec("table", SCHEMA, partitions=3, unique=True, compact_by=("n",)))
        put(log, table, [1], ids=["x"])
        results = log.append(
            [
                Append(table, events([2], ids=["x"])),
                Append(table, events([2]), requires=(RowIs(table, (2,), exists=False),)),
                Append(table, events([2], ids=["y"]), requires=(RowIs(table, (2,), exists=False),)),
            ]
        )
        assert refused(results) == [False, False, True]
        assert sorted(everything(log, table)) == [1, 2]

    def test_rows_are_known_after_a_restart_a_compaction_and_a_trim(self, backend: LogBackend, place: str) -> None:
        with closing(backend.open(place)) as log:
            changelog = log.create(CHANGELOG)
            for n, word in enumerate("abcab"):
                log.append([Append(changelog, changes([(word, n)]))])
            log.append([Append(changelog, changes([("c", None)]))])
        with closing(backend.open(place)) as log:
            assert refused(log.append([self._set(changelog, "c", 1)])) == [True]
            log.compact(changelog, 5)
            assert refused(log.append([self._set(changelog, "a", 9, version=3, values={"count": 3})])) == [False]
            assert refused(log.append([self._set(changelog, "b", 9, version=4, values={"count": 5})])) == [True]
            log.trim(changelog, 6)
            assert refused(log.append([self._set(changelog, "b", 9)])) == [True], "it was trimmed"
            assert refused(log.append([self._set(changelog, "a", 9, version=6)])) == [False]

    def test_a_commit_that_fails_changes_no_row(self, log: Log, changelog: Stream, stream: Stream) -> None:
        log.append([self._set(changelog, "a", 1, exists=False)])
        with pytest.raises(ValueError, match="columns"):
            log.append([self._set(changelog, "a", 2, version=0), Append(stream, events([1]).select(["n"]))])
        assert refused(log.append([self._set(changelog, "a", 3, version=0, values={"count": 1})])) == [False]

    def test_an_append_may_require_a_row_of_another_stream(self, log: Log, changelog: Stream, stream: Stream) -> None:
        wanted = (RowIs(changelog, ("a",), values={"count": 1}),)
        results = log.append([Append(changelog, changes([("a", 1)])), Append(stream, events([1]), requires=wanted)])
        results += log.append([Append(changelog, changes([("a", 2)])), Append(stream, events([2]), requires=wanted)])
        assert refused(results) == [False, False, False, True]
        assert everything(log, stream) == [1]

    # Outcomes

    def test_a_key_gets_what_became_of_its_append(self, log: Log, reader: LogReader, unique: Stream) -> None:
        put(log, unique, [1, 4])
        outcomes = (
            OutcomeKey("all", {"at": 7, "said": ["x"]}),
            OutcomeKey("first", {}, range(2)),
            OutcomeKey("last", {}, (2, 3)),
        )
        result = one(log.append([Append(unique, events([1, 2, 3, 4, 5]), outcomes=outcomes)]))
        ack = result.position.token()
        assert dict(reader.memory()) == {
            "all": {"at": 7, "said": ["x"], "accepted": 3, "duplicates": 2, "ack": ack},
            "first": {"accepted": 1, "duplicates": 1, "ack": ack},
            "last": {"accepted": 1, "duplicates": 1, "ack": ack},
        }
        assert result.duplicates == (0, 3)

    def test_a_repeated_append_is_told_so_and_a_refused_one_leaves_no_outcome(self, log: Log, stream: Stream) -> None:
        first = one(log.append([Append(stream, events([0]), producer=Producer("p", 0, 0))]))
        for sequence in (0, 9):
            told = (OutcomeKey(f"told/{sequence}", {}),)
            log.append([Append(stream, events([1]), producer=Producer("p", 0, sequence), outcomes=told)])
        told_keys = {key: value for key, value in log.memory().items() if key.startswith("told/")}
        outcome = {"accepted": 0, "duplicates": 1, "repeated": True, "ack": first.position.token()}
        assert told_keys == {"told/0": outcome}

    def test_an_outcome_is_there_for_later_appends_of_its_commit(self, log: Log, stream: Stream) -> None:
        once = Append(stream, events([1]), requires=(KeyIs("k", None),), outcomes=(OutcomeKey("k", {}),))
        assert refused(log.append([once, once])) == [False, True]
        assert refused(log.append([once])) == [True]
        assert everything(log, stream) == [1]

    # Counts

    def test_counts_add_up_within_a_commit_and_over_commits(self, log: Log, reader: LogReader, unique: Stream) -> None:
        counts = (
            Count("count/u", "duplicates", Share("duplicates")),
            Count("count/u", "duplicates", 10),
            Count("count/u", "odd", Share("accepted", (0, 2))),
            Count("count/u", "none", 0),
        )
        log.append([Append(sets={"count/u": {"odd": 100}})])
        log.append([Append(unique, events([1, 2, 3]), counts=counts), Append(unique, events([1, 4, 5]), counts=counts)])
        assert dict(reader.memory()) == {"count/u": {"duplicates": 21, "odd": 103}}
        log.append([Append(unique, events([5, 4, 6]), counts=counts)])
        assert dict(log.memory()) == {"count/u": {"duplicates": 33, "odd": 104}}

    def test_a_repetition_is_counted_apart(self, log: Log, stream: Stream) -> None:
        counts = (Count("n", "taken", 1), Count("n", "repeated", 3, repeated=True))
        append = Append(stream, events([1]), producer=Producer("p", 0, 0), counts=counts)
        log.append([append, append])
        log.append([append])
        assert log.memory()["n"] == {"taken": 1, "repeated": 6}

    def test_a_condition_sees_what_was_counted_before_it(self, log: Log, unique: Stream) -> None:
        put(log, unique, [1])
        counting = Append(unique, events([1, 2]), counts=(Count("n", "known", Share("duplicates")),))
        results = log.append([counting, keys({"a": 1}, KeyIs("n", {"known": 1})), keys({"a": 2}, KeyIs("n", None))])
        assert refused(results) == [False, False, True]
        assert log.memory()["a"] == 1

    def test_a_failed_commit_counts_nothing(self, log: Log, stream: Stream) -> None:
        count = (Count("n", "taken", 1),)
        with pytest.raises(ValueError, match="columns"):
            log.append([Append(stream, events([1]), counts=count), Append(stream, events([1]).select(["n"]))])
        assert dict(log.memory()) == {}
        log.append([Append(stream, events([1]), counts=count)])
        assert log.memory()["n"] == {"taken": 1}
