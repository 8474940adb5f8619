"""What tests are made of: for users, to test their flows; for this package, the contracts of its backends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.testing.flow import rows

__all__ = ["rows"]


def __getattr__(name: str) -> Any:
    """`rows` needs pyspark; the contracts, which the log's tests import, do without."""
    if name == "rows":
        from penstock.testing.flow import rows

        return rows
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
