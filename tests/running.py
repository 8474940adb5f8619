"""`penstock run` as a real process, for the tests that kill it, edit its app file, or look at it in a browser."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Running:
    """`penstock run` as a process of its own, started again when a test killed it whole."""

    def __init__(self, app: Path, data: Path, env: dict[str, str] | None = None) -> None:
        self.app = app
        self.data = data
        self.env = os.environ | (env or {})
        self.process: subprocess.Popen[str] | None = None
        self.url = ""
        self.port = 0
        self.own: dict[str, Callable[[], None]] = {}
        """What else can be done to it, by name."""

    def start(self) -> None:
        if self.process is not None and self.process.stdout is not None:
            self.process.stdout.close()
        command = [sys.executable, "-m", "penstock.cli.main", "run", str(self.app), "--data", str(self.data)]
        command += ["--port", str(self.port)]
        with (self.data.parent / "run.log").open("a") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=self.env)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.startswith("ready "):
            raise AssertionError(f"not ready: {line!r}\n{(self.data.parent / 'run.log').read_text()[-3000:]}")
        self.url = line.split()[1]
        self.port = int(self.url.rsplit(":", 1)[1])

    def pid(self, victim: str) -> int | None:
        """The process to hit, from what the supervisor says of its children."""
        if victim == "supervisor":
            return self.process.pid if self.process else None
        children = json.loads((self.data / "run" / "supervisor.json").read_text())["processes"]
        found = children["edge" if victim == "edge" else "flows"]["pid"]
        return java_below(found) if victim == "jvm" and found else found

    def stop(self) -> int:
        assert self.process is not None
        self.process.terminate()
        code = self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def json(self, path: str, body: object = None, method: str | None = None) -> Any:
        """Ask the server; what it answers, also when that is an error."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return json.loads(reply.read() or b"null")
        except urllib.error.HTTPError as error:
            with error:
                return json.loads(error.read())


def java_below(pid: int) -> int | None:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            name, rest = stat.split("(", 1)[1].rsplit(")", 1)
            if name == "java" and int(rest.split()[1]) == pid:
                return int(entry.name)
    return None
