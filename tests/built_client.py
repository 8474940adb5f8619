"""The JavaScript client as `dist`, compiled once however many tests ask: none reads a file that another is writing."""

from __future__ import annotations

import fcntl
import subprocess
from pathlib import Path

CLIENT = Path(__file__).parents[1] / "client"


def built_client() -> Path:
    """The client's folder, whose `dist` is that of the sources."""
    dist = CLIENT / "dist"
    dist.mkdir(exist_ok=True)
    done = dist / ".built"
    with (dist / ".building").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        sources = [*CLIENT.glob("src/**/*.ts"), *CLIENT.glob("tsconfig*.json"), CLIENT / "package-lock.json"]
        newest = max(source.stat().st_mtime_ns for source in sources)
        if not done.exists() or done.stat().st_mtime_ns < newest:
            subprocess.run(["npm", "run", "--silent", "build"], cwd=CLIENT, check=True)
            done.touch()
    return CLIENT
