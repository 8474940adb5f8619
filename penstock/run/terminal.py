"""How Penstock speaks in a terminal: data on stdout, notes on stderr, an error as one paragraph in colour.

No stack trace is ever the first thing that a user sees. What nobody expected is one paragraph too, and
names the file that holds the trace.
"""

from __future__ import annotations

import os
import select
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from rich.console import Console
from rich.text import Text

from penstock.declaration import Problem
from penstock.errors import PenstockError
from penstock.rights.redaction import redacted

_LEVELS = {"error": "bold red", "warning": "bold yellow", "note": "bold cyan"}


class Terminal:
    """Both sides of the terminal; tests pass consoles that write into memory."""

    def __init__(self, out: Console | None = None, err: Console | None = None) -> None:
        wide = None if sys.stdout.isatty() else 200  # nothing is cut off in a pipe or a file
        self.out = out or Console(highlight=False, soft_wrap=True, width=wide)
        self.err = err or Console(stderr=True, highlight=False, soft_wrap=True)

    def data(self, line: str) -> None:
        """One line for whoever reads stdout, at once and unchanged."""
        self.out.file.write(line + "\n")
        self.out.file.flush()

    def is_read(self) -> bool:
        """Whether somebody may still read stdout: False once the other end of a pipe is closed."""
        try:
            poll = select.poll()
            poll.register(self.out.file.fileno(), 0)
            return not any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
        except (OSError, ValueError):  # a console in memory
            return True

    def note(self, text: str, style: str = "dim") -> None:
        self.err.print(Text(text, style=style))

    def warn(self, text: str) -> None:
        self.err.print(Text.assemble(("! ", "bold yellow"), text))

    def error(self, error: PenstockError) -> None:
        self.err.print(paragraph(error.code, error.message, error.detail, error.hint))

    def problems(self, problems: Iterable[Problem]) -> None:
        for problem in problems:
            self.err.print(problem_text(problem))

    def tail(self, title: str, lines: Iterable[str]) -> None:
        """The last lines of a log, set apart from what Penstock says itself."""
        self.err.print(Text(f"  {title}", style="dim"))
        for line in lines:
            self.err.print(Text(f"  │ {line}", style="dim"))


def paragraph(code: str, message: str, detail: str | None, hint: str | None) -> Text:
    """An error as a person reads it: the same words as `PenstockError.paragraph`, in colour."""
    text = Text.assemble((code, "bold red"), ": ", (message, "bold"))
    if detail:
        text.append("\n" + _indented(detail))
    if hint:
        text.append("\n  What to do: ", style="cyan")
        text.append(hint)
    return text


def problem_text(problem: Problem) -> Text:
    """What `check` found, with the user's line first so that an editor can jump to it."""
    text = Text.assemble((f"{problem.level} ", _LEVELS[problem.level]))
    if problem.place:
        text.append(f"{problem.place}: ")
    text.append(problem.message, style="bold" if problem.level == "error" else "")
    text.append(f"  [{problem.code}]", style="dim")
    if problem.hint:
        text.append("\n  What to do: ", style="cyan")
        text.append(problem.hint)
    return text


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())


def unexpected(error: BaseException, trace: Path | None = None) -> PenstockError:
    """An exception that nobody foresaw, as a paragraph; its trace goes to a file that the paragraph names."""
    trace = trace or Path(tempfile.gettempdir()) / f"penstock-{os.getuid()}.log"
    with trace.open("a") as file:
        file.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {redacted(' '.join(sys.argv))}\n")
        file.write(redacted("".join(traceback.format_exception(error))))
    what = f"{type(error).__name__}: {error}".removesuffix(": ")
    return PenstockError(
        f"Penstock failed in a way that it does not know: {what}",
        detail=f"the trace is in {trace}",
        hint="please report it together with that file",
    )


def spark_log() -> Path:
    """Where Spark's words go when no data folder is at hand."""
    return Path(tempfile.gettempdir()) / f"penstock-spark-{os.getuid()}.log"


@contextmanager
def quietly(terminal: Terminal, doing: str) -> Iterator[None]:
    """Within this block stderr is a file: the user sees what is done and for how long, not what Spark says of itself.

    A JVM inherits its stderr and keeps it to its end, so it must find another one when it is started.
    """
    terminal.err.file.flush()
    kept = os.dup(2)
    log = os.open(spark_log(), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(log, 2)
    os.close(log)
    try:
        with os.fdopen(os.dup(kept), "w") as screen:
            shown = Console(file=screen, highlight=False, force_terminal=terminal.err.is_terminal)
            with shown.status(doing) if terminal.err.is_terminal else nullcontext():
                yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
