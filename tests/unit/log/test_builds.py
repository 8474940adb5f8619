"""What flows tell the edge is read in several threads at once, from the first time on."""

from __future__ import annotations

import subprocess
import sys

READ = """
import sys
from penstock.log.builds import batch_meta, build_of, state_of

met = []
sys.setprofile(lambda frame, event, _: met.append(frame.f_code.co_name) if event == "call" else None)
build_of({"epoch": "e", "fingerprint": "f", "kind": "view", "columns": [{"name": "a", "type": "int"}],
          "proof": "exact", "started_us": 0})
batch_meta({"batch": 1, "start": {}, "end": {}})
state_of({"state": "running"})
sys.setprofile(None)
print(sorted(name for name in set(met) if "annotations" in name or "dataclass" in name))
"""


def test_classes_are_known_before_threads_meet_them() -> None:
    """msgspec 0.22 ends the process with SIGSEGV where two threads are the first to read a class within a class."""
    done = subprocess.run([sys.executable, "-c", READ], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
