"""What tests are made of: for users, to test their flows; for this package, the contracts of its backends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.testing.flow import rows
    from penstock.testing.trial import Trial, run

__all__ = ["Trial", "rows", "run"]


def __getattr__(name: str) -> Any:
    """These need pyspark; the contracts, which the log's tests import, do without."""
    if name == "rows":
        from penstock.testing.flow import rows

        return rows
    if name in ("Trial", "run"):
        from penstock.testing import trial

        return getattr(trial, name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
