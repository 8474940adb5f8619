"""What a reader may want to know beside the rows: that the connection broke, is back or stalls, or all began anew."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from penstock.errors import PenstockError

_log = logging.getLogger("penstock.client")

_LEVELS = {"broken": logging.INFO, "away": logging.WARNING, "back": logging.INFO}


NoticeKind = Literal["broken", "away", "back", "stalled", "reset"]


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that happened on the way.

    `broken`: the connection ended and is made anew; `away`: for a minute nobody has answered, and it is still tried;
    `back`: messages come again; `stalled`: the server says that this reader is too slow; `reset`: changes could not
    lead from the last position to the present, so that a snapshot follows.
    """

    kind: NoticeKind
    name: str
    """Of the view or stream."""
    text: str
    error: PenstockError | None = None


Notify = Callable[[Notice], None]


def logged(notice: Notice) -> None:
    """To the logger `penstock.client`: what passes by itself as information, the rest as warnings."""
    _log.log(_LEVELS.get(notice.kind, logging.WARNING), "%s: %s", notice.name, notice.text)
