"""The documents of the checkout, as text and in parts."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "penstock"
_SKIPPED = {"node_modules", ".venv", "build", ".penstock"}
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def page(name: str) -> str:
    """A document by its path from the root."""
    return (ROOT / name).read_text()


def documents() -> list[Path]:
    """Every Markdown file of ours."""
    return sorted(path for path in ROOT.rglob("*.md") if not _SKIPPED & set(path.relative_to(ROOT).parts))


@dataclass(frozen=True)
class Block:
    """A fenced block of code."""

    path: Path
    line: int
    language: str
    code: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}"


def blocks(path: Path, language: str) -> list[Block]:
    """The code blocks of one language, with their common indentation taken away."""
    text = path.read_text()
    return [
        Block(path, text[: match.start()].count("\n") + 1, match[1], textwrap.dedent(match[2]))
        for match in _FENCE.finditer(text)
        if match[1] == language
    ]


def without_code(text: str) -> str:
    """The prose alone: fenced blocks and inline code hold no links."""
    return re.sub(r"`[^`\n]*`", "", _FENCE.sub("", text))


def table_codes(text: str) -> set[str]:
    """What stands as code in the first cell of a table's row."""
    return set(re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE))


def section(text: str, heading: str) -> str:
    """The text under a heading of the second level."""
    _, found, rest = text.partition(f"\n## {heading}\n")
    assert found, f"no section '{heading}'"
    return rest.partition("\n## ")[0]
