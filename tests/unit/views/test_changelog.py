"""A build is loaded as it stands in the log, also after compaction, and resumable where that is honest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_flows import FakeFlows, small_app, topic

from penstock.config import Limits
from penstock.errors import OverBudgetError
from penstock.log.log import Stream
from penstock.views.changelog import Changelog
from tests.memory_folder import memory_folder


@pytest.fixture
def flows(tmp_path: Path) -> Iterator[FakeFlows]:
    made = FakeFlows(memory_folder(tmp_path).flows_log)
    yield made
    made.close()


def _changelog(flows: FakeFlows, stream: Stream, limits: Limits | None = None) -> Changelog:
    definition = small_app().declared().view("topics")
    assert definition is not None
    return Changelog(definition, stream, flows.log, limits or Limits())


def test_all_commits_are_loaded_with_their_history(flows: FakeFlows) -> None:
    stream = flows.build()
    flows.commit(stream, [topic("a", 1), topic("b", 1)])
    flows.commit(stream)
    flows.commit(stream, [topic("a", 2)], [{"topic": "b"}], end={"rsvps": ["e", [3]]})
    content = _changelog(flows, stream).load(flows.log.memory())
    assert list(content.rows.values()) == [("a", 2, "g")]
    assert (content.offset, content.history.start, len(content.history)) == (3, 0, 3)
    assert content.proof == "exact"
    assert content.meta is not None
    assert content.meta.frontier["rsvps"].offsets == (3,)


def test_an_empty_build_is_loaded_at_position_0(flows: FakeFlows) -> None:
    content = _changelog(flows, flows.build()).load(flows.log.memory())
    assert (content.offset, content.rows) == (0, {})


def test_after_compaction_nobody_resumes_from_below(flows: FakeFlows) -> None:
    stream = flows.build()
    for i in range(10):
        flows.commit(stream, [topic(f"t{i % 3}", i)], [{"topic": f"t{(i + 1) % 3}"}])
    flows.log.compact(stream, 6)
    content = _changelog(flows, stream).load(flows.log.memory())
    assert sorted(content.rows.values()) == [("t0", 9, "g"), ("t2", 8, "g")]
    assert content.offset == 10
    assert content.history.start == 6
    assert content.history.after(3) is None
    assert len(content.history.after(6) or ()) == 4


def test_further_commits_are_decoded_in_order(flows: FakeFlows) -> None:
    stream = flows.build()
    flows.commit(stream, [topic("a", 1)])
    changelog = _changelog(flows, stream)
    content = changelog.load({})
    for i in range(100):
        flows.commit(stream, [topic("a", i)] if i % 2 else [])
    first = changelog.more(content.offset)
    rest = changelog.more(first[-1].end)
    assert [decoded.end for decoded in first + rest] == list(range(2, 102))
    assert [bool(decoded.ops) for decoded in first] == [bool(i % 2) for i in range(len(first))]
    assert changelog.more(rest[-1].end) == []


def test_what_was_decoded_and_not_applied_comes_again(flows: FakeFlows) -> None:
    stream = flows.build()
    changelog = _changelog(flows, stream)
    offset = changelog.load({}).offset
    for i in range(3):
        flows.commit(stream, [topic("a", i)])
    assert changelog.more(offset) == changelog.more(offset)
    applied = changelog.more(offset)[0].end
    assert [decoded.end for decoded in changelog.more(applied)] == [2, 3]
    assert changelog.more(3) == []


def test_a_build_above_the_budget_is_refused_while_loading(flows: FakeFlows) -> None:
    stream = flows.build()
    flows.commit(stream, [topic(f"t{i}", i) for i in range(1_000)])
    with pytest.raises(OverBudgetError):
        _changelog(flows, stream, Limits(view_bytes=50_000)).load({})


def test_columns_come_from_the_stream_when_a_newer_build_is_under_way(flows: FakeFlows) -> None:
    stream = flows.build()
    flows.build(live=False)
    content = _changelog(flows, stream).load(flows.log.memory())
    assert [(c.name, c.type) for c in content.columns] == [
        ("topic", "string"),
        ("rsvps", "bigint"),
        ("group", "string"),
    ]
    assert content.proof is None
