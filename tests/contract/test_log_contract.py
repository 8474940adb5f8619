"""Runs the log's contract over every backend that there is."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock.log.logs
from penstock.testing.contracts.log import LogContract
from penstock.testing.contracts.log_backends import BACKENDS, LogBackend


@pytest.fixture(params=sorted(BACKENDS))
def backend(request: pytest.FixtureRequest) -> LogBackend:
    return BACKENDS[request.param]


@pytest.fixture
def place() -> Iterator[Path]:
    """In memory where that exists: a killed process loses nothing there either, and no test waits for a disk."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


class TestLogContract(LogContract):
    """All of it."""


def test_every_backend_is_registered() -> None:
    modules = {path.stem.split("_")[0] for folder in penstock.log.logs.__path__ for path in Path(folder).glob("*.py")}
    assert modules - {""} == set(BACKENDS)
