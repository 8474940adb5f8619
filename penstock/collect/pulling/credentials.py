"""Takes a pull's credentials from the environment when it connects, and keeps them out of everything that is shown."""

from __future__ import annotations

import os
from collections.abc import Mapping

from penstock.collect.pulling.source import NotNow
from penstock.origin import Origin, shown

_ENV = "env:"
_LEAST = 4
"""Shorter values are not looked for in texts: they would hide half of every message."""


class Credentials:
    """Of one pull; read anew at each connection, so that a changed environment needs no other word."""

    def __init__(self, origin: Origin, environment: Mapping[str, str] = os.environ) -> None:
        self._origin, self._environment = origin, environment

    def headers(self) -> dict[str, str]:
        """What goes with each request."""
        headers = {name: self._value(value) for name, value in self._origin.headers.items()}
        if self._origin.key is not None:
            headers["Authorization"] = f"Bearer {self._variable(self._origin.key)}"
        return headers

    def settings(self) -> dict[str, str]:
        return {name: self._value(value) for name, value in self._origin.settings.items()}

    def redact(self, text: str) -> str:
        """The text without any of the secrets, and without what looks like one in an address."""
        for name in self._names():
            value = self._environment.get(name, "")
            if len(value) >= _LEAST:
                text = text.replace(value, "...")
        return shown(text)

    def _names(self) -> list[str]:
        values = (*self._origin.headers.values(), *self._origin.settings.values())
        named = [value.removeprefix(_ENV) for value in values if value.startswith(_ENV)]
        return [*named, *([self._origin.key] if self._origin.key else [])]

    def _value(self, value: str) -> str:
        return from_environment(value, self._environment)

    def _variable(self, name: str) -> str:
        return from_environment(_ENV + name, self._environment)


def from_environment(value: str, environment: Mapping[str, str]) -> str:
    """The value itself, or for `env:NAME` that of the variable. Raises `NotNow` where that is not set."""
    if not value.startswith(_ENV):
        return value
    name = value.removeprefix(_ENV)
    if not (found := environment.get(name)):
        raise NotNow(f"the environment variable '{name}', which a pull needs, is not set")
    return found
