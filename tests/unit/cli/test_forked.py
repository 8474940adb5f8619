"""What the tests start as a fork is a process like any other: theirs to wait for, with what they gave it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import forked

TELLS = """
import json, os, sys, threading
tells = {"name": __name__, "argv": sys.argv, "here": os.getcwd(), "parent": os.getppid(), "first": sys.path[0],
         "given": os.environ.get("GIVEN"), "read": sys.stdin.read(), "hash": hash("a"),
         "forked": "penstock.run.edge" in sys.modules}
print(json.dumps(tells))
print("bye", file=sys.stderr)
threading.Thread(target=lambda: print("last")).start()
sys.exit(7)
"""


def told(script: Path, folder: Path, **more: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, str(script), "a", "b"],
        input="in",
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=os.environ | {"GIVEN": "x"} | more,
    )
    assert (done.returncode, done.stderr, done.stdout.splitlines()[1:]) == (7, "bye\n", ["last"])
    return json.loads(done.stdout.splitlines()[0])


@pytest.mark.skipif(not forked.possible(), reason="PENSTOCK_TESTS_FORK=0, or no processor that forks are known of")
def test_a_fork_has_what_it_was_given_and_ends_as_python_does(tmp_path: Path) -> None:
    script = tmp_path / "tells.py"
    script.write_text(TELLS)
    (tmp_path / "here").mkdir()
    first, second = told(script, tmp_path / "here"), told(script, tmp_path / "here")
    assert first.pop("hash") != second.pop("hash"), "a process that is started again has other hashes"
    assert first == second
    apart = told(script, tmp_path / "here", PYTHONHASHSEED="1")
    assert not apart.pop("forked"), "what is read while Python starts must not come too late"
    assert first.pop("forked")
    assert apart.pop("hash")
    assert first == apart
    assert first["parent"] == os.getpid()


def test_a_fork_is_killed_as_any_process(tmp_path: Path) -> None:
    script = tmp_path / "waits.py"
    script.write_text("print('here', flush=True)\nimport time\ntime.sleep(600)\n")
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        process.kill()
        assert process.wait(60) == -signal.SIGKILL
