"""Turns the messages of one connection into what a reader gets: whole snapshots, whole batches, ever newer positions.

1. A snapshot is given once its last part is there; half of one is nothing, and not a place to resume from.
2. A position that is not newer than the last is no news: it is an error of the connection, which is then made anew.
3. No input or output happens here. One is made for each connection, since parts never reach over two.
"""

from __future__ import annotations

from collections.abc import Iterator
from threading import Lock
from typing import Any, Protocol, TypeVar

from penstock.client.view_rows import Changes
from penstock.errors import BadPositionError, PositionGoneError, UnreachableError
from penstock.position import Position
from penstock.protocol import Message

Item = TypeVar("Item", covariant=True)


class Assembly(Protocol[Item]):
    """What stands between a connection and its reader."""

    def take(self, message: Message) -> Iterator[tuple[str, Item | None]]:
        """Positions to resume from, each with what a reader must have dealt with to do so."""


class ViewAssembly:
    """Of a view."""

    def __init__(self, view: str, position: str | None) -> None:
        self._view, self._position = view, position
        self._parts: list[dict[str, Any]] = []
        self._part = 0
        self._reset: str | None = None

    def take(self, message: Message) -> Iterator[tuple[str, Changes | None]]:
        kind = message.get("type")
        if kind == "changes":
            yield self._forward(message), self._changes(message)
        elif kind == "snapshot":
            yield from self._snapshot(message)
        elif kind == "position":
            yield self._forward(message), None
        elif kind == "reset":
            self._reset = str(message.get("reason") or "the server gave no reason")
            self._parts, self._part = [], 0

    def _changes(self, message: Message) -> Changes:
        if self._part or self._reset is not None:
            raise _garbled("changes came before the snapshot was whole")
        return Changes(
            self._view,
            message["position"],
            tuple(message["upserts"]),
            tuple(message["deletes"]),
            accepted=message.get("accepted"),
            corrected=tuple(message.get("corrected", ())),
            complete=message.get("complete"),
        )

    def _snapshot(self, message: Message) -> Iterator[tuple[str, Changes]]:
        part, parts = message.get("part", 1), message.get("parts", 1)
        if part != self._part + 1:
            raise _garbled(f"part {part} of a snapshot came after part {self._part}")
        self._parts += message["rows"]
        self._part = part
        if part == parts:
            rows, reset = tuple(self._parts), self._reset
            if self._position is not None and reset is None:
                reset = "the server sent a snapshot instead of changes"
            self._parts, self._part, self._reset, self._position = [], 0, None, message["position"]
            told = (message.get("accepted"), (), message.get("complete"))
            yield message["position"], Changes(self._view, message["position"], rows, (), True, reset, *told)

    def _forward(self, message: Message) -> str:
        """The message's position, if it is one that can follow."""
        position: str = message["position"]
        if self._position is not None and not is_newer(position, self._position):
            raise _garbled(f"position {position} came after {self._position}")
        self._position = position
        return position


class StreamAssembly:
    """Of a stream: each event with the position behind it."""

    def __init__(self, stream: str, position: str | None) -> None:
        self._stream, self._position = stream, position

    def take(self, message: Message) -> Iterator[tuple[str, dict[str, Any] | None]]:
        kind = message.get("type")
        if kind == "events":
            for event in message["events"]:
                yield self._forward(event["_position"]), event
            yield message["position"], None
        elif kind == "position":
            yield message["position"], None
        elif kind == "reset":
            raise PositionGoneError(
                f"events of '{self._stream}' were removed before they were read",
                detail=str(message.get("reason")),
                hint='read what is left with since="start", or let the stream retain more',
            )

    def _forward(self, position: str) -> str:
        if self._position is not None and not is_newer(position, self._position):
            raise _garbled(f"position {position} came after {self._position}")
        self._position = position
        return position


def is_newer(position: str, than: str) -> bool:
    """Whether a position of a view comes behind another; one of another build, or in a form of tomorrow, does."""
    try:
        new, old = Position.parse(position), Position.parse(than)
    except BadPositionError:
        return position != than
    return new.epoch != old.epoch or (new != old and new.covers(old))


def _garbled(detail: str) -> UnreachableError:
    return UnreachableError("the server's messages do not follow each other", detail=detail, hint="it is tried again")


class NewestPositions:
    """Of each view the newest position that this client has seen, so that its reads never go back. For any thread."""

    def __init__(self) -> None:
        self._newest: dict[str, str] = {}
        self._lock = Lock()

    def at(self, view: str) -> str | None:
        return self._newest.get(view)

    def note(self, view: str, position: str) -> None:
        """One of another build is newer: builds replace each other and never come back."""
        with self._lock:
            newest = self._newest.get(view)
            if newest is None or is_newer(position, newest):
                self._newest[view] = position

    def forget(self, view: str) -> None:
        """Its position is of a build that is gone."""
        with self._lock:
            self._newest.pop(view, None)
