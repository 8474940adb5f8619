"""Bounds what waits for the log, in bytes and in events, so that no sender takes the memory or the turn of the others.

1. All together stay below the limits.
2. An account may hold as much again as is still free: one alone comes to half of the room, two to a third each, and
   there is always some left for one that comes. An account that holds nothing is only bound by what is free.
3. Whoever is refused is told when it is worth trying again, from how fast room has been given back.
"""

from __future__ import annotations

from collections import defaultdict

from penstock.clock import Clock
from penstock.errors import OverloadedError

SPEED_S = 1.0
"""Over how long the speed of giving back is measured."""
LONGEST_S = 30.0


class Room:
    """What all senders of an edge hold; lives on the edge's loop."""

    def __init__(self, most_bytes: int, most_events: int, clock: Clock) -> None:
        self.most_bytes, self.most_events = most_bytes, most_events
        self.taken_bytes = self.taken_events = 0
        self._clock = clock
        self._bytes: defaultdict[str, int] = defaultdict(int)
        self._events: defaultdict[str, int] = defaultdict(int)
        self._given = 0
        self._since_s = clock.monotonic()
        self._speed: float | None = None

    def share(self, account: str) -> RoomShare:
        return RoomShare(self, account)

    @property
    def accounts(self) -> int:
        """How many hold something now."""
        return len(self._bytes)

    @property
    def fill(self) -> float:
        """From 0 (empty) to 1 (full)."""
        return max(self.taken_bytes / self.most_bytes, self.taken_events / self.most_events)

    def take_bytes(self, account: str, size: int) -> None:
        if not size:
            return
        held, free = self._bytes.get(account, 0), self.most_bytes - self.taken_bytes
        if size > free or (held and held + size > free):
            raise self._full(f"{self.taken_bytes} of {self.most_bytes} bytes wait for the log, {held} of them yours")
        self.taken_bytes += size
        self._bytes[account] = held + size

    def take_events(self, account: str, count: int) -> None:
        if not count:
            return
        held, free = self._events.get(account, 0), self.most_events - self.taken_events
        if self.taken_events and (count > free or (held and held + count > free)):
            raise self._full(f"{self.taken_events} of {self.most_events} events wait for the log, {held} of them yours")
        self.taken_events += count
        self._events[account] = held + count

    def give_back(self, account: str, size: int, events: int) -> None:
        self.taken_bytes -= size
        self.taken_events -= events
        for held, less in ((self._bytes, size), (self._events, events)):
            if account in held:
                held[account] -= less
                if held[account] <= 0:
                    del held[account]
        self._note(size)

    def retry_after_s(self) -> float:
        """Until half of the room is free again, at the speed of the last seconds."""
        speed = self._speed if self._speed is not None else self._given / SPEED_S
        over = self.taken_bytes - self.most_bytes / 2
        return min(LONGEST_S, max(1.0, over / speed)) if speed else 1.0

    def _note(self, size: int) -> None:
        self._given += size
        passed = self._clock.monotonic() - self._since_s
        if passed >= SPEED_S:
            self._speed = self._given / passed
            self._given, self._since_s = 0, self._since_s + passed

    def _full(self, detail: str) -> OverloadedError:
        return OverloadedError(
            "the server holds as much unwritten data as it may",
            detail=detail,
            hint="send the same request again after the time in Retry-After",
        ).after(self.retry_after_s())


class RoomShare:
    """What one request holds, until it is closed."""

    __slots__ = ("_room", "account", "bytes", "events")

    def __init__(self, room: Room, account: str) -> None:
        self._room, self.account = room, account
        self.bytes = self.events = 0

    def grow(self, size: int) -> None:
        """Raises `OverloadedError` when there is no room."""
        self._room.take_bytes(self.account, size)
        self.bytes += size

    def hold(self, events: int) -> None:
        """Raises `OverloadedError` when there is no room."""
        self._room.take_events(self.account, events)
        self.events += events

    def close(self) -> None:
        if self.bytes or self.events:
            self._room.give_back(self.account, self.bytes, self.events)
            self.bytes = self.events = 0
