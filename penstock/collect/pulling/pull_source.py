"""The contract of a source that a pull reads: how it is opened, resumed and read, and what each side may rely on.

`Pulls` opens a source, reads until it ends or fails, closes it, waits, and opens it again, for as long as the process
lives. All calls come from the edge's loop, one at a time.

1. What a source gives out together (one `SourceEvents`) goes into one commit, with the position behind it.
2. A source is asked for more only when there is room, and holds a bounded amount itself: so a full log slows it down.
3. Nothing is confirmed to a source. What it sent and the log did not take is asked for again by the position.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

PositionParts = Mapping[str, Any]
"""A position, in the source's own words: JSON by the name of a part (a file, a partition); None forgets a part."""


@dataclass(frozen=True, slots=True)
class SourceEvents:
    """Events that came together, and the parts of the position that moved with them (None: it has none of its own).

    An event that is larger than any may be comes cut off behind its first `event_bytes + 1` bytes, and goes to `dead`.
    """

    raws: Sequence[bytes]
    position: PositionParts | None = None


@dataclass(frozen=True, slots=True)
class SourceRequest:
    """From where a source is read: its own stored position, and the parameters that `resume=` makes."""

    position: PositionParts = field(default_factory=dict)
    asking: Callable[[], Mapping[str, str]] = dict

    @property
    def parameters(self) -> Mapping[str, str]:
        """As the log has them now: a source that asks several times over one opening asks from further on."""
        return self.asking()


SourceLag = Mapping[str, float]
"""How far behind its source a pull is, in whichever of `events`, `bytes`, `batches`, `seconds` the source can tell."""


class Source(Protocol):
    """Something outside that sends events; its implementations stand in `sources/`, named after the outside system."""

    def open(self, request: SourceRequest) -> AbstractAsyncContextManager[AsyncIterator[SourceEvents]]:
        """Connect. Entering connects and may raise anything: the pull tries again later.

        The iterator's end means that the source closed; it is opened again. `NotNow` says when, `SourceEnded` never.
        """

    def lag(self) -> SourceLag:
        """Known from what was read last; empty when the source cannot tell. Cheap: asked at each scrape."""


class NotNow(Exception):
    """The source cannot be read now; `after_s` is when it may be asked again, where it said so."""

    def __init__(
        self, why: str, after_s: float | None = None, status: int | None = None, code: str | None = None
    ) -> None:
        super().__init__(why)
        self.after_s = after_s
        self.status = status
        """Of an HTTP reply."""
        self.code = code
        """Of the error in its body, where a Penstock or its like answered."""


class SourceEnded(Exception):
    """The source said that there will never be more."""


class SourceReset(Exception):
    """The source no longer has what follows the position.

    `position` says where to go on in the parts that this is about; without it all is read from the beginning.
    """

    def __init__(self, why: str, position: PositionParts | None = None) -> None:
        super().__init__(why)
        self.position = position
