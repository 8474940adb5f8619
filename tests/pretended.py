"""A real edge on a changelog that a test writes itself, so that readers can be tested in seconds and without Spark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.config import Folder
from penstock.log.log import Stream
from tests.unit.views.fake_flows import FakeFlows

ROOT = Path(__file__).parents[1]
START_S = 90.0
"""How long a start may take on a machine that is busy with other tests."""
APP = "from tests.unit.views.fake_flows import small_app\n\napp = small_app()\n"


def _env() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


class Pretended:
    """`penstock edge` as a process, started and killed at will, and the writer of `flows.db` that flows would be."""

    def __init__(self, root: Path, options: Sequence[str] = (), app: str = APP) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.app = root / "small.py"
        self.app.write_text(app)
        self.folder = Folder(root / "data")
        self.folder.root.mkdir(parents=True, exist_ok=True)
        self.flows = FakeFlows(self.folder.flows_log)
        self.port = 0
        self._options = list(options)
        self._process: subprocess.Popen[bytes] | None = None
        self._builds: dict[str, Stream] = {}
        self._log = root / "edge.log"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def build(self, view: str = "topics", **how: Any) -> None:
        """Begin the view's first build, or another one that takes its place."""
        self._builds[view] = self.flows.build(view, **how)

    def commit(
        self, upserts: Sequence[Mapping[str, Any]] = (), deletes: Sequence[Mapping[str, Any]] = (), view: str = "topics"
    ) -> int:
        """One batch; the offset behind it."""
        return self.flows.commit(self._builds[view], upserts, deletes, accepted_us=time.time_ns() // 1000)

    def start(self) -> None:
        """Start the edge, on the port that it had before, and wait until its views can be read."""
        words = ["edge", self.app, "--data", self.folder.root, "--port", self.port, "--parent", os.getpid()]
        address = self.folder.root / "run" / "edge.json"
        address.unlink(missing_ok=True)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "penstock.cli.main", *map(str, words), *self._options],
                stdout=log,
                stderr=log,
                env=_env(),
            )
        deadline = time.monotonic() + START_S
        while not (address.exists() and self._ready(json.loads(address.read_text() or "{}").get("port", 0))):
            assert self._process.poll() is None, self._log.read_text()[-3000:]
            assert time.monotonic() < deadline, self._log.read_text()[-3000:]
            time.sleep(0.02)

    def kill(self, number: int = signal.SIGKILL) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(60)
            self._process = None

    def close(self) -> None:
        self.kill(signal.SIGTERM)
        self.flows.close()

    def read(self, path: str, key: str | None = None) -> Any:
        request = urllib.request.Request(self.url + path, headers={"Authorization": f"Bearer {key}"} if key else {})
        with urllib.request.urlopen(request, timeout=60) as reply:
            return json.load(reply)

    def key(self, *words: str) -> str:
        """Make a key; a running edge wants one from then on."""
        made = subprocess.run(self._keys("create", *words, "--json"), env=_env(), capture_output=True, check=True)
        secret: str = json.loads(made.stdout)["key"]
        deadline = time.monotonic() + 60
        while not self._accepts(secret):
            assert time.monotonic() < deadline, "the key was never taken"
            time.sleep(0.05)
        return secret

    def revoke(self, name: str) -> None:
        subprocess.run(self._keys("revoke", name), env=_env(), capture_output=True, check=True)

    def _keys(self, verb: str, *words: str) -> list[str]:
        data = str(self.folder.root)
        return [sys.executable, "-m", "penstock.cli.main", "keys", verb, str(self.app), *words, "--data", data]

    def _accepts(self, key: str) -> bool:
        try:
            self.read("/views", key)
        except OSError:
            return False
        return True

    def _ready(self, port: int) -> bool:
        if not port:
            return False
        self.port = port
        try:
            with urllib.request.urlopen(f"{self.url}/readyz?for=serve", timeout=60):
                return True
        except OSError:
            return False
