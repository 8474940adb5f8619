"""What builds have left behind goes when nobody needs it, and not before; on a real log and real folders."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from penstock.app import App
from penstock.change import Column
from penstock.declaration import Application
from penstock.errors import StaleTermError
from penstock.event import Event
from penstock.flows.build_cleanup import KEPT_US, BuildCleanup
from penstock.log.builds import BatchMeta, Build
from penstock.log.folder_log import DEAD, LATE, FolderLog
from penstock.log.group_commit import GroupCommit
from penstock.log.log import Append, Stream, StreamSpec
from penstock.log.opening import open_log
from penstock.schema import stored_schema
from tests.memory_folder import memory_folder

SCHEMA = stored_schema([pa.field("topic", pa.string())])
HOUR_US = KEPT_US // 24


class Rsvp(Event):
    topic: str


def app(views: Sequence[str] = ("topics",), flows: Sequence[str] = ("yes",)) -> Application:
    made = App("small")
    made.stream("rsvps", Rsvp)
    for name in flows:

        @made.flow(name=name)
        def flow(rsvps: Any) -> Any: ...

    for name in views:

        @made.view(name=name, key="topic")
        def view(rsvps: Any) -> Any: ...

    return made.declared()


class World:
    """A data folder with builds in it, as flows leave it."""

    def __init__(self, root: Path) -> None:
        self.folder = memory_folder(root)
        self.log = open_log(self.folder.flows_log, app="small")
        self.now_us = 1_800_000_000_000_000
        for name, schema in (("late", LATE), ("dead", DEAD)):
            self.log.create(StreamSpec(name, schema, unique=True))

    def build(self, name: str, epoch: str, *, live: bool = True, inputs: dict[str, str] | None = None) -> Stream:
        """A new build with a commit, a checkpoint and a skip list."""
        columns = (Column("topic", "string"),)
        made = Build(
            epoch=epoch, fingerprint="f", kind="view", inputs=inputs or {}, columns=columns, proof="exact", started_us=0
        )
        self.log.append([], {f"build/{name}": msgspec.to_builtins(made), f"skip/{name}/{epoch}": [["rsvps", 0, 1]]})
        stream = self.log.create(StreamSpec(name, SCHEMA, epoch=epoch))
        end = {i: [e, [1]] for i, e in (inputs or {"rsvps": "door"}).items()}
        meta = msgspec.to_builtins(BatchMeta(batch=0, start={}, end=end))
        rows = pa.RecordBatch.from_pylist([{"topic": "a"}, {"topic": "b"}], schema=SCHEMA)
        self.log.append([Append(stream, rows, meta=meta)])
        self.checkpoint(name, epoch)
        if live:
            self.log.append([], {f"live/{name}": epoch, f"flow/{name}": {"state": "running"}})
        return stream

    def checkpoint(self, name: str, epoch: str) -> Path:
        path = self.folder.checkpoints / name / epoch
        for inside in ("offsets/0", "state/0/1/deep.zip"):
            (path / inside).parent.mkdir(parents=True, exist_ok=True)
            (path / inside).write_text("x")
        return path

    def feed(self, name: str, age_us: int) -> None:
        path = self.folder.run / "feeds" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
        at = (self.now_us - age_us) / 1e6
        os.utime(path, (at, at))

    def clean(self, application: Application | None = None, *, later_us: int = 0, **options: Any) -> list[str]:
        self.now_us += later_us
        leftovers = BuildCleanup(self.log, self.folder, application or app(), self.now_us, **options)
        for _ in leftovers.cleaning():
            pass
        return leftovers.removed

    @property
    def streams(self) -> set[tuple[str, str]]:
        return {(s.name, s.epoch) for s in self.log.streams() if s.name not in ("_control", "late", "dead")}

    @property
    def checkpoints(self) -> set[str]:
        return {str(p.relative_to(self.folder.checkpoints)) for p in self.folder.checkpoints.glob("*/*")}

    def keys(self, name: str) -> set[str]:
        return {key for key in self.log.memory() if name in key.split("/")}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.log.close()


def test_what_is_served_and_what_is_being_built_stays(world: World) -> None:
    world.build("topics", "old")
    world.build("topics", "new", live=False)
    assert world.clean(later_us=10 * KEPT_US) == []
    assert world.streams == {("topics", "old"), ("topics", "new")}
    assert world.checkpoints == {"topics/old", "topics/new"}
    assert world.clean(later_us=10 * KEPT_US) == []


def test_a_build_that_was_replaced_goes_with_its_checkpoint_and_skip_list(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.build("topics", "old")
    world.build("topics", "between", live=False)
    world.build("topics", "new")
    with caplog.at_level(logging.INFO):
        assert len(world.clean()) == 2
    assert "removed the build old of 'topics', which is no longer served: 2 rows" in caplog.messages
    assert world.streams == {("topics", "new")}
    assert world.checkpoints == {"topics/new"}
    assert {key for key in world.keys("topics") if key.startswith("skip/")} == {"skip/topics/new"}
    assert world.clean() == []


def test_what_a_served_build_has_read_stays_until_it_is_replaced(world: World) -> None:
    world.build("yes", "yes1")
    world.build("topics", "topics1", inputs={"yes": "yes1"})
    world.build("yes", "yes2")
    world.build("topics", "topics2", live=False, inputs={"yes": "yes2"})
    assert world.clean() == []
    assert ("yes", "yes1") in world.streams
    world.log.append([], {"live/topics": "topics2"})
    assert len(world.clean()) == 2
    assert world.streams == {("yes", "yes2"), ("topics", "topics2")}


def test_an_input_that_a_new_build_will_read_stays_before_its_first_batch(world: World) -> None:
    world.build("yes", "yes1")
    made = Build(
        epoch="t", fingerprint="", kind="view", inputs={"yes": "yes1"}, columns=(), proof="exact", started_us=0
    )
    world.log.append([], {"build/topics": msgspec.to_builtins(made), "build/yes": None, "live/yes": None})
    assert world.clean() == []
    assert ("yes", "yes1") in world.streams


def test_a_name_that_is_no_longer_declared_stays_for_a_day(world: World) -> None:
    world.build("topics", "t1")
    world.build("renamed", "r1")
    world.log.append([], {"count/rsvps/renamed": {"late": 3}, "rebuilt/renamed": 7})
    assert world.clean() == []
    assert world.clean(later_us=23 * HOUR_US) == []
    assert ("renamed", "r1") in world.streams
    assert world.clean(later_us=HOUR_US) == ["'renamed', which the app no longer declares: 2 rows"]
    assert (world.streams, world.checkpoints) == ({("topics", "t1")}, {"topics/t1"})
    assert world.keys("renamed") == {"count/rsvps/renamed", "rebuilt/renamed"}
    assert not (world.folder.checkpoints / "renamed").exists()


def test_a_name_that_was_changed_back_is_as_it_was_and_its_day_begins_anew(world: World) -> None:
    world.build("topics", "t1")
    world.clean(app(views=["other"]))
    assert world.clean(app(), later_us=23 * HOUR_US) == []
    assert world.keys("topics") == {"build/topics", "live/topics", "flow/topics", "skip/topics/t1"}
    assert world.clean(app(views=["other"]), later_us=HOUR_US) == []
    assert world.streams == {("topics", "t1")}


def test_a_checkpoint_that_says_its_build_is_lost_stays_while_that_build_is_the_newest(world: World) -> None:
    world.build("topics", "t1")
    checkpoint = world.folder.checkpoints / "topics"
    (checkpoint / "t1").rename(checkpoint / "t1.lost")
    world.clean()
    assert world.clean(later_us=2 * KEPT_US) == []
    world.build("topics", "t2")
    world.clean()
    assert world.checkpoints == {"topics/t1.lost", "topics/t2"}
    assert world.clean(later_us=KEPT_US) == ["the checkpoint that was set aside as topics/t1.lost"]
    assert world.checkpoints == {"topics/t2"}
    assert not [key for key in world.log.memory() if key.startswith("leftover/")]


def test_folders_and_keys_without_a_stream_go_too(world: World) -> None:
    world.build("topics", "t1")
    world.checkpoint("topics", "gone")
    world.checkpoint("nobody", "gone")
    world.log.append([], {"skip/topics/gone": [], "flow/other": {"state": "stopped"}})
    world.clean()
    assert world.checkpoints == {"topics/t1", "nobody/gone"}
    world.clean(later_us=KEPT_US)
    assert world.checkpoints == {"topics/t1"}
    assert world.keys("gone") | world.keys("other") | world.keys("nobody") == set()


def test_old_feeds_go_at_the_start_only(world: World) -> None:
    world.feed("old.feed", 2 * KEPT_US)
    world.feed("half.4711", 2 * KEPT_US)
    world.feed("young.feed", HOUR_US)
    assert world.clean(starting=False) == []
    assert world.clean() == ["2 feeds that were not used for a day"]
    assert [path.name for path in (world.folder.run / "feeds").iterdir()] == ["young.feed"]


def test_ledgers_and_the_doors_streams_are_not_touched(world: World) -> None:
    door = open_log(world.folder.edge_log, app="small")
    for name in ("rsvps", "undeclared", "dead"):
        stream = door.create(StreamSpec(name, SCHEMA))
        door.append([Append(stream, pa.RecordBatch.from_pylist([{"topic": "a"}], schema=SCHEMA))])
    letter = pa.RecordBatch.from_pylist([{"_id": "x"}], schema=DEAD)
    world.log.append([Append(stream, letter) for stream in [world.log.find("dead")] if stream])
    world.clean()
    assert world.clean(later_us=10 * KEPT_US) == []
    with closing(FolderLog(world.folder)) as both:
        assert sum(both.bounds("dead").ends) == 2
        assert sum(both.bounds("undeclared").ends) == 1
    door.close()


def test_a_crash_at_any_step_leaves_nothing_that_would_be_continued_and_the_next_round_ends_it(tmp_path: Path) -> None:
    steps = 0
    while True:
        root = tmp_path / str(steps)
        root.mkdir()
        world = World(root)
        world.build("topics", "old")
        world.build("topics", "new")
        world.build("renamed", "r1")
        world.clean(app(views=["topics", "renamed"]))
        world.build("topics", "newest")
        world.clean(starting=False)
        world.now_us += KEPT_US
        cleaning = BuildCleanup(world.log, world.folder, app(), world.now_us).cleaning()
        ended = sum(1 for _ in zip(range(steps), cleaning, strict=False)) < steps
        cleaning.close()  # type: ignore[attr-defined]
        world.log.close()
        world.log = open_log(world.folder.flows_log, app="small")
        if "build/renamed" in world.log.memory() or "live/renamed" in world.log.memory():
            assert {("renamed", "r1")} <= world.streams
            assert "renamed/r1" in world.checkpoints
        list(world.log.tidying())
        world.clean()
        assert world.streams == {("topics", "newest")}
        assert world.checkpoints == {"topics/newest"}
        assert world.keys("renamed") | world.keys("old") == set()
        world.log.close()
        if ended:
            break
        steps += 1
    assert steps > 2


def test_a_writer_that_was_replaced_removes_nothing(world: World) -> None:
    world.build("topics", "old")
    world.checkpoint("topics", "older")
    newer = open_log(world.folder.flows_log, app="small")
    with pytest.raises(StaleTermError):
        world.clean()
    assert world.checkpoints == {"topics/old", "topics/older"}
    newer.close()


def test_it_goes_in_slices_between_commits(world: World) -> None:
    world.build("topics", "old")
    world.build("topics", "new")
    for number in range(100):
        (world.folder.checkpoints / "topics" / "old" / f"{number}.delta").touch()
    group = GroupCommit(world.log)
    leftovers = BuildCleanup(world.log, world.folder, app(), world.now_us)
    assert group.sliced(leftovers.cleaning()).result(60) == 2
    group.close()
    assert world.streams == {("topics", "new")}
    assert world.checkpoints == {"topics/new"}
