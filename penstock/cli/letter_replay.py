"""`penstock dead fix` and `replay`: letters through a function of the user's, and into their stream again.

A run may break off anywhere and be repeated: the server replays each letter once, and says of the others that it has.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import msgspec
from rich.text import Text

from penstock.cli.letters import Letter
from penstock.cli.remote import Remote
from penstock.errors import AppFileError
from penstock.run.app_file import import_file
from penstock.run.terminal import Terminal

CHUNK_LETTERS = 500
CHUNK_BYTES = 4 * 1024**2
SHOWN = 20
"""Letters that a dry run shows to people; it judges all of them."""

Fix = Callable[[Letter], Any]


@dataclass(frozen=True)
class Mended:
    """A letter and what to send in its place: None for what it holds."""

    letter: Letter
    events: list[msgspec.Raw] | None = None

    def body(self) -> dict[str, Any]:
        named = {"letter": self.letter.letter}
        return named if self.events is None else named | {"events": self.events}

    @property
    def size(self) -> int:
        return 100 + sum(len(bytes(event)) for event in self.events or ())

    @property
    def after(self) -> str:
        return "\n".join(bytes(event).decode() for event in self.events or ())


@dataclass
class Tally:
    """What became of the letters, by result."""

    results: Counter[str] = field(default_factory=Counter)
    accepted: int = 0
    duplicates: int = 0

    @property
    def bad(self) -> int:
        return sum(self.results[name] for name in ("rejected", "failed", "unknown_letter"))

    def line(self) -> str:
        """The last line of both verbs."""
        parts = [f"{count:,} {_WORDS[name]}" for name, count in sorted(self.results.items())]
        if self.duplicates:
            parts.append(f"{self.duplicates:,} events had an id that the stream knows, and were not taken again")
        return "; ".join(parts) or "no letter is meant"


_WORDS = {
    "replayed": "replayed",
    "acceptable": "would be accepted (--apply sends them)",
    "already_replayed": "were replayed before",
    "rejected": "rejected again",
    "failed": "on which the function failed",
    "left": "left as they are",
    "unknown_letter": "that are not there, or that you may not replay",
}


def load_fix(named: str) -> Fix:
    """The function of `FILE.py[:function]`; `fix` unless it says otherwise."""
    file, _, name = named.partition(":")
    path, name = Path(file), name or "fix"
    if not path.is_file():
        raise AppFileError(f"there is no file '{file}'", hint="write `penstock dead fix mend.py`, with def fix(letter)")
    module = import_file(path)
    function = getattr(module, name, None)
    if not callable(function):
        raise AppFileError(f"'{file}' has no function '{name}'", hint=f"write def {name}(letter): return letter.event")
    return cast(Fix, function)


def mended(letter: Letter, fix: Fix) -> Mended | None:
    """What the function makes of a letter; None: it leaves it alone. Raises what the function raises."""
    made = fix(letter)
    if made is None:
        return None
    events = made if isinstance(made, list | tuple) else [made]
    return Mended(letter, [msgspec.Raw(_json(event)) for event in events])


def _json(event: Any) -> bytes:
    """An event as JSON: a dict, an instance of a class, or JSON already."""
    if isinstance(event, str | bytes):
        raw = event.encode() if isinstance(event, str) else event
        msgspec.json.decode(raw)
        return raw
    return msgspec.json.encode(event)


class Sending:
    """Replays letters in chunks, or asks what would become of them."""

    def __init__(self, remote: Remote, terminal: Terminal, *, dry_run: bool, as_json: bool) -> None:
        self._remote, self._terminal = remote, terminal
        self._dry_run, self._as_json = dry_run, as_json
        self.tally = Tally()
        self._shown = 0

    def run(self, letters: Iterable[Letter], fix: Fix | None) -> Tally:
        for chunk in _chunks(self._mended(letters, fix)):
            self._send(chunk)
        return self.tally

    def _mended(self, letters: Iterable[Letter], fix: Fix | None) -> Iterator[Mended]:
        for letter in letters:
            try:
                made = Mended(letter) if fix is None else mended(letter, fix)
            except Exception as error:
                self._tell(Mended(letter), "failed", f"{type(error).__name__}: {error}")
                continue
            if made is None:
                self.tally.results["left"] += 1
            else:
                yield made

    def _send(self, chunk: Sequence[Mended]) -> None:
        body = msgspec.json.encode({"letters": [one.body() for one in chunk], "dry_run": self._dry_run})
        reply = self._remote.request("POST", "/dead/replay", body, {"Content-Type": "application/json"})
        if reply.status != 200:
            raise reply.error()
        self.tally.accepted += reply.body["accepted"]
        self.tally.duplicates += reply.body["duplicates"]
        for one, result in zip(chunk, reply.body["letters"], strict=True):
            why = f"{result['reason']}: {result['detail']}" if result.get("reason") else None
            self._tell(one, result["result"], why)

    def _tell(self, one: Mended, result: str, why: str | None) -> None:
        self.tally.results[result] += 1
        if self._as_json:
            said = {"letter": one.letter.letter, "stream": one.letter.stream, "result": result, "why": why}
            events = None if one.events is None else [json.loads(bytes(event)) for event in one.events]
            self._terminal.data(json.dumps(said | {"before": one.letter.text, "after": events}, ensure_ascii=False))
        elif self._dry_run or result not in ("replayed", "already_replayed"):
            self._shown += 1
            if self._shown <= SHOWN:
                self._terminal.out.print(_shown(one, result, why))
            elif self._shown == SHOWN + 1:
                self._terminal.note("more are judged and not shown; --json shows all")


def _chunks(letters: Iterable[Mended]) -> Iterator[list[Mended]]:
    chunk: list[Mended] = []
    size = 0
    for one in letters:
        if chunk and (len(chunk) == CHUNK_LETTERS or size + one.size > CHUNK_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(one)
        size += one.size
    if chunk:
        yield chunk


_MARKS = {"acceptable": ("✓ would be accepted", "green"), "replayed": ("✓ replayed", "green")}


def _shown(one: Mended, result: str, why: str | None) -> Text:
    """Before, after, and the verdict."""
    text = Text.assemble((one.letter.letter, "bold"), f"  {one.letter.stream}  ", (one.letter.reason, "yellow"))
    text.append(f"\n  - {one.letter.text}", style="red")
    for line in one.after.splitlines():
        text.append(f"\n  + {line}", style="green")
    words, style = _MARKS.get(result, (f"✗ {result.replace('_', ' ')}", "bold red"))
    text.append(f"\n  {words}", style=style)
    return text.append(f": {why}") if why else text
