"""A log is opened by its place, which is text."""

from __future__ import annotations

import pickle
from contextlib import closing
from pathlib import Path

import pytest

from penstock.config import Folder, sqlite_place
from penstock.errors import FolderMismatchError
from penstock.log.log import StreamSpec
from penstock.log.logs.memory import temporary_place
from penstock.log.logs.sqlite import path_of
from penstock.log.opening import check_place, open_log, open_reader
from penstock.testing.contracts.log_events import SCHEMA, everything, put


def test_what_is_no_place_of_a_log_is_told() -> None:
    for place in ("/data/edge.db", "file:///data/edge.db", ""):
        with pytest.raises(ValueError, match="begins with one of sqlite, memory"):
            open_reader(place)


@pytest.mark.parametrize("name", ["edge.db", "a b?c#d%20.db", "ä€\udcff.db"])
def test_any_path_is_a_place(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    assert path_of(sqlite_place(path)) == path
    with closing(open_log(sqlite_place(path), app="unit")) as log:
        put(log, log.create(StreamSpec("numbers", SCHEMA)), [1])
    assert path.exists()


def test_a_stream_leads_to_its_log_in_any_process(tmp_path: Path) -> None:
    with closing(open_log(Folder(tmp_path).edge_log, app="unit")) as log:
        stream = log.create(StreamSpec("numbers", SCHEMA))
        put(log, stream, [1, 2])
        with closing(open_reader(pickle.loads(pickle.dumps(stream)).place)) as reader:
            assert everything(reader, stream) == [1, 2]
            assert reader.find("numbers") == stream


def test_the_place_of_another_app_is_refused(tmp_path: Path) -> None:
    with temporary_place() as memory:
        for place in (memory, Folder(tmp_path).edge_log):
            check_place(place, "shop")
            with closing(open_log(place, app="shop")):
                check_place(place, "shop")
                for refused in (lambda place: check_place(place, "bank"), lambda place: open_log(place, app="bank")):
                    with pytest.raises(FolderMismatchError, match="belongs to the app 'shop', not to 'bank'"):
                        refused(place)
