"""The facts about a machine without which a figure means nothing: cores, what else it did, versions, file system."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

PACKAGES = ("penstock", "pyspark", "pyarrow", "aiohttp", "uvloop")


def facts(folder: Path) -> dict[str, Any]:
    """As of now; `load` is the load average, so what the machine did before the run that follows."""
    return {
        "cores": os.cpu_count(),
        "processor": _line("/proc/cpuinfo", "model name"),
        "memory": _line("/proc/meminfo", "MemTotal"),
        "load": [round(value, 2) for value in os.getloadavg()],
        "system": platform.platform(),
        "file_system": _file_system(folder),
        "python": platform.python_version(),
        "java": _java(),
        "versions": {name: version(name) for name in PACKAGES},
        "commit": _output("git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"),
    }


def _line(file: str, name: str) -> str | None:
    try:
        lines = Path(file).read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), None)


def _file_system(folder: Path) -> str | None:
    """The type of the mount that the folder is on: a durable write means something else on each."""
    place, kind = "", None
    for line in Path("/proc/mounts").read_text().splitlines() if Path("/proc/mounts").exists() else ():
        _, mounted, name, *_ = line.split()
        if folder.absolute().is_relative_to(mounted) and len(mounted) >= len(place):
            place, kind = mounted, name
    return kind


def _java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java")
    text = _output(java, "-version") if java else None
    return text.splitlines()[0] if text else None


def _output(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return (done.stdout + done.stderr).strip() or None
