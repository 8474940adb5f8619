"""A composed frontier never claims too much, and everything that was absorbed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_flows import FakeFlows, Rsvp, small_app

from penstock.app import App
from penstock.log.builds import BatchMeta
from penstock.views.frontier import FrontierComposer
from tests.memory_folder import memory_folder


@pytest.fixture
def flows(tmp_path: Path) -> Iterator[FakeFlows]:
    made = FakeFlows(memory_folder(tmp_path).flows_log)
    yield made
    made.close()


def _meta(**end: Any) -> BatchMeta:
    return BatchMeta(batch=0, start={}, end=end)


def _offsets(composer: FrontierComposer, meta: BatchMeta | None) -> dict[str, tuple[int, ...]]:
    return {name: position.offsets for name, position in composer.compose("view", meta).items()}


def test_direct_inputs_are_the_frontier(flows: FakeFlows) -> None:
    composer = FrontierComposer(small_app().declared(), flows.log)
    assert _offsets(composer, _meta(rsvps=["e", [3, 4]])) == {"rsvps": (3, 4)}
    assert _offsets(composer, None) == {}


@pytest.mark.parametrize("backwards", [False, True])
def test_the_newest_commit_within_what_was_read_counts_wherever_the_search_starts(
    flows: FakeFlows, backwards: bool
) -> None:
    composer = FrontierComposer(small_app().declared(), flows.log)
    yes = flows.flow("yes")
    count, wanted = 0, {}
    for i in range(200):
        count += i % 3
        flows.emit(yes, ["x"] * (i % 3), {"rsvps": ["e", [i + 1]]})
        wanted[count] = i + 1
    for read in sorted(wanted, reverse=backwards):
        assert _offsets(composer, _meta(yes=[yes.epoch, [read]])) == {"rsvps": (wanted[read],)}


def test_an_unknown_epoch_or_a_stream_without_commits_claims_nothing(flows: FakeFlows) -> None:
    composer = FrontierComposer(small_app().declared(), flows.log)
    yes = flows.flow("yes")
    assert _offsets(composer, _meta(yes=[yes.epoch, [0]])) == {}
    flows.emit(yes, ["x"], {"rsvps": ["e", [1]]})
    assert _offsets(composer, _meta(yes=["another", [1]])) == {}
    assert _offsets(composer, _meta(yes=[yes.epoch, [0]])) == {}
    assert _offsets(composer, _meta(yes=[yes.epoch, [1]])) == {"rsvps": (1,)}


def _diamond() -> App:
    """s -> left, s -> right -> further; v reads left, further and s."""
    app = App("small")
    app.stream("s", Rsvp)

    @app.flow
    def left(s: Any) -> Any: ...

    @app.flow
    def right(s: Any) -> Any: ...

    @app.flow
    def further(right: Any) -> Any: ...

    @app.view(key="topic")
    def v(left: Any, further: Any, s: Any) -> Any: ...

    return app


def test_of_several_paths_the_slowest_counts(flows: FakeFlows) -> None:
    composer = FrontierComposer(_diamond().declared(), flows.log)
    left, right, further = flows.flow("left"), flows.flow("right"), flows.flow("further")
    flows.emit(left, ["a"], {"s": ["e", [9]]})
    flows.emit(right, ["a"], {"s": ["e", [5]]})
    read = {"left": [left.epoch, [1]], "further": [further.epoch, [1]], "s": ["e", [8]]}
    assert _offsets(composer, _meta(**read)) == {}, "one path has nothing to show yet"
    flows.emit(further, ["a"], {"right": [right.epoch, [1]]})
    assert _offsets(composer, _meta(**read)) == {"s": (5,)}
    flows.emit(right, [], {"s": ["e", [7]]})
    assert _offsets(composer, _meta(**read)) == {"s": (7,)}, "left out by the first of two flows"
    assert _offsets(composer, _meta(**read | {"s": ["other", [8]]})) == {}, "epochs that differ cannot be compared"
