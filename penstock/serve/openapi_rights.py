"""Says in the description of the HTTP interface which operation needs which right, by the guard's own table."""

from __future__ import annotations

from typing import Any

from penstock.declaration import Application
from penstock.rights.guard import PIXEL, need
from penstock.serve.openapi_parts import answers

Spec = dict[str, Any]

_OPEN = frozenset({"/", "/healthz", "/readyz"})
_WORDS = {
    "all": "the right to read everything (`read:*`)",
    "some": "the right to read something; what may not be read is left out",
    "any": "any credential",
    "admin": "the right `admin`",
    "ack": "the right to write or read the stream",
}


def secured(paths: Spec, application: Application) -> Spec:
    """The same paths with 400, 401, 403 and a word on the right; what is open to all says so."""
    for path, operations in paths.items():
        for method, operation in operations.items():
            if path in _OPEN:
                operation["security"] = [{}]
            else:
                _secure(path, method, operation, application)
    return paths


def _secure(path: str, method: str, operation: Spec, application: Application) -> None:
    first, _, rest = path[1:].partition("/")
    name, _, below = rest.partition("/")
    named = first in ("streams", "views", "channels") and bool(name)
    registered = f"/{first}/{{{first[:-1]}}}" + (f"/{below}" if below else "") if named else path
    wanted = need(method.upper(), registered)
    operation["description"] = (
        f"Needs {_WORDS.get(wanted) or f'the right `{wanted}:{name}`'}, once the server has a key."
    )
    every = () if path.endswith(PIXEL) else (400,)  # a parameter that is not taken
    operation["responses"] = answers(None, *every, 401, 403, 429) | operation["responses"]
    declared = application.stream(name) if wanted == "write" else None
    if declared is not None and declared.signed and method == "post":
        operation["description"] += (
            f" Or a signature in the style `{declared.signed.style}`; one of the two is always needed."
        )
    if wanted == "write" and (method == "post" or path.endswith(PIXEL)):
        operation["security"] = [{"key": []}, {"token": []}, {"beacon": []}, {}]
