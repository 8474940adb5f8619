"""Runs the log's contract over every backend that there is."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

import penstock.log.logs
from penstock.testing.contracts.log_backends import BACKENDS, Capability, LogBackend
from penstock.testing.contracts.log_contract import LogContract


@pytest.fixture(params=sorted(BACKENDS))
def backend(request: pytest.FixtureRequest) -> LogBackend:
    if request.param == "kafka":
        request.getfixturevalue("kafka")
    return BACKENDS[request.param]


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory where that exists: a killed process loses nothing there either, and no test waits for a disk."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


class TestLogContract(LogContract):
    """All of it."""


def test_every_backend_is_registered() -> None:
    modules = {path.stem.split("_")[0] for folder in penstock.log.logs.__path__ for path in Path(folder).glob("*.py")}
    assert modules - {""} == set(BACKENDS)


def test_a_backend_lacks_what_is_listed_here_and_nothing_else() -> None:
    lacking = {name: set(backend.lacks) for name, backend in BACKENDS.items()}
    assert lacking == {
        "kafka": {"power cuts"},
        "memory": {"outliving its process", "other processes", "power cuts"},
        "sqlite": set(),
    }


def test_every_capability_is_needed_by_a_test() -> None:
    """Else a backend could lack one, and nobody would know what that means."""
    tests = [test for name, test in inspect.getmembers(LogContract) if name.startswith("test_")]
    assert {need for test in tests for need in getattr(test, "needs", ())} == set(get_args(Capability))
