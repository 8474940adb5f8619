"""Remembers what was replied to a request with an `Idempotency-Key`, so that a retry gets the same reply and no effect.

1. Key, hash of the body and reply are written in the commit of the request's own events, under `idem/` in the control
   stream: whoever finds the events finds the reply, also after a crash.
2. A key belongs to an account (the name of its credential, else its address) and a stream.
3. It is forgotten after a day. The oldest go earlier when there are more than 100,000, or 64 MiB of replies.
4. Only what is durable is remembered: a 400 or a 503 is not, a 422 is, because its letters are in `dead`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from itertools import islice
from typing import Any

import msgspec

from penstock.clock import Clock
from penstock.collect.intake import Outcome
from penstock.collect.judging.cutting import Form
from penstock.collect.sender import Sender
from penstock.errors import IdempotencyBusyError, IdempotencyReusedError

KEPT_US = 24 * 3_600_000_000
MOST_KEPT = 100_000
MOST_BYTES = 64 * 1024**2
REJECTIONS_KEPT = 100
"""In a remembered reply; the stream `dead` has all of them."""
_FORGET_AT_ONCE = 64
"""Keys forgotten in one commit at most, so that no commit becomes long by it."""
_PREFIX = "idem/"
_OVERHEAD_BYTES = 500


class Remembered(msgspec.Struct, frozen=True, kw_only=True):
    """A reply, as the control stream keeps it."""

    at_us: int
    body: str
    """Hash of what was sent."""
    ack: str
    accepted: int = 0
    duplicates: int = 0
    rejected: list[dict[str, Any]] = []
    rejected_in_all: int = 0
    shed: int = 0

    @property
    def received(self) -> int:
        return self.accepted + self.duplicates + self.rejected_in_all + self.shed

    @property
    def bytes(self) -> int:
        """About what it takes in memory."""
        return _OVERHEAD_BYTES + sum(100 + 2 * len(str(each.get("detail"))) for each in self.rejected)


class Once:
    """One request with a key, under way."""

    def __init__(self, id: str, digest: str, expired: list[str], clock: Clock) -> None:
        self.id, self.digest, self.expired = id, digest, expired
        self._clock = clock
        self.made: Remembered | None = None

    def note(self, outcome: Outcome) -> Mapping[str, Any]:
        """In the writer's thread, inside the commit."""
        self.made = self.remembered(outcome)
        gone = dict.fromkeys(f"{_PREFIX}{old}" for old in self.expired)
        return {f"{_PREFIX}{self.id}": msgspec.to_builtins(self.made)} | gone

    def remembered(self, outcome: Outcome) -> Remembered:
        return Remembered(
            at_us=self._clock.now_us(),
            body=self.digest,
            ack=outcome.position.token(),
            accepted=outcome.accepted,
            duplicates=outcome.duplicates,
            rejected=[rejection.body() for rejection in outcome.rejections[:REJECTIONS_KEPT]],
            rejected_in_all=len(outcome.rejections),
            shed=outcome.shed,
        )


class Idempotency:
    """All keys that are known; lives on the edge's loop."""

    def __init__(self, memory: Mapping[str, Any], clock: Clock) -> None:
        self._clock = clock
        found = {k.removeprefix(_PREFIX): v for k, v in memory.items() if k.startswith(_PREFIX)}
        kept = [(id, msgspec.convert(value, Remembered)) for id, value in found.items()]
        self._kept: dict[str, Remembered] = dict(sorted(kept, key=lambda item: item[1].at_us))
        self._bytes = sum(each.bytes for each in self._kept.values())
        self._open: set[str] = set()

    def begin(self, stream: str, sender: Sender, key: str, digest: str) -> Once | Remembered:
        """What was replied before, or leave to go on; then `end` must follow. Raises what the sender is told. `digest`
        is that of the body."""
        id = _digest(stream.encode(), sender.account.encode(), key.encode())
        known = self._kept.get(id)
        if known is not None and known.at_us >= self._clock.now_us() - KEPT_US:
            if known.body != digest:
                raise IdempotencyReusedError(
                    f"the Idempotency-Key '{key[:80]}' was used for another body",
                    hint="use a new key for each request, and the same one only to repeat the same request",
                )
            return known
        if id in self._open:
            raise IdempotencyBusyError(
                f"a request with the Idempotency-Key '{key[:80]}' is under way",
                hint="send it again after the time in Retry-After to get its reply",
            )
        self._open.add(id)
        return Once(id, digest, self._expired(), self._clock)

    def end(self, once: Once, outcome: Outcome | None) -> None:
        """The request is done with, durable if there is an outcome."""
        self._open.discard(once.id)
        if outcome is None:
            return
        if once.made is None:  # a body without events needs no commit; this process alone remembers it
            once.made, once.expired = once.remembered(outcome), []
        for id in [*once.expired, once.id]:
            self._bytes -= old.bytes if (old := self._kept.pop(id, None)) else 0
        self._kept[once.id] = once.made
        self._bytes += once.made.bytes

    def _expired(self) -> list[str]:
        """The ids to forget with the next commit."""
        oldest = self._clock.now_us() - KEPT_US
        over, over_bytes = len(self._kept) + 1 - MOST_KEPT, self._bytes - MOST_BYTES
        ids: list[str] = []
        for id, kept in islice(self._kept.items(), _FORGET_AT_ONCE):
            if len(ids) >= over and over_bytes <= 0 and kept.at_us >= oldest:
                break
            over_bytes -= kept.bytes
            ids.append(id)
        return ids


def body_digest(form: Form, raw: bytes) -> str:
    """By which a body is known again; 1 ms for each MiB."""
    return _digest(form.encode() + b"\n" + raw)


def _digest(*parts: bytes) -> str:
    made = hashlib.blake2b(digest_size=16)
    for part in parts:
        made.update(len(part).to_bytes(8) + part)
    return made.hexdigest()
