"""The parts of keeping a child alive that need no supervisor around them."""

import os
from pathlib import Path

from penstock.run.child import LogFile
from penstock.run.keeper import Restarts


def test_the_wait_doubles_up_to_ten_seconds():
    deaths = Restarts()
    assert [deaths.after(10.0) for _ in range(8)] == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]
    assert deaths.count == 8


def test_health_forgives_what_was_before():
    deaths = Restarts()
    for _ in range(4):
        deaths.after(1.0)
    assert deaths.after(31.0) == 0.2
    assert [deaths.after(1.0) for _ in range(4)] == [0.4, 0.8, 1.6, 3.2]
    assert deaths.after(1.0) is None


def test_a_death_that_is_not_instant_starts_the_count_anew():
    deaths = Restarts()
    assert None not in [deaths.after(life) for life in (1, 1, 1, 1, 6, 1, 1, 1, 1)]


def test_a_full_log_is_moved_aside_and_its_writer_goes_on(tmp_path: Path):
    log = LogFile(tmp_path / "logs" / "edge.log", full_bytes=100)
    writer = log.open()
    for number in range(6):
        os.write(writer, f"{number} {'x' * 120}\n".encode())
        log.rotate()
    os.write(writer, b"last\n")
    os.close(writer)
    assert log.path.read_text() == "last\n"
    kept = sorted(path.name for path in log.path.parent.iterdir())
    assert kept == ["edge.log", "edge.log.1", "edge.log.2", "edge.log.3"]
    assert (tmp_path / "logs" / "edge.log.1").read_text().startswith("5 ")
    assert log.last_lines(3) == ["last"]


def test_only_the_newest_childs_last_lines_are_shown(tmp_path: Path):
    log = LogFile(tmp_path / "edge.log")
    for life in ("old", "new"):
        writer = log.open()
        os.write(writer, f"{life} 1\n{life} 2\n{life} 3\n".encode())
        os.close(writer)
    assert log.last_lines(2) == ["new 2", "new 3"]
    assert log.last_lines(9) == ["new 1", "new 2", "new 3"]
