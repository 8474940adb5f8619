"""Remembers what was replied to a request with an `Idempotency-Key`, so that a retry gets the same reply and no effect.

1. Key, hash of the body and reply are kept for a day, as `kept_replies.py` says; of all replies 64 MiB at most.
2. A key belongs to an account (the name of its credential, else its address) and a stream.
3. Only what is durable is remembered: a 400 or a 503 is not, a 422 is, because its letters are in `dead`.
4. A retry of a request whose outcome is unknown is written only if that one was not: its commit requires so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.clock import Clock
from penstock.collect.intake import Keys, Note
from penstock.collect.judging.json_events import Form
from penstock.collect.judging.rejection import Rejection
from penstock.collect.sender import Sender
from penstock.collect.ways.kept_replies import MOST_KEPT, KeptReply, ReplyBook
from penstock.errors import IdempotencyBusyError, IdempotencyReusedError
from penstock.log import control_keys
from penstock.log.control import ControlMap
from penstock.log.log import KeyIs

KEPT_US = 24 * 3_600_000_000
MOST_BYTES = 64 * 1024**2


@dataclass(frozen=True, slots=True)
class Once:
    """One request with a key, under way; `note` goes with its events."""

    id: str
    note: Note


class Idempotency:
    """All keys that are known; lives on the edge's loop."""

    def __init__(self, memory: ControlMap, clock: Clock) -> None:
        self._memory = memory
        self._book = ReplyBook(memory, control_keys.idempotency, clock, KEPT_US, MOST_BYTES)
        self._open: set[str] = set()
        self._doubtful: dict[str, None] = {}

    def begin(self, stream: str, sender: Sender, key: str, digest: str) -> Once | KeptReply:
        """What was replied before, or leave to go on; then `end` must follow. Raises what the sender is told. `digest`
        is that of the body."""
        id = _digest(stream.encode(), sender.account.encode(), key.encode())
        earlier = self._book.find(id)
        if earlier is not None:
            if earlier.body != digest:
                raise IdempotencyReusedError(
                    f"the Idempotency-Key '{key[:80]}' was used for another body",
                    hint="use a new key for each request, and the same one only to repeat the same request",
                )
            return earlier
        if id in self._open:
            raise IdempotencyBusyError(
                f"a request with the Idempotency-Key '{key[:80]}' is under way",
                hint="send it again after the time in Retry-After to get its reply",
            )
        self._open.add(id)

        def keys(rejections: Sequence[Rejection], shed: int) -> Keys:
            return self._book.keys(id, rejections, shed, body=digest)

        return Once(id, Note(keys, self._unwritten(id)))

    def _unwritten(self, id: str) -> tuple[KeyIs, ...]:
        """That no earlier attempt has been written, where that is not certain."""
        key = control_keys.idempotency(id)
        return (KeyIs(key, self._memory.get(key)),) if id in self._doubtful else ()

    def doubt(self, once: Once) -> None:
        """Nobody knows whether the request will be written."""
        self._doubtful[once.id] = None
        while len(self._doubtful) > MOST_KEPT:
            self._doubtful.pop(next(iter(self._doubtful)))

    def end(self, once: Once) -> None:
        """The request is done with; its reply is known if it is durable."""
        self._open.discard(once.id)


def body_digest(form: Form, raw: bytes) -> str:
    """By which a body is known again; 1 ms for each MiB."""
    return _digest(form.encode() + b"\n" + raw)


def _digest(*parts: bytes) -> str:
    hasher = hashlib.blake2b(digest_size=16)
    for part in parts:
        hasher.update(len(part).to_bytes(8) + part)
    return hasher.hexdigest()
