"""The contract of a source that a pull reads: how it is opened, resumed and read, and what each side may rely on.

`Pulls` opens a source, reads until it ends or fails, closes it, waits, and opens it again, for as long as the process
lives. All calls come from the edge's loop, one at a time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol


class Source(Protocol):
    """Something outside that sends events; its implementations stand in `sources/`, named after the outside system."""

    def open(self, ask: Mapping[str, str]) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Connect. `ask` are the parameters of a resume, empty at the very first time.

        Entering connects and may raise anything: the pull tries again later. The iterator gives one event's bytes at
        a time; its end means that the source closed. A source that is not read must make its sender wait (it holds
        a bounded amount), because that is how a full log slows a source down. Nothing is confirmed to the source:
        what it sent and the log did not take is asked for again by `ask`, so a source without a resume parameter
        loses what was on its way when a connection breaks.
        """
