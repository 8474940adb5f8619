"""What the processes of a folder say of themselves is what `status` shows, as long as they live."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from penstock.config import Folder
from penstock.run.announcement import Presence, WritingEdge, announce, processes

PLACE = {"scheme": "http", "host": "127.0.0.1", "port": 8081}


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    made = Folder(tmp_path)
    made.run.mkdir()
    return made


def test_children_are_as_the_supervisor_says_with_the_parts_that_they_do_without(folder: Folder) -> None:
    assert processes(folder) == {}
    child = {"state": "running", "pid": 1, "restarts": 0}
    supervised = {"pid": 7, "processes": {"edge": child, "flows": child | {"pid": 2}}}
    (folder.run / "supervisor.json").write_text(json.dumps(supervised))
    (folder.run / "edge.json").write_text(json.dumps({"pid": 1, "plain": ["short_way"]}))
    (folder.run / "flows.json").write_text(json.dumps({"pid": 3, "plain": ["of the one before"]}))
    assert processes(folder) == {"edge": child | {"plain": ["short_way"]}, "flows": child | {"pid": 2}}


def test_reading_edges_are_there_as_long_as_they_live(folder: Folder) -> None:
    with closing(Presence(folder, PLACE)), closing(Presence(folder, PLACE | {"host": "127.0.0.2"})):
        first, second = sorted(processes(folder).values(), key=lambda edge: edge["host"])
        assert (first["host"], second["host"]) == ("127.0.0.1", "127.0.0.2")
        assert (first["state"], first["port"]) == ("running", 8081)
    assert processes(folder) == {}
    (folder.run / "edge-8081.json").write_text(json.dumps(first))  # of one that was killed
    assert processes(folder) == {}
    with closing(Presence(folder, PLACE)):
        assert list(processes(folder)) == ["edge-8081"]


def test_the_address_of_the_writing_edge_is_one_that_can_be_asked(folder: Folder) -> None:
    told = WritingEdge(folder).refusal
    assert "no edge that writes" in str(told().detail)
    announce(folder, "edge", PLACE | {"host": "::1"})
    assert told("shop.example").hint == "ask http://[::1]:8081"
    announce(folder, "edge", PLACE | {"host": "0.0.0.0", "scheme": "https"})
    assert told("shop.example").hint == "ask https://shop.example:8081"
