"""Prints what every file of the package is for, in its own words: `make tour`, `make tour IN=flows`."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from tests.docs.pages import PACKAGE


def files() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if path.read_text().strip())


def first_sentence(path: Path) -> str:
    doc = ast.get_docstring(ast.parse(path.read_text()))
    assert doc, f"{path} does not say why it exists"
    return " ".join(doc.split("\n\n")[0].split())


def tour(folder: str = "") -> str:
    """One line a file, folder by folder; `folder` is one of the package's, such as `flows`."""
    lines: list[str] = []
    parent = None
    for path in sorted(files(), key=lambda path: (path.parent, path.name)):
        if path.is_relative_to(PACKAGE / folder):
            if path.parent != parent:
                parent = path.parent
                lines += ["", f"{parent.relative_to(PACKAGE.parent)}/"]
            lines.append(f"  {path.name:<24} {first_sentence(path)}")
    return "\n".join(lines[1:])


if __name__ == "__main__":
    print(tour(*sys.argv[1:]))
