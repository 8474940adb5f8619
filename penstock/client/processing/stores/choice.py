"""Opens the store that a word names: the path of a file, or the address of a PostgreSQL database."""

from __future__ import annotations

import re
from os import PathLike
from pathlib import Path

from penstock.client.processing.stores.sqlite import SqliteStore
from penstock.client.processing.work_store import WorkStore
from penstock.errors import BadRequestError

LEASE_S = 15.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def open_store(store: str | PathLike[str], name: str, *, lease_s: float = LEASE_S) -> WorkStore:
    """The store of the processor with this name; nothing is owned yet, so that anybody may look at it.

    `lease_s` is for PostgreSQL: how long a machine that says nothing stays the owner.

        for task in open_store("royalties.db", "pay").failed():
            print(task.number, task.error)
    """
    if not _NAME.fullmatch(name):
        raise BadRequestError(
            f"'{name}' cannot be the name of a processor",
            hint="1 to 64 letters, digits, dots, dashes and underscores: it begins every idempotency key",
        )
    if str(store).startswith(("postgresql://", "postgres://")):
        from penstock.client.processing.stores.postgres import PostgresStore

        return PostgresStore(str(store), name, lease_s)
    return SqliteStore(Path(store), name)
