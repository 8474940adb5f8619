"""What Spark takes for its Python behaves like Python, costs a fork, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from penstock import plain
from penstock.flows.engine.nursery import Nursery
from penstock.flows.engine.scratch import Scratch

MODULE = """
import os, sys
print(sys.argv[1:], os.environ["COLOUR"], os.getcwd(), "penstock.flows.source" in sys.modules, os.getppid())
print(sys.stdin.read(), file=sys.stderr)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Scratch]:
    made = Scratch.make(tmp_path / "place")
    yield made
    os.close(made.held)


@pytest.fixture
def nursery(place: Scratch) -> Iterator[Nursery]:
    made = Nursery.open(place)
    yield made
    made.close()


def children(nursery: Nursery) -> list[int]:
    """Of the nursery: alive, and not waiting to be asked after."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            if int(parent) == nursery.pid and state != "Z":
                found.append(int(stat.parent.name))
    return found


def asked(nursery: Nursery, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "shown.py").write_text(MODULE)
    return subprocess.run(
        [nursery.python, *arguments],
        input="hello",
        capture_output=True,
        text=True,
        cwd=folder,
        env={"COLOUR": "blue", "PYTHONPATH": str(folder)},
        timeout=60,
    )


def test_a_module_runs_with_the_commands_arguments_environment_and_streams(nursery: Nursery, tmp_path: Path) -> None:
    done = asked(nursery, tmp_path, "-m", "shown", "7")
    imported = f"['7'] blue {tmp_path} True {nursery.pid}\n"
    assert (done.returncode, done.stdout, done.stderr) == (7, imported, "hello\n")


def test_anything_but_a_module_goes_to_python_itself(nursery: Nursery, tmp_path: Path) -> None:
    done = asked(nursery, tmp_path, "-c", "import sys; print(sys.argv, 'penstock.flows.source' in sys.modules)", "x")
    assert (done.returncode, done.stdout) == (0, "['-c', 'x'] False\n")


def test_a_fork_whose_command_was_killed_takes_nobody_with_it(nursery: Nursery, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import sys, time; print('up', flush=True); sys.stdin.read(); time.sleep(0.1)")
    slow = [
        subprocess.Popen(
            [nursery.python, "-m", "slow"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"PYTHONPATH": str(tmp_path)},
        )
        for _ in range(2)
    ]
    for one in slow:
        assert one.stdout is not None
        assert one.stdout.readline() == b"up\n"
    forks = [pid for pid in children(nursery) if pid]
    slow[0].kill()
    slow[0].communicate()
    deadline = time.monotonic() + 60
    while len(children(nursery)) > 1 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert slow[1].poll() is None
    assert len(forks) == 2
    assert len(children(nursery)) == 1
    slow[1].communicate()
    assert slow[1].returncode == 0
    assert asked(nursery, tmp_path, "-m", "shown", "0").returncode == 0


def test_what_is_printed_arrives_though_nobody_flushes(nursery: Nursery, tmp_path: Path) -> None:
    (tmp_path / "hasty.py").write_text("import os; print('said'); os._exit(0)")
    asking = [nursery.python, "-m", "hasty"]
    done = subprocess.run(asking, capture_output=True, text=True, env={"PYTHONPATH": str(tmp_path)}, timeout=60)
    assert done.stdout == "said\n"


def test_without_a_place_for_it_there_is_plain_python(place: Scratch) -> None:
    place.remove()
    assert Nursery.open(place).python == sys.executable
    assert "nursery" in plain.given_up()


def test_the_plain_way_is_python_itself(place: Scratch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(plain.VARIABLE, "1")
    assert Nursery.open(place).python == sys.executable


def test_a_place_whose_path_is_too_long_for_a_socket_will_do(tmp_path: Path) -> None:
    place = Scratch.make(tmp_path / ("x" * 120) / "mit Leerzeichen und \u00fc")
    nursery = Nursery.open(place)
    assert asked(nursery, tmp_path, "-m", "shown", "7").returncode == 7
    assert nursery.pid is not None
    nursery.close()
    os.close(place.held)


def test_without_the_nursery_the_command_is_python(nursery: Nursery, tmp_path: Path) -> None:
    assert nursery.pid is not None
    os.kill(nursery.pid, signal.SIGKILL)
    nursery.wait()
    done = asked(nursery, tmp_path, "-m", "shown", "3")
    assert (done.returncode, " False " in done.stdout) == (3, True)


def test_it_ends_with_its_driver_and_leaves_no_files(tmp_path: Path) -> None:
    code = (
        "from penstock.flows.engine.jvm import nursery; import subprocess; n = nursery();"
        "subprocess.run([n.python, '-m', 'platform'], stdout=subprocess.DEVNULL); print(n.pid)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    deadline = time.monotonic() + 60
    while Path(f"/proc/{done.stdout.strip()}").exists() or list(tmp_path.iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
