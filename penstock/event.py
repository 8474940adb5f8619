"""What an app says of its events: classes whose annotations are the contract of the door, the log and Spark."""

from __future__ import annotations

from typing import Any

import msgspec


class _KeywordOnly(msgspec.StructMeta):
    """Fields in any order: a field with a default may stand before one without, so that classes can grow."""

    def __new__(mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> _KeywordOnly:
        options.setdefault("kw_only", True)
        options.setdefault("frozen", True)
        return super().__new__(mcls, name, bases, namespace, **options)


class Struct(msgspec.Struct, metaclass=_KeywordOnly):
    """A part of an event: a nested object.

    >>> class Topic(Struct):
    ...     topic_name: str
    """


class Event(Struct):
    """Something that happened. Its fields are checked at the door, stored typed, and are a flow's columns.

    >>> class Rsvp(Event):
    ...     rsvp_id: int
    ...     response: str = "yes"
    """
