"""What the disk alone takes for a write and its fsync, at the rate and the size of an edge's commits: a floor.

It writes over a file that is there already, as SQLite does with its WAL, from a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import server

FILE_BYTES = 16 * 1024**2


def synced(folder: Path, rate: float, size: int, seconds: float) -> list[float]:
    """Milliseconds of each write with its fsync; one that is late does not make the next ones come faster."""
    found: list[float] = []
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        handle = file.fileno()
        os.write(handle, bytes(FILE_BYTES))
        os.fsync(handle)
        data, at = os.urandom(size), 0
        due = time.perf_counter()
        over = due + seconds
        while due < over:
            due = max(due + 1 / rate, time.perf_counter())
            time.sleep(max(0.0, due - time.perf_counter()))
            began = time.perf_counter()
            os.pwrite(handle, data, at)
            os.fdatasync(handle)
            found.append((time.perf_counter() - began) * 1000)
            at = (at + size) % (FILE_BYTES - size)
    return found


def measured(folder: Path, rate: float, size: int, seconds: float) -> list[float]:
    command = [sys.executable, "-m", "bench.disk", str(folder), str(rate), str(size), str(seconds)]
    with server.started(command, subprocess.PIPE) as (process, _):
        output, _ = process.communicate(timeout=seconds + 60)
    found: list[float] = json.loads(output)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("rate", type=float)
    parser.add_argument("size", type=int)
    parser.add_argument("seconds", type=float)
    asked: Any = parser.parse_args()
    print(json.dumps(synced(asked.folder, asked.rate, asked.size, asked.seconds)), flush=True)


if __name__ == "__main__":
    main()
