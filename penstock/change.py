"""A change is an upsert or a delete of a view row; a batch of them becomes visible all or none.

On disk and between processes a batch is one Arrow record batch: the view's columns and `_op`. In the edge a row is
a tuple of typed values in column order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

UPSERT = 0
DELETE = 1
OP = "_op"
"""The column of a changelog's record batch that says what each row is; a delete carries the key's columns alone."""

Row = tuple[Any, ...]
Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a view: its name and Spark's short name for its type (`bigint`, `struct<start:timestamp,...>`)."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Change:
    """What one batch did to one key: the row before (None: there was none) and after (None: deleted)."""

    key: Key
    before: Row | None
    after: Row | None
