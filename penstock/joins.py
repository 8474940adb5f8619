"""Joins that SQL has no word for: the row of a table as it was when an event happened.

A table that declares `versions=` keeps the rows that newer ones have replaced. A view's function gets the table's
current rows as a frame, and with it, unseen, the frame of its versions: `as_of` joins that one. What it makes of it is
plain SQL, so that the optimizer finds the units of such a view as those of any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.change import OP, UPSERT
from penstock.errors import DeclarationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

VERSION = "_version"
"""Where a version stands in the log: a number that grows with every change of the table."""
WRITTEN = "_written"
"""When a version was written."""
_RECEIVED = "_received"
_ATTACHED = "_penstock_versions"


@dataclass(frozen=True)
class TableVersions:
    """The versions of one table: a row for each, with `VERSION`, `WRITTEN` and the operation beside its columns."""

    frame: Any
    table: str
    key: tuple[str, ...]
    columns: tuple[str, ...]
    since: str | None
    """SQL of the time from which on a row holds; None: the table declares no `time=`."""


def with_versions(current: Any, versions: TableVersions) -> Any:
    """The frame of a table's current rows, from which `as_of` finds its versions."""
    setattr(current, _ATTACHED, versions)
    return current


def as_of(events: DataFrame, table: DataFrame, on: str | Sequence[str], *, at: str = "_time") -> DataFrame:
    """Each event with the row that a table had for it: the newest version at or before the event's time `at`.

    `on` names the columns that both have. The table declares `time=`, the field that says from when on a row holds,
    and `versions=`, how long old rows are kept; of two rows for one time the one that was written last counts. A row
    that is deleted holds until then, and never if that is before its time; one that is written afterwards holds again.
    With `at="_received"` it is the row that was there when the event came in, by the times at which rows were written.
    An event for which there is no row stays, with nulls: this is a left join.

    Give the table as the function gets it; filter and choose columns afterwards.

    ```python
    @app.view(key="id", within="30 days")
    def taxed(sales: DataFrame, rates: DataFrame) -> DataFrame:
        return as_of(sales, rates, on="country").select("id", "amount", "rate")
    ```
    """
    versions = vars(table).get(_ATTACHED)
    if not isinstance(versions, TableVersions):
        raise DeclarationError(
            "as_of needs a table that keeps its versions, as the function gets it",
            hint='declare versions="30 days" on app.table, and filter or select after as_of instead of before',
        )
    since = f"`{WRITTEN}`" if at == _RECEIVED else versions.since
    if since is None:
        raise DeclarationError(
            f"as_of by '{at}' needs to know from when on a row of '{versions.table}' holds",
            hint='declare time= on app.table, or ask for what was there when the event came: at="_received"',
        )
    names = (on,) if isinstance(on, str) else tuple(on)
    shown = "".join(f", v.`{name}`" for name in versions.columns if name not in names)
    equal = " AND ".join(f"e.`{name}` = v.`{name}`" for name in names)
    by = ", ".join(f"`{name}`" for name in versions.key)
    query = f"""
        SELECT e.*{shown} FROM {{events}} e LEFT JOIN (
            SELECT *, least(_deleted, lead(_since) OVER (PARTITION BY {by} ORDER BY _since, `{VERSION}`)) AS _until
            FROM (SELECT *, {since} AS _since, min(CASE WHEN `{OP}` <> {UPSERT} THEN `{WRITTEN}` END) OVER (
                      PARTITION BY {by} ORDER BY `{VERSION}` DESC ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
                  ) AS _deleted FROM {{versions}})
            WHERE `{OP}` = {UPSERT} AND (_deleted IS NULL OR _since < _deleted)
        ) v ON {equal} AND v._since <= e.`{at}` AND (v._until IS NULL OR e.`{at}` < v._until)
    """
    return events.sparkSession.sql(query, events=events, versions=versions.frame)
