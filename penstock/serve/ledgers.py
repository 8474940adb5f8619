"""Masks private fields in what the ledgers `dead` and `late` quote, for every reader who is not an administrator.

Whoever may read a stream sees its private fields; who may read only the ledger has no right to them. To mend and send
again what is in `dead` takes the raw bytes, and so `admin`.
"""

from __future__ import annotations

import base64
import re
from typing import Any

import msgspec

from penstock.declaration import Application
from penstock.errors import ForbiddenError
from penstock.private import MASK, mask

_QUOTES = {"dead": "raw", "late": "event"}
"""By ledger, the column that quotes an event: bytes, or JSON text."""


class LedgerMask:
    """Knows which streams have private fields."""

    def __init__(self, application: Application) -> None:
        self._kinds = {stream.name: stream.events.kind for stream in application.streams if stream.events.private}

    def check(self, name: str, where: str | None) -> None:
        """Raises `ForbiddenError` for a filter that could find out what is masked."""
        column = _QUOTES.get(name)
        if self._kinds and column and where and re.search(rf"\b{column}\b", where, re.IGNORECASE):
            raise ForbiddenError(
                f"'{column}' of '{name}' holds private fields, so only an administrator may filter by it",
                hint="filter by stream, reason or detail, or use a key with the right admin",
            )

    def shown(self, name: str, event: dict[str, Any]) -> dict[str, Any]:
        """An event of a stream as JSON; one that quotes nothing private stays as it is."""
        column = _QUOTES.get(name)
        if not self._kinds or column is None or event.get(column) is None:
            return event
        if "stream" not in event:
            return event | {column: MASK}
        kind = self._kinds.get(event["stream"])
        return event if kind is None else event | {column: _masked(name, event[column], kind)}


def _masked(name: str, quoted: str, kind: type[msgspec.Struct]) -> str:
    if name == "dead":
        return base64.b64encode(mask(base64.b64decode(quoted), kind)).decode()
    return mask(quoted.encode(), kind).decode()
