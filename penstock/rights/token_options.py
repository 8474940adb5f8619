"""What is said of tokens before one is read: where their keys are, and why one is no credential.

It needs no library of cryptography, so that commands which never see a token start without one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


class TokenFault(Exception):
    """Why a token is no credential. It never leaves the package and never holds the token."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason, self.text = reason, text


@dataclass(frozen=True)
class TokenOptions:
    """Where the keys are, and for whom and by whom tokens must be."""

    secret_file: Path | None = None
    public_key: Path | None = None
    jwks: Path | None = None
    audience: str | None = None
    issuer: str | None = None

    def __bool__(self) -> bool:
        return any((self.secret_file, self.public_key, self.jwks))
