"""A real supervisor over children that are shell scripts: what the tests of the supervisor kill, stop and starve.

python fake_run.py FOLDER '{"one": "script", ...}' hung_s stop_s; a child "two after one" needs that one
"""

import json
import sys
from pathlib import Path

from penstock.cli.main import guarded
from penstock.run import keeper, supervisor
from penstock.run.keeper import ChildPlan
from penstock.run.probe import EdgeProbe, beat
from penstock.run.supervisor import Supervisor
from penstock.run.terminal import Terminal

keeper.DUMP_S = 0.2
supervisor.GAP_S = 1.0


class ReadyAtOnce(EdgeProbe):
    """An edge that answers without being there."""

    def _watch(self) -> None:
        self.ready = True


def plan(folder: Path, name: str, script: str, hung_s: float) -> ChildPlan:
    name, _, needs = name.partition(" after ")
    file = folder / f"{name}.beat"
    return ChildPlan(
        name=name,
        command=lambda: ["/bin/sh", "-c", script, name, str(file)],
        log=folder / f"{name}.log",
        error=folder / f"{name}.error.json",
        pulse=lambda: beat(file),
        hung_s=hung_s,
        needs=needs or None,
    )


def main(folder: Path, scripts: dict[str, str], hung_s: float) -> None:
    running = Supervisor(
        [plan(folder, name, script, hung_s) for name, script in scripts.items()],
        state=folder / "supervisor.json",
        probe=ReadyAtOnce(lambda: None),
        terminal=Terminal(),
        url=lambda: "http://nowhere",
    )
    sys.exit(running.run())


if __name__ == "__main__":
    folder, scripts, hung_s, stop_s = sys.argv[1:]
    supervisor.STOP_S = float(stop_s)
    sys.exit(guarded(lambda: main(Path(folder), json.loads(scripts), float(hung_s))))
