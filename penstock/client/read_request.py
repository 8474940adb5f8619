"""What a reader asks for, in the two forms in which it travels: query parameters, and a `subscribe` message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal
from urllib.parse import quote

from penstock.client.conditions import Condition, spelled
from penstock.protocol import Message, encode

Kind = Literal["view", "stream"]


class Channel(str):
    """The name of a channel, wherever the name of a view or stream is taken: `client.watch(Channel("jazz"))`."""


Names = str | Sequence[str] | None


class Default:
    """Stands for what the view's declaration says."""

    def __repr__(self) -> str:
        return "DEFAULT"


DEFAULT: Final = Default()
Limit = int | None | Default


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """A view or a stream, and which part of it. A resume repeats it unchanged."""

    kind: Kind
    name: str
    where: str | None = None
    params: Mapping[str, Any] | None = None
    select: tuple[str, ...] | None = None
    order_by: tuple[str, ...] | None = None
    limit: Limit = DEFAULT
    """None: all rows."""

    @property
    def _word(self) -> str:
        return "channel" if isinstance(self.name, Channel) else self.kind

    @property
    def path(self) -> str:
        return f"/{self._word}s/{quote(self.name, safe='')}"

    def parameters(self) -> dict[str, str]:
        """For the query of a URL."""
        values = {
            "where": self.where,
            "params": None if self.params is None else encode(self.params).decode(),
            "select": None if self.select is None else ",".join(self.select),
            "order_by": None if self.order_by is None else ",".join(self.order_by),
            "limit": self._limit(),
        }
        return {name: value for name, value in values.items() if value is not None}

    def _limit(self) -> str | None:
        if isinstance(self.limit, Default):
            return None
        return "null" if self.limit is None else str(self.limit)

    def message(self, since: str | None) -> Message:
        """For a socket."""
        message: Message = {"type": "subscribe", "id": "r", self._word: str(self.name), "since": since}
        fields = {"where": self.where, "params": self.params, "select": self.select, "order_by": self.order_by}
        message |= {name: value for name, value in fields.items() if value is not None}
        return message if isinstance(self.limit, Default) else message | {"limit": self.limit}


def read_request(
    kind: Kind,
    name: str,
    where: str | Condition | None = None,
    params: Mapping[str, Any] | None = None,
    select: Names = None,
    order_by: Names = None,
    limit: Limit = DEFAULT,
) -> ReadRequest:
    """As the caller wrote it.

    >>> read_request("view", "topics", "rsvps > :n", {"n": 3}, limit=None).parameters()
    {'where': 'rsvps > :n', 'params': '{"n":3}', 'limit': 'null'}
    """
    text, values = spelled(where, params)
    return ReadRequest(kind, name, text, values, _names(select), _names(order_by), limit)


def _names(names: Names) -> tuple[str, ...] | None:
    if not names:
        return None
    return tuple(name.strip() for name in names.split(",")) if isinstance(names, str) else tuple(names)
