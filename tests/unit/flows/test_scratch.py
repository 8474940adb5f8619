"""What Spark writes beside the data is gone when its process is: at its end, or at the next start after a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from penstock.flows.engine import scratch as scratch_
from penstock.flows.engine.scratch import RUN, Scratch, ended, sweep

LIVES = """
import sys, time
from penstock.flows.engine.scratch import scratch
(scratch().inside("java") / "librocks.so").write_bytes(b"x" * 1000)
print(scratch().path, flush=True)
sys.stdin.read()
"""


def living(place: Path) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", LIVES],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(place)},
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


@pytest.fixture(autouse=True)
def _old_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch_, "_YOUNG_S", -1.0)


def test_at_the_end_of_its_process_nothing_is_left(tmp_path: Path) -> None:
    process, path = living(tmp_path)
    assert path.parent == tmp_path
    assert (path / "java" / "librocks.so").exists()
    process.communicate()
    assert not list(tmp_path.iterdir())


def test_what_a_killed_process_left_goes_at_the_next_start_and_what_another_uses_stays(tmp_path: Path) -> None:
    killed, left = living(tmp_path)
    other, used = living(tmp_path)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert left.exists()
    made = Scratch.make(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([made.path, used])
    other.communicate()
    os.close(made.held)


def test_a_child_that_outlives_its_process_keeps_it(tmp_path: Path) -> None:
    made = Scratch.make(tmp_path)
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[made.held])
    os.close(made.held)
    sweep(tmp_path)
    assert made.path.exists()
    child.communicate()
    sweep(tmp_path)
    assert not made.path.exists()


def test_what_looks_like_one_and_is_a_link_is_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    target.mkdir()
    (tmp_path / "penstock-spark-link").symlink_to(target)
    sweep(tmp_path)
    assert target.exists()


def test_the_end_of_a_run_takes_its_own_however_young_and_no_other(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(scratch_, "_YOUNG_S", 60.0)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for run in ("aaaaaaaa", "bbbbbbbb"):
        monkeypatch.setenv("PENSTOCK_RUN", run)
        os.close(Scratch.make(tmp_path).held)
    scratch_.ended("aaaaaaaa")
    assert [path.name[:21] for path in tmp_path.iterdir()] == ["penstock-spark-bbbbbb"]


def test_the_end_of_a_run_waits_for_a_jvm_that_was_killed_and_is_not_gone_yet(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv(RUN, "0123456789abcdef")
    made = Scratch.make(tmp_path)
    dying = threading.Timer(0.2, os.close, [made.held])
    dying.start()
    ended("0123456789abcdef")
    assert not list(tmp_path.iterdir())
    dying.join()


def test_where_nothing_may_be_executed_it_lies_in_the_data_folder(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(scratch_, "_runs_code", lambda place: False)
    monkeypatch.setenv("PENSTOCK_SCRATCH", str(tmp_path / "scratch"))
    made = scratch_.scratch.__wrapped__()
    assert made.path.parent == tmp_path / "scratch"
    made.remove()
    os.close(made.held)
