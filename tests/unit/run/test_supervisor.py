"""Children live as long as the supervisor and not a moment longer, and come back when they die or hang."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from penstock.run.child import processes
from penstock.run.supervisor import FlowNews
from penstock.run.terminal import Terminal

FAKE_RUN = Path(__file__).with_name("fake_run.py")
LIVES = 'trap "exit 0" TERM; while :; do touch "$1"; sleep 0.05; done'
DEAF = 'trap "" TERM; while :; do touch "$1"; sleep 0.05; done'
DIES = "echo it goes wrong >&2; exit 7"
WITH_FAMILY = 'sleep 1000 & setsid sleep 15 & while :; do touch "$1"; sleep 0.05; done'


class Run:
    """A supervisor in a process of its own, and what can be seen of it from outside."""

    def __init__(self, folder: Path, scripts: dict[str, str], hung_s: float, stop_s: float) -> None:
        self.folder = folder
        command = [sys.executable, str(FAKE_RUN), str(folder), json.dumps(scripts), str(hung_s), str(stop_s)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def state(self) -> dict[str, Any]:
        try:
            return json.loads((self.folder / "supervisor.json").read_text())
        except FileNotFoundError:
            return {"processes": {}}

    def child(self, name: str) -> dict[str, Any]:
        return self.state()["processes"].get(name, {})

    def pid(self, name: str) -> int:
        until(lambda: self.child(name).get("state") == "running")
        return int(self.child(name)["pid"])

    def finish(self, timeout: float = 60.0) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=timeout)
        return self.process.returncode, out, err


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def begin(**options: Any) -> Run:
        hung_s, stop_s = options.pop("hung_s", 60.0), options.pop("stop_s", 60.0)
        runs.append(Run(tmp_path, options, hung_s, stop_s))
        return runs[-1]

    yield begin
    for run in runs:
        run.process.kill()
        run.process.communicate()


def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def alive(group: int) -> list[str]:
    return [p.name for p in processes() if p.group == group]


def test_sigterm_stops_both_and_exits_with_0(start):
    run = start(one=LIVES, two=LIVES)
    groups = [run.pid("one"), run.pid("two")]
    run.process.terminate()
    code, out, err = run.finish()
    assert (code, out) == (0, "ready http://nowhere\n")
    assert "stopping" in err
    assert not any(alive(group) for group in groups)
    assert run.state()["state"] == "stopped"


def test_what_others_need_is_started_first_and_stopped_last(start, tmp_path):
    told = tmp_path / "told"
    says = 'trap "echo $0 ends >> TOLD; exit 0" TERM; while :; do touch "$1"; sleep 0.05; done'.replace(
        "TOLD", str(told)
    )
    first = f"while [ ! -e {tmp_path / 'may'} ]; do sleep 0.05; done; echo one is up >> {told}; {says}"
    run = start(**{"two after one": f"echo two begins >> {told}; {says}", "one": first})
    until(lambda: run.child("one").get("state") == "starting")
    (tmp_path / "may").touch()
    run.pid("two")
    run.process.terminate()
    assert run.finish()[0] == 0
    assert told.read_text().splitlines() == ["one is up", "two begins", "two ends", "one ends"]


def test_what_does_not_stop_in_time_is_killed_and_what_a_child_leaves_behind_at_once(start):
    run = start(one=DEAF, two=f'(trap "" TERM; exec sleep 1000) & {LIVES}', stop_s=1.0)
    groups = [run.pid("one"), run.pid("two")]
    run.process.terminate()
    code, _, err = run.finish()
    assert code == 0
    assert "one does not stop by itself and is killed" in err
    assert not any(alive(group) for group in groups)


def test_a_second_ctrl_c_kills_what_does_not_stop(start):
    run = start(one=DEAF)
    group = run.pid("one")
    run.process.send_signal(signal.SIGINT)
    until(lambda: run.state()["state"] == "stopping")
    assert alive(group)
    run.process.send_signal(signal.SIGINT)
    assert run.finish(30)[0] == 130  # long before it would be killed anyway
    assert not alive(group)


def test_a_child_that_is_killed_comes_back_alone(start):
    run = start(one=LIVES, two=LIVES)
    first, other = run.pid("one"), run.pid("two")
    os.kill(first, signal.SIGKILL)
    until(lambda: run.child("one").get("restarts") == 1 and run.pid("one") != first)
    assert run.pid("two") == other
    assert run.child("one")["last_exit"] == -signal.SIGKILL
    run.process.terminate()
    assert "one was killed by SIGKILL; starting it again in 0.2 s" in run.finish()[2]


def test_a_stopped_child_counts_as_hung_and_is_replaced(start):
    run = start(one=LIVES, hung_s=2.0)
    first = run.pid("one")
    os.kill(first, signal.SIGSTOP)
    until(lambda: run.child("one").get("hung", 0) >= 1 and run.pid("one") != first)
    assert not alive(first)
    run.process.terminate()
    assert "one hangs: no sign of life" in run.finish()[2]
    assert "process state T" in (run.folder / "one.log").read_text()


def test_after_a_sleep_of_the_whole_machine_nobody_counts_as_hung(start):
    run = start(one=LIVES, hung_s=4.0)
    first = run.pid("one")
    os.kill(run.process.pid, signal.SIGSTOP)
    os.kill(first, signal.SIGSTOP)
    time.sleep(4.5)  # longer than hung_s; the supervisor wakes first and finds a child without a pulse
    os.kill(run.process.pid, signal.SIGCONT)
    time.sleep(0.4)
    os.kill(first, signal.SIGCONT)
    time.sleep(0.4)
    assert run.pid("one") == first
    assert run.child("one")["hung"] == 0


def test_when_the_supervisor_is_killed_all_families_end_within_10_s(start):
    run = start(one=f"sleep 1000 & {LIVES}", two=DEAF)
    groups = [run.pid("one"), run.pid("two")]
    os.kill(groups[1], signal.SIGSTOP)
    until(lambda: alive(groups[0]).count("sleep") >= 2)
    run.process.kill()
    until(lambda: not any(alive(group) for group in groups), seconds=10.0)


def test_a_hung_childs_family_goes_with_it_whatever_group_it_moved_to(start):
    run = start(one=WITH_FAMILY, hung_s=2.0)
    first = run.pid("one")
    until(lambda: any(p.group != first for p in _below(first)))
    members = {p.pid for p in _below(first)}
    os.kill(first, signal.SIGSTOP)
    until(lambda: run.child("one").get("hung", 0) >= 1 and run.pid("one") != first)
    assert not members & {p.pid for p in processes()}


def _below(pid: int) -> list[Any]:
    everyone = list(processes())
    found = {pid}
    while more := {p.pid for p in everyone if p.parent in found} - found:
        found |= more
    return [p for p in everyone if p.pid in found]


def test_signals_at_any_moment_do_not_lock_it(start):
    """SIGCHLD comes whenever a child of the child ends: many of them, and it still does what it is there for."""
    run = start(one=LIVES)
    first = run.pid("one")
    for _ in range(20_000):
        run.process.send_signal(signal.SIGCHLD)
        time.sleep(0.0001)
    os.kill(first, signal.SIGKILL)
    until(lambda: run.child("one").get("restarts") == 1)
    run.process.terminate()
    assert run.finish()[0] == 0


def test_five_instant_deaths_are_enough_and_the_log_is_shown(start):
    run = start(one=DIES, two=LIVES)
    group = run.pid("two")
    code, _, err = run.finish()
    assert code == 1
    assert err.count("starting it again") == 4
    assert "│ it goes wrong" in err
    assert "child_failed: one does not stay alive: it ended with exit code 7, 5 times" in err
    assert not alive(group)


def test_a_users_error_is_said_once_and_nothing_is_started_again(start, tmp_path):
    body = json.dumps({"code": "bad_app_file", "message": "app.py:3: no", "detail": None, "hint": "mend it"})
    run = start(one=f"echo '{body}' > {tmp_path}/one.error.json; exit 3", two=LIVES)
    code, _, err = run.finish()
    assert code == 1
    assert "bad_app_file: app.py:3: no\n  What to do: mend it" in err
    assert "starting it again" not in err


def test_what_changes_about_a_flow_is_told_once():
    said = io.StringIO()
    news = FlowNews(Terminal(err=Console(file=said, width=200)))
    runs, rebuilds = {"state": "running", "error": None}, {"state": "rebuilding", "error": None}
    failed = {"state": "retrying", "error": {"code": "flow_failed", "message": "no luck"}}
    for flow in (runs, rebuilds, rebuilds, runs, failed, failed, runs):
        news.tell({"a": flow})
    assert said.getvalue().splitlines() == [
        "'a' is rebuilt from the log; its old rows are served until that is done",
        "'a' is rebuilt",
        "flow_failed: no luck",
        "the flow 'a' runs again",
    ]
