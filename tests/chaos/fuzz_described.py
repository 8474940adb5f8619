"""Runs schemathesis on the OpenAPI document of an edge, as a stranger would, with all that it can check.

    make fuzz-openapi                                             # in an environment of its own
    python -m tests.chaos.fuzz_described --examples 100 --seed 1  # where schemathesis is installed

Once without keys, and once with a key for everything. The edge has a view with rows and the streams of flows, written
as the flows process does, so that nothing answers that it is not there yet.

One check is left out, `positive_data_acceptance`: no schema can say which texts are SQL over these columns, which
tokens this server has given, and which headers go together; such requests are answered with 400 and a hint.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa

from penstock.config import Folder
from penstock.log.folder_log import DEAD, LATE
from penstock.log.log import StreamSpec
from tests.chaos.fuzz import APP, Target, _complaints
from tests.unit.views.fake_flows import FakeFlows

LEFT_OUT = "positive_data_acceptance"


def prepared(data: Path) -> None:
    """What the flows would have written."""
    data.mkdir(parents=True)
    flows = FakeFlows(Folder(data).flows_log, app="fuzzed")
    build = flows.build("kinds", pa.schema([("kind", pa.string()), ("count", pa.int64())]), ("kind",))
    flows.commit(build, [{"kind": "a", "count": 3}, {"kind": "b", "count": 1}])
    flows.flow("made")
    flows.state("made", "running")
    for ledger, schema in (("late", LATE), ("dead", DEAD)):
        flows.log.create(StreamSpec(ledger, schema))
    flows.close()


def key_of(data: Path) -> str:
    words = ["keys", "create", APP, "--data", data, "--scope", "admin"]
    made = subprocess.run(
        [sys.executable, "-m", "penstock.cli.main", *map(str, words)], capture_output=True, text=True, check=True
    )
    found = re.search(r"psk_\S+", made.stdout)
    assert found is not None, made.stdout
    return found[0]


def run(folder: Path, examples: int, seed: int, *, keyed: bool) -> list[str]:
    """What was wrong; schemathesis prints its own findings."""
    prepared(folder / "data")
    shown = ["--header", f"Authorization: Bearer {key_of(folder / 'data')}"] if keyed else []
    target = Target(folder)
    words = ["run", f"{target.url}/openapi.json", "--exclude-checks", LEFT_OUT, "--request-timeout", 20]
    words += ["--max-examples", examples, "--seed", seed, "--no-color", *shown]
    around = {**os.environ, "SCHEMATHESIS_HOOKS": "tests.chaos.fuzz_hooks", "PYTHONPATH": str(APP.parents[2])}
    command = [str(Path(sys.executable).with_name("st")), *map(str, words)]
    try:
        code = subprocess.run(command, env=around, cwd=folder).returncode
    finally:
        ended = target.stop()
    wrong = [f"schemathesis ended with {code}"] if code else []
    wrong += [f"the edge ended with {ended}"] if ended else []
    return wrong + _complaints((folder / "edge.log").read_text(errors="replace"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=50, help="for each operation")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    wrong = []
    for keyed in (False, True):
        print(f"== {'with a key' if keyed else 'without keys'}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            wrong += run(Path(folder), asked.examples, asked.seed, keyed=keyed)
    for one in wrong:
        print(f"WRONG: {one}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
