"""What every error is: a stable code, what failed, the facts, what to do, and whether another try may help.

An error is raised with a message (what failed, names quoted), a detail (facts) and a hint (the command or option
that helps). `retry` says whether the same call may succeed later. They survive pickling, because Spark's executors
send them to the driver. `errors.py` is the list of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Self


class PenstockError(Exception):
    """The parent of all errors of this package."""

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    retry: ClassVar[bool] = False
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, detail: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail
        self.hint = hint
        self.retry_after_s: float | None = None

    def after(self, seconds: float) -> Self:
        """The same, with when it is worth trying again."""
        self.retry_after_s = seconds
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Everything that it was given goes along, also what only its own class has."""
        return _revive, (type(self), self.message, self.detail, self.hint), self.__dict__

    def body(self) -> dict[str, Any]:
        """The error as it appears in an HTTP reply or a socket message."""
        texts = {"message": self.message, "detail": self.detail, "hint": self.hint}
        return {"code": self.code} | {name: text and encodable(text) for name, text in texts.items()}

    def paragraph(self) -> str:
        """The error as a person reads it in a terminal."""
        lines = [f"{self.code}: {self.message}"]
        if self.detail:
            lines.append(f"  {self.detail}")
        if self.hint:
            lines.append(f"  What to do: {self.hint}")
        return "\n".join(lines)


def encodable(text: str) -> str:
    """A text that may quote a client: bytes that are no UTF-8 come as lone surrogates, which JSON cannot hold."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def revived(body: Mapping[str, Any]) -> PenstockError:
    """The error that another process wrote down with `PenstockError.body`."""
    kinds = {kind.code: kind for kind in _kinds(PenstockError)}
    kind = kinds.get(str(body.get("code")), PenstockError)
    return kind(str(body.get("message")), detail=body.get("detail"), hint=body.get("hint"))


def _kinds(kind: type[PenstockError]) -> Iterator[type[PenstockError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _kinds(below)


def _revive(kind: type[PenstockError], message: str, detail: str | None, hint: str | None) -> PenstockError:
    return kind(message, detail=detail, hint=hint)
