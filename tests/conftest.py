"""What is one piece of work for a process that runs tests: a file, whose fixtures are then made once, or all of Spark.

The processes take pieces in the order of the command line (`make test`).
"""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests import forked

_ONE_SESSION = "tests/flows"
"""Its tests share a Spark session, whose start takes longer than most of them."""


class _Pieces(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return _ONE_SESSION if nodeid.startswith(f"{_ONE_SESSION}/") else nodeid.partition("::")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    return _Pieces(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_configure(config: pytest.Config) -> None:
    forked.install(at_once=hasattr(config, "workerinput"))
