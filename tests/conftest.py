"""What holds for every test.

1. Python starts as a fork (`forked.py`).
2. Signals end what they are sent to, though a shell in the background, or `nohup`, would have them ignored.
3. Hypothesis judges what code does, not how long it takes.
4. The logs that a test has in memory (`memory_folder.py`) end with it.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator

import hypothesis
import pytest

from penstock.log.logs import memory
from tests import forked


def pytest_configure(config: pytest.Config) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    forked.install()
    hypothesis.settings.register_profile("penstock", deadline=None)
    hypothesis.settings.load_profile("penstock")


@pytest.fixture(autouse=True)
def _forget_memory(request: pytest.FixtureRequest) -> Iterator[None]:
    folder = request.getfixturevalue("tmp_path") if "tmp_path" in request.fixturenames else None
    yield
    if folder is not None:
        memory.forget(f"memory://{folder}")
