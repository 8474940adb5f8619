"""What a topic for other programs must do: be continued where its last record says, and take portions all or none.

It lies beside a log on a system that others read (`published_topic.py`); the embedded log has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

POSITION = "penstock_position"
"""The header that says where in the log a record stands."""


class TopicRow(NamedTuple):
    """One record of such a topic."""

    partition: int
    key: bytes | None
    value: bytes | None
    """None: a tombstone."""
    position: str
    headers: Sequence[tuple[str, str]] = ()


class Topic(Protocol):
    """One topic, which one process at a time writes. Used by one thread. Every call may raise `TopicError`: then
    whether a portion was taken is not known, and the topic is opened again to find out."""

    @property
    def name(self) -> str: ...

    def open(self) -> None:
        """Make the topic if it is not there, and become the only one who publishes."""

    def publish(self, rows: Sequence[TopicRow]) -> None:
        """All of them or none, in order."""

    def last_positions(self) -> list[str]:
        """Of each partition that holds records, the position in the last one."""

    def was_written(self) -> bool:
        """Whether it ever had a record, also if none is left."""

    def content(self) -> dict[bytes, bytes]:
        """The newest value of each key of a compacted topic."""

    def close(self) -> None: ...
