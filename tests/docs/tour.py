"""Writes ARCHITECTURE.md's tour anew from the files' own first sentences: `python -m tests.docs.tour`.

A table belongs to the folder that its first row names; a new folder needs a heading and a table with one row of it.
"""

from __future__ import annotations

import ast
from itertools import groupby
from pathlib import Path

from tests.docs.pages import PACKAGE, ROOT

PAGE = ROOT / "ARCHITECTURE.md"


def files() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if path.read_text().strip())


def first_sentence(path: Path) -> str:
    doc = ast.get_docstring(ast.parse(path.read_text()))
    assert doc, f"{path} does not say why it exists"
    return " ".join(doc.split("\n\n")[0].split())


def row(path: Path) -> str:
    return f"| `{path.relative_to(ROOT)}` | {first_sentence(path).replace('|', chr(92) + '|')} |"


def _folder(line: str) -> str | None:
    """The stage of a row, `""` for files of the package itself; None: the line is no row of the tour."""
    if not line.startswith("| `penstock/"):
        return None
    parts = line.split("`")[1].split("/")
    return parts[1] if len(parts) > 2 else ""


def written(text: str) -> str:
    lines: list[str] = []
    for folder, group in groupby(text.split("\n"), _folder):
        if folder is None:
            lines += group
        else:
            lines += [row(path) for path in files() if _folder(row(path)) == folder]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
