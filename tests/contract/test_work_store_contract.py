"""Runs the contract of a processor's store over every backend that there is."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

import penstock.client.processing.stores
from penstock.client.processing.stores.postgres import PostgresStore
from penstock.client.processing.stores.sqlite import SqliteStore
from penstock.client.processing.work_store import WorkStore
from penstock.testing.contracts.work_kept import QUESTION, WorkPlace, WorkStoreContract

_numbers = itertools.count()


class SqlitePlace:
    """A file."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "work.db"

    def open(self, name: str = "work") -> WorkStore:
        return SqliteStore(self._path, name)

    def usurp(self, store: WorkStore) -> WorkStore:
        assert isinstance(store, SqliteStore)
        held, store._lock = store._lock, None  # the lock is given back while the old owner believes to have it
        assert held is not None
        os.close(held)
        new = self.open()
        assert new.acquire(QUESTION)
        store._lock = os.open("/dev/null", os.O_RDONLY)
        return new


class PostgresPlace:
    """A prefix of names in the session's database."""

    def __init__(self, address: str) -> None:
        self._address, self._prefix = address, f"n{next(_numbers)}-"

    def open(self, name: str = "work") -> WorkStore:
        return PostgresStore(self._address, self._prefix + name, lease_s=60.0)

    def usurp(self, store: WorkStore) -> WorkStore:
        """As when the lease has ended by the database's clock."""
        assert isinstance(store, PostgresStore)
        ended = "UPDATE penstock_processors SET until_us = 0 WHERE name = ?"
        store._transact(lambda sql: sql.run(ended, store.name))
        new = PostgresStore(self._address, store.name, lease_s=60.0)
        assert new.acquire(QUESTION)
        return new


@pytest.fixture(params=["postgres", "sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> WorkPlace:
    if request.param == "sqlite":
        return SqlitePlace(tmp_path)
    return PostgresPlace(request.getfixturevalue("database"))


class TestWorkStoreContract(WorkStoreContract):
    """All of it."""


def test_every_backend_is_tested() -> None:
    folder = Path(penstock.client.processing.stores.__path__[0])
    assert {path.stem for path in folder.glob("*.py")} - {"__init__", "choice"} == {"postgres", "sqlite"}
