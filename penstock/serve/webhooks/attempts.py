"""What became of the newest deliveries of a webhook, attempt by attempt, since the process started."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from penstock.clock import rfc3339
from penstock.serve.webhooks.parcels import Delivery
from penstock.serve.webhooks.posting import Outcome

KEPT = 20
"""Deliveries that are kept of each webhook."""
TRIES = 20
"""Attempts that are kept of each delivery: the newest."""


@dataclass(slots=True)
class _Record:
    id: str
    type: str
    position: str
    attempts: int = 0
    taken: bool = False
    newest: deque[tuple[int, Outcome]] = field(default_factory=lambda: deque(maxlen=TRIES))


class Attempts:
    """Of one webhook."""

    def __init__(self) -> None:
        self._records: deque[_Record] = deque(maxlen=KEPT)

    def note(self, delivery: Delivery, at_us: int, outcome: Outcome) -> None:
        record = self._records[-1] if self._records else None
        if record is None or record.id != delivery.id or record.taken:
            record = _Record(delivery.id, delivery.type, delivery.position)
            self._records.append(record)
        record.attempts += 1
        record.taken = outcome.taken
        record.newest.append((at_us, outcome))

    def body(self) -> list[dict[str, Any]]:
        """Newest first."""
        return [
            {
                "id": record.id,
                "type": record.type,
                "position": record.position,
                "delivered": record.taken,
                "attempts": record.attempts,
                "newest": [_attempt(at_us, outcome) for at_us, outcome in reversed(record.newest)],
            }
            for record in reversed(self._records)
        ]


def _attempt(at_us: int, outcome: Outcome) -> dict[str, Any]:
    said = None if outcome.taken else outcome.text()
    return {"at": rfc3339(at_us), "status": outcome.status, "failure": outcome.failure, "error": said, "ms": outcome.ms}
