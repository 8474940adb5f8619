"""Decides whom a pull over TLS believes: the system's authorities, and those of the file that `ca=` names.

1. A certificate that no trusted authority signed, or that is of another host, ends the connection before anything is
   sent; the pull says so and tries again. There is no way to go on without a check, and none to go on without TLS.
2. The file is read at each connection, so that a renewed one needs no restart.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Mapping

from penstock.collect.pulling.credentials import from_environment
from penstock.collect.pulling.source import NotNow
from penstock.origin import Origin


async def trusted(origin: Origin) -> ssl.SSLContext:
    """For one connection. Raises `NotNow` for a file that holds no certificates."""
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
    found = getattr(error, "certificate_error", None) or getattr(error, "os_error", None) or error
    if not isinstance(found, ssl.SSLCertVerificationError):
        return None
    hint = "name the authority that signed it with ca=" if origin.ca is None else f"'{origin.ca}' does not vouch for it"
    return f"the certificate of the source is not trusted: {found.verify_message}; {hint}"
