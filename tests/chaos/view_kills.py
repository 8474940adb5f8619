"""Kills a running app with views over views at seeded random moments, and damages `held.db` meanwhile.

    python -m tests.chaos.view_kills --kills 20 --seed 1

What must hold is what `harness.py` checks, and the diamond: a subscriber never sees a message after which something
is missing.
"""

from __future__ import annotations

import random
import shutil
import sys
from pathlib import Path

from penstock.config import Folder
from tests.chaos.harness import Piece, Rows, main

_DAMAGES = ("deleted", "truncated", "older", "none")


def missing(view: str, rows: Rows) -> str | None:
    """A diamond is read at one position: what is counted by two ways is the same by both, and a message of one commit
    is never half applied. Of each kind of step one more even number than odd ones can have come, at most."""
    if view != "balance":
        return None
    wrong = [row for row in rows.values() if row["missing"] != 0]
    return f"the diamond was read at two positions: {wrong}" if wrong else None


def damage(chance: random.Random, data: Path) -> None:
    """Take the rows away that regrouped views are computed from, cut them off, or bring an older copy back."""
    held = Folder(data).held
    older = data.parent / "held.older"
    kind = chance.choice(_DAMAGES)
    print(f"held.db: {kind}", flush=True)
    if kind == "older" and older.exists():
        _forget(held)
        shutil.copy(older, held)
    elif kind == "deleted":
        _forget(held)
    elif kind == "truncated" and held.exists():
        with held.open("r+b") as file:
            file.truncate(held.stat().st_size // 2)
    elif held.exists():
        shutil.copy(held, older)


def _forget(held: Path) -> None:
    """With what SQLite keeps beside it, which belongs to that very file."""
    for name in (held.name, f"{held.name}-wal", f"{held.name}-shm"):
        held.with_name(name).unlink(missing_ok=True)


VIEWS = Piece(
    app=Path(__file__).with_name("views_app.py"),
    keys={"balance": ["kind"], "by_kind": ["kind"], "everything": ["kind", "part"]},
    wrong=missing,
    victims=("flows", "edge", "flows", "jvm", "flows", "edge", "supervisor", "flows", "frozen", "flows"),
    meanwhile=damage,
)


if __name__ == "__main__":
    sys.exit(main(piece=VIEWS))
