"""The first moments of a process: little is imported, and Ctrl-C is an exit code at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

IMPORTED = """
import sys
import penstock.cli.boot
heavy = {"numpy", "pyarrow", "pyspark", "pandas", "typer", "rich", "msgspec"} & set(sys.modules)
sys.exit(f"imported: {heavy}" if heavy else 0)
"""
INTERRUPTED = """
import sys
class Ctrl_C:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            WHAT
sys.meta_path.insert(0, Ctrl_C())
sys.argv = ["penstock", "demo"]
from penstock.cli.boot import main
main()
"""


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


def test_what_starts_the_jvm_imports_next_to_nothing() -> None:
    done = python(IMPORTED)
    assert (done.returncode, done.stderr) == (0, "")


def test_ctrl_c_while_it_imports_is_no_traceback() -> None:
    done = python(INTERRUPTED.replace("WHAT", "raise KeyboardInterrupt"))
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_that_asks_to_end_is_an_exit_code_from_the_first_import_on(name: str) -> None:
    done = python(INTERRUPTED.replace("WHAT", f"import os, signal; os.kill(os.getpid(), signal.{name})"))
    assert (done.returncode, done.stdout, done.stderr) == (143, "", "")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_run_that_is_ended_while_its_app_is_loaded_leaves_nothing(tmp_path, number, code) -> None:
    """Also when that is within the app file, where an error would be the file's own."""
    app = tmp_path / "app.py"
    app.write_text("import time\nprint('loading', flush=True)\ntime.sleep(60)\n")
    run = subprocess.Popen(
        [sys.executable, "-m", "penstock.cli.boot", "run", str(app)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert run.stdout is not None
    assert run.stdout.readline() == "loading\n"
    run.send_signal(number)
    out, err = run.communicate(timeout=60)
    assert (run.returncode, out, err) == (code, "", "")
    assert {path.name for path in tmp_path.iterdir()} <= {"app.py", "__pycache__"}


def test_a_signal_within_code_that_is_made_while_it_loads_is_the_same_exit_code(tmp_path) -> None:
    """Data classes and named tuples are made by `exec`; Python remembers that an interrupt has passed through one."""
    app = tmp_path / "app.py"
    app.write_text("exec('import os, signal; os.kill(os.getpid(), signal.SIGTERM)')\n")
    run = [sys.executable, "-m", "penstock.cli.boot", "run", str(app)]
    assert subprocess.run(run, capture_output=True, timeout=60).returncode == 143


def test_what_an_app_registers_for_the_end_of_its_process_runs_when_a_child_is_stopped(tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    app.write_text(
        "import atexit, pathlib\nfrom penstock import App, Event\n"
        f"atexit.register(pathlib.Path({str(tmp_path / 'goodbye')!r}).touch)\n"
        "app = App('shop')\nclass Order(Event):\n    n: int\napp.stream('orders', Order)\n"
    )
    words = ["edge", app, "--data", tmp_path / "data", "--port", 0, "--parent", os.getpid()]
    child = subprocess.Popen([sys.executable, "-m", "penstock.cli.boot", *map(str, words)])
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "data" / "run" / "edge.json").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        child.terminate()
        assert child.wait(60) == 0
    finally:
        child.kill()
        child.wait()
    assert (tmp_path / "goodbye").exists()
