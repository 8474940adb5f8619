"""What all declarations of an app share: the user's line before each error, names of columns, and numbers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.declaration import Place
from penstock.errors import DeclarationError, PenstockError

Names = str | Sequence[str] | None
_DECLARING = {
    str(Path(__file__).with_name(name)) for name in ("app.py", "ordered_flows.py", "split_flows.py", "option_checks.py")
}


class at:
    """Puts the user's line before the message of an error in a declaration."""

    def __init__(self, place: Place) -> None:
        self.place = place

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, PenstockError):
            raise DeclarationError(f"{self.place}: {error.message}", detail=error.detail, hint=error.hint) from None


def caller() -> Place:
    """The nearest line outside of what declares."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename in _DECLARING:
        frame = frame.f_back
    return Place(frame.f_code.co_filename, frame.f_lineno)


def names(given: Names) -> tuple[str, ...]:
    if given is None:
        return ()
    try:
        columns: tuple[Any, ...] = (given,) if isinstance(given, str) else tuple(given)
    except TypeError:  # a number, or a column of Spark's
        columns = (None,)
    if not all(isinstance(name, str) for name in columns):
        raise DeclarationError(f"{given!r} names no columns", hint="write their names as texts: 'a', or ['a', 'b']")
    if twice := next((name for name in columns if columns.count(name) > 1), None):
        raise DeclarationError(f"{given!r} names '{twice}' twice", hint="name it once")
    return columns


def at_least(least: int, option: str, number: int) -> None:
    if not isinstance(number, int) or number < least:
        raise DeclarationError(option, hint=f"use a whole number, {least} or more")
