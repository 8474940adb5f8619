"""A data folder has one app and one run at a time, and says who has it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.config import Folder
from penstock.errors import FolderHeldError, FolderMismatchError
from penstock.log.opening import open_log
from penstock.run.ownership import RunLock, check_folder, holder, is_locked, wait_for_children

HOLD = """
import fcntl, sys, time
file = open(sys.argv[1], "a+")
getattr(fcntl, sys.argv[2])(file, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(float(sys.argv[3]))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    made = Folder(tmp_path / "data")
    check_folder(made, "shop")
    return made


def holding(path: Path, family: str, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLD, str(path), family, str(seconds)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def ended(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_a_folder_stays_with_its_app(folder):
    open_log(folder.edge_log, app="shop").close()
    check_folder(folder, "shop")
    with pytest.raises(FolderMismatchError, match="belongs to the app 'shop', not to 'bank'"):
        check_folder(folder, "bank")


def test_a_folder_with_strange_files_is_not_taken(tmp_path):
    (tmp_path / "thesis.doc").touch()
    with pytest.raises(FolderMismatchError, match="is not a data folder") as caught:
        check_folder(Folder(tmp_path), "shop")
    assert "thesis.doc" in (caught.value.detail or "")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.doc"]


def test_a_folder_that_a_run_left_before_its_first_event_is_taken(folder):
    for path in (folder.lock, folder.edge_lock, folder.flows_lock):
        path.touch()
    check_folder(folder, "shop")


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(FolderMismatchError, match="cannot be made"):
        check_folder(Folder(tmp_path / "file" / "data"), "shop")


def test_a_second_run_is_told_who_holds_the_folder(folder):
    other = holding(folder.lock, "flock", 60)
    try:
        who = {"pid": other.pid, "host": "127.0.0.1", "port": 8123, "started": "then"}
        folder.lock.write_text(json.dumps(who))
        with pytest.raises(FolderHeldError) as caught:
            RunLock(folder).take({})
        assert f"(pid {other.pid}), which serves http://127.0.0.1:8123," in caught.value.message
        assert json.loads(folder.lock.read_text()) == who
    finally:
        ended(other)
    lock = RunLock(folder)
    lock.take({"pid": 1})
    assert json.loads(folder.lock.read_text()) == {"pid": 1}
    lock.release()


@pytest.mark.parametrize("family", ["flock", "lockf"])
def test_a_lock_of_either_family_is_seen_with_its_holder(folder, family):
    assert not is_locked(folder.flows_lock)
    other = holding(folder.flows_lock, family, 60)
    try:
        assert is_locked(folder.flows_lock)
        assert holder(folder.flows_lock) == other.pid
    finally:
        ended(other)
    assert not is_locked(folder.flows_lock)


def test_a_new_run_waits_for_dying_children_and_says_so(folder):
    other = holding(folder.edge_lock, "flock", 0.5)
    told: list[str] = []
    wait_for_children(folder, told.append)
    assert not is_locked(folder.edge_lock)
    ended(other)
    assert told == ["waiting for the edge process of an earlier run to end"]


def test_a_child_that_does_not_end_is_named(folder):
    other = holding(folder.flows_lock, "lockf", 60)
    try:
        with pytest.raises(FolderHeldError, match=f"process {other.pid} .*python") as caught:
            wait_for_children(folder, lambda text: None, wait_s=0.2)
        assert caught.value.hint == f"end it: kill -9 {other.pid}"
    finally:
        ended(other)


def test_a_folder_that_cannot_be_written_to_is_an_error_with_a_way_out(tmp_path):
    (tmp_path / "run.lock").mkdir()  # what root, too, cannot open as a file
    with pytest.raises(FolderMismatchError, match="cannot be written to") as caught:
        RunLock(Folder(tmp_path)).take({"pid": 1})
    assert "--data" in (caught.value.hint or "")
