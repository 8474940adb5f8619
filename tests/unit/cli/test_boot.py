"""The first moments of a process: little is imported, and Ctrl-C is an exit code at once."""

from __future__ import annotations

import subprocess
import sys

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
            raise KeyboardInterrupt
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
    done = python(INTERRUPTED)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
