"""Takes a pull's credentials from the environment when it connects, and keeps them out of everything that is shown."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Mapping

from penstock.collect.pulling.pull_source import NotNow
from penstock.pull_origin import Origin, shown

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
            headers["Authorization"] = f"Bearer {self.secret()}"
        return headers

    def secret(self) -> str | None:
        """What the variable holds that `key=` names."""
        return None if self._origin.key is None else self._variable(self._origin.key)

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
    if not (variable := environment.get(name)):
        raise NotNow(f"the environment variable '{name}', which a pull needs, is not set")
    return variable


async def trusted(origin: Origin) -> ssl.SSLContext:
    """Whom a pull over TLS believes: the system's authorities, and those of the file that `ca=` names.

    The file is read at each connection, so that a renewed one needs no restart. Raises `NotNow` for a file that holds
    no certificates. A certificate that no trusted authority signed, or that is of another host, ends the connection
    before anything is sent; there is no way to go on without a check, and none to go on without TLS.
    """
    return await asyncio.to_thread(_context, ca_file(origin))


def ca_file(origin: Origin, environment: Mapping[str, str] = os.environ) -> str | None:
    return None if origin.ca is None else from_environment(origin.ca, environment)


def _context(ca: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if ca is not None:
        try:
            context.load_verify_locations(ca)
        except (OSError, ssl.SSLError) as error:
            why = error.strerror or str(error)
            raise NotNow(f"ca='{ca}' does not hold certificates to trust: {why}", after_s=5.0) from None
    return context


def problem_of(error: BaseException, origin: Origin) -> str | None:
    """What to say of an error if it is about a certificate."""
    cause = getattr(error, "certificate_error", None) or getattr(error, "os_error", None) or error
    if not isinstance(cause, ssl.SSLCertVerificationError):
        return None
    hint = "name the authority that signed it with ca=" if origin.ca is None else f"'{origin.ca}' does not vouch for it"
    return f"the certificate of the source is not trusted: {cause.verify_message}; {hint}"
