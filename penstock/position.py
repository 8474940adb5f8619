"""A position says how far someone has come: the ack token, the SSE event id, the resume cursor, the replay point.

1. A position is an epoch and one offset per partition, printed as one opaque token. The offset is that of the
   *next* thing to read: position 0 is the beginning.
2. Its kind and name travel with it, so that a token of another stream or view is refused, never misread.
3. Positions of one epoch are ordered partition by partition; those of different epochs are not comparable.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from penstock.errors import BadPositionError

Kind = Literal["stream", "view", "receipt"]

_KINDS: tuple[Kind, ...] = ("stream", "view", "receipt")
_decoder = msgspec.msgpack.Decoder(tuple[int, str, str, list[int]])


@dataclass(frozen=True, slots=True)
class Position:
    """How far a stream (one offset per partition) or a view (one offset, counting commits) was read or written.

    >>> p = Position("stream", "rsvps", "a1", (5,))
    >>> Position.parse(p.token()) == p
    True
    """

    kind: Kind
    name: str
    epoch: str
    offsets: tuple[int, ...]

    def token(self) -> str:
        packed = msgspec.msgpack.encode((_KINDS.index(self.kind), self.name, self.epoch, self.offsets))
        return base64.urlsafe_b64encode(packed).rstrip(b"=").decode()

    @staticmethod
    def parse(token: str, kind: Kind | None = None, name: str | None = None) -> Position:
        """Read a token; one of another kind or name than asked for is refused."""
        position = _unpack(token)
        if kind is not None and position.kind != kind:
            raise _other_kind(position, kind)
        if name is not None and position.name != name:
            raise BadPositionError(
                f"this token belongs to '{position.name}', not to '{name}'",
                hint=f"pass a token that came from '{name}'",
            )
        return position

    def covers(self, other: Position) -> bool:
        """Whether everything before `other` is before this position too."""
        return (
            self.epoch == other.epoch
            and len(self.offsets) == len(other.offsets)
            and all(mine >= theirs for mine, theirs in zip(self.offsets, other.offsets, strict=True))
        )


def _other_kind(position: Position, kind: Kind) -> BadPositionError:
    if position.kind == "receipt":
        return BadPositionError(
            "this token is the receipt of an ack=none request, which was given before its events had a place",
            hint="ask GET /acks/<token> until its level is logged: its 'ack' is then a position",
        )
    return BadPositionError(
        f"this token is a position of a {position.kind}, not of a {kind}",
        detail=f"it belongs to the {position.kind} '{position.name}'",
        hint=f"pass a token that came from a {kind}",
    )


def _unpack(token: str) -> Position:
    try:
        raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        kind, name, epoch, offsets = _decoder.decode(raw)
        if min((kind, *offsets)) < 0:
            raise ValueError("nothing is before the beginning")
        return Position(_KINDS[kind], name, epoch, tuple(offsets))
    except (binascii.Error, ValueError, IndexError, msgspec.DecodeError):
        raise BadPositionError(
            f"'{token[:80]}' is not a position token",
            hint="pass a token exactly as the server gave it; leave it out to begin at the start",
        ) from None


Frontier = Mapping[str, Position]
"""The source positions that a view has fully absorbed, by stream name."""


def frontier_body(frontier: Frontier) -> dict[str, str]:
    """A frontier as it appears in replies: a token per stream."""
    return {name: position.token() for name, position in sorted(frontier.items())}


def frontier_json(frontier: Frontier) -> dict[str, Any]:
    """A frontier as it is stored with a commit."""
    return {name: [p.epoch, list(p.offsets)] for name, p in sorted(frontier.items())}


def frontier_from_json(stored: Mapping[str, Any]) -> dict[str, Position]:
    return {name: Position("stream", name, epoch, tuple(offsets)) for name, (epoch, offsets) in stored.items()}
