"""Keeps what clients do wrong out of the server's log: broken HTTP and lost connections are counted, not shown.

aiohttp logs each of them as an error with a trace. Anybody who can connect could fill the log with them, and what is
wrong with the server itself would be lost among them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from aiohttp.http_exceptions import HttpProcessingError

_LOGGER = "aiohttp.server"


class NotTheServersFault(logging.Filter):
    """Lets pass what is not a client's doing; `refused` hears of every request that was not HTTP."""

    def __init__(self, refused: Callable[[], None]) -> None:
        super().__init__()
        self._refused = refused

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            self._refused()
            return False
        return not isinstance(error, ConnectionError)


def quieten(refused: Callable[[], None]) -> Callable[[], None]:
    """From now on, in this process; what it returns ends it."""
    logger, filtering = logging.getLogger(_LOGGER), NotTheServersFault(refused)
    logger.addFilter(filtering)
    return lambda: logger.removeFilter(filtering)
