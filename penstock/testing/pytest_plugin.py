"""What pytest finds of Penstock: trials that end with their test, golden files, and one Spark for the whole run.

Loaded by the entry point `penstock`. It imports no Spark until a test asks for `penstock_run`; then Java starts as soon
as the tests are collected, so that the first test waits less for it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.protocol import wire

if TYPE_CHECKING:
    from penstock.app import App
    from penstock.testing.trial import Trial

_FIXTURE = "penstock_run"
_UPDATE = "--penstock-update"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("penstock").addoption(
        _UPDATE, action="store_true", help="write the golden files of penstock_golden instead of comparing with them"
    )


def pytest_collection_finish(session: pytest.Session) -> None:
    wanted = any(_FIXTURE in getattr(item, "fixturenames", ()) for item in session.items)
    if wanted and not session.config.option.collectonly:
        from penstock.flows.engine import jvm

        jvm.begun()


@pytest.fixture
def penstock_run() -> Iterator[Callable[..., Trial]]:
    """`penstock.testing.run` whose trials end with the test."""
    from penstock.testing.trial import run

    with ExitStack() as trials:

        def begin(app: App, *, real: bool = False, start: str | datetime | None = None) -> Trial:
            return trials.enter_context(run(app, real=real, start=start))

        yield begin


@pytest.fixture
def penstock_golden(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Compares rows with a file beside the test, `golden/<file>/<test>.json`, and writes it with --penstock-update."""
    update: bool = request.config.getoption(_UPDATE)
    test = Path(str(request.node.path))
    plain = re.sub(r"[^\w.=-]+", "_", request.node.name).strip("_")

    def compare(rows: Sequence[Any], name: str = "") -> None:
        file = test.parent / "golden" / test.stem / f"{plain}{f'.{name}' if name else ''}.json"
        match(file, rows, update=update)

    return compare


def match(file: Path, rows: Sequence[Any], *, update: bool) -> None:
    """Fails the test where rows, as JSON shows them, are not those of the file; or writes it."""
    now = [json.loads(json.dumps(wire(row))) for row in rows]
    if update:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(["[\n", ",\n".join(f"  {json.dumps(row)}" for row in now), "\n]\n"]))
    elif not file.exists():
        pytest.fail(f"{file} is not there: look at the rows, then run pytest with {_UPDATE}")
    elif now != json.loads(file.read_text()):
        pytest.fail(f"the rows are not as in {file}: {now}\nif that is meant, run pytest with {_UPDATE}")
