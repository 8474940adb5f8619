"""Takes the commonest POST past aiohttp's requests, tasks and middlewares, which cost ten times what its event does.

1. It takes what is certain to be taken: a plain head, a body that is whole and whose events decode at once, a sender
   with the right to write, a stream without limits in force, room and a turn that are free. Whatever else comes is left
   to aiohttp, byte for byte, before anything was done with it: so everything that can be refused is refused there.
2. The same objects judge, join, write, count and answer as on the long way (`Guard`, `Judge`, `Room`, `Turns`,
   `Intake`, `outcome_reply`). Only what is around them is shorter.
3. A reply is written when the commit is durable, to the byte as aiohttp would write it.

`connections.py` says when a connection may take it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from aiohttp import web
from aiohttp.helpers import rfc822_formatted_time
from aiohttp.http import SERVER_SOFTWARE

from penstock.clock import Clock
from penstock.collect.intake import Intake, Outcome
from penstock.collect.judging.json_events import SLICE_BYTES, Form
from penstock.collect.limits.pressure import Pressure
from penstock.collect.limits.room import Share
from penstock.collect.sender import Sender
from penstock.collect.ways.door import Door
from penstock.collect.ways.plain_head import END, MOST_BYTES, PlainHead, plain_head
from penstock.collect.ways.replies import error_reply, outcome_reply
from penstock.collect.ways.request_body import form_of
from penstock.collect.ways.unanswered import Unanswered
from penstock.errors import OverloadedError, UnsupportedContentError
from penstock.rights.credential import Credential

MOST_HEADS = 512
"""A sender's heads differ in the length of the body alone, so that nearly all were read before; 2 MB at most."""
_PATH = "/streams/"
_HARMLESS = frozenset(
    {
        *("host", "content-type", "content-length", "connection", "authorization"),
        *("user-agent", "accept", "accept-encoding", "accept-language", "cache-control", "pragma", "sec-fetch-mode"),
        *("traceparent", "tracestate", "baggage", "x-request-id", "via", "forwarded", "x-real-ip"),
        *("x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "x-forwarded-port"),
    }
)
"""Headers that ask for nothing, or for what is looked at here; whoever sends another goes the long way."""


class Writers(Protocol):
    """Who may write: `penstock.rights.guard.Guard`."""

    def writer(self, stream: str, host: str, authorization: str | None) -> Credential | None:
        """Who posts, if there is no doubt that they may; None: ask the long way, which says what is wrong."""

    def grants(self, credential: Credential) -> bool:
        """One request of its rate is used up; False: there is none, and nothing was used or counted."""

    def plain_marks(self) -> Mapping[str, str]:
        """Headers of every reply to a request without an `Origin`."""


class Connection(Protocol):
    """Who is answered."""

    address: str

    def answered(self, reply: bytes) -> None:
        """The request that was taken last has its reply."""


@dataclass(frozen=True, slots=True)
class _Post:
    """What a head asks for."""

    intake: Intake
    form: Form
    host: str
    authorization: str | None
    length: int
    whole: int
    """Bytes of the head and the body."""


class ShortWay:
    """The way that all connections of an edge share; lives on its loop."""

    def __init__(
        self,
        intakes: Mapping[str, Intake],
        door: Door,
        unanswered: Unanswered,
        pressure: Pressure,
        clock: Clock,
        writers: Writers,
    ) -> None:
        self._intakes, self._door, self._unanswered, self._clock = intakes, door, unanswered, clock
        self._pressure, self._writers = pressure, writers
        self._posts: dict[bytes, _Post | None] = {}
        self._senders: dict[tuple[str, str], Sender] = {}
        self._written: tuple[tuple[object, ...], bytes] = ((), b"")

    def take(self, connection: Connection, data: bytes) -> int:
        """How many bytes the request at the beginning of `data` has, when it was taken: then `connection.answered` will
        be called once. 0: nothing was done, and it must go the long way."""
        end = data.find(END, 0, MOST_BYTES)
        if end < 0:
            return 0
        head = data[: end + 4]
        try:
            post = self._posts[head]
        except KeyError:
            post = self._read(head)
        if post is None or len(data) < post.whole:
            return 0
        body = data[end + 4 : post.whole]
        return post.whole if self._take(connection, post, body) else 0

    def _read(self, raw: bytes) -> _Post | None:
        if len(self._posts) >= MOST_HEADS:
            self._posts.clear()
        head = plain_head(raw)
        post = self._posts[raw] = None if head is None else self._post(head)
        return post

    def _post(self, head: PlainHead) -> _Post | None:
        intake = self._intakes.get(head.target.removeprefix(_PATH)) if head.target.startswith(_PATH) else None
        if head.method != "POST" or intake is None or not _HARMLESS.issuperset(head.headers):
            return None
        if not 0 < head.length <= SLICE_BYTES:
            return None
        try:
            form = form_of(head.headers.get("content-type", ""))
        except UnsupportedContentError:
            return None
        if form not in ("json", "lines"):
            return None
        host, authorization = head.headers["host"], head.headers.get("authorization")
        return _Post(intake, form, host, authorization, head.length, head.bytes + head.length)

    def _take(self, connection: Connection, post: _Post, body: bytes) -> bool:
        intake = post.intake
        stream = intake.stream.name
        credential = self._writers.writer(stream, post.host, post.authorization)
        if credential is None or not self._pressure.guards[stream].is_plain:
            return False
        sender = self._sender(connection.address, credential)
        account = sender.account
        if self._unanswered.holds_up(stream, account):
            return False
        received_us = self._clock.now_us()
        decoded = intake.judge.decode(body, post.form)
        if decoded is None:
            return False
        share = self._pressure.room.share(account)
        try:
            share.grow(post.length)
            share.hold(decoded.received)
        except OverloadedError:
            share.close()
            return False
        if not self._pressure.turns.begin(account, post.length):
            share.close()
            return False
        if not self._writers.grants(credential):
            self._pressure.turns.end(account, post.length)
            share.close()
            return False
        intake.put(decoded, received_us, sender, _Answer(self, connection, stream, share, post.length))
        return True

    def _sender(self, address: str, credential: Credential) -> Sender:
        known = self._senders.get((address, credential.id))
        if known is None:
            if len(self._senders) >= MOST_HEADS:
                self._senders.clear()
            known = Sender("post", address, None if credential.is_anonymous else credential.id)
            self._senders[address, credential.id] = known
        return known

    # Answering

    def ended(self, share: Share, length: int) -> None:
        self._pressure.turns.end(share.account, length)
        share.close()

    def told(self, outcome: Outcome) -> bytes:
        """The reply to most requests of a commit is the same, and made once."""
        if outcome.rejections or outcome.shed or outcome.repeated:
            return self._bytes(outcome_reply(outcome, "logged", None))
        key = (outcome.token, outcome.accepted, outcome.duplicates, rfc822_formatted_time())
        if self._written[0] != key:
            self._written = (key, self._bytes(outcome_reply(outcome, "logged", None)))
        return self._written[1]

    def failed(self, error: Exception, stream: str) -> bytes:
        return self._bytes(error_reply(self._door.explained(error, _PATH + stream, stream)))

    def _bytes(self, reply: web.Response) -> bytes:
        """As aiohttp writes it."""
        body = reply.body
        assert isinstance(body, bytes)
        headers = {
            **reply.headers,
            "Content-Length": str(len(body)),
            "Date": rfc822_formatted_time(),
            "Server": SERVER_SOFTWARE,
            **self._writers.plain_marks(),
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"HTTP/1.1 {reply.status} {reply.reason}\r\n{lines}\r\n".encode() + body


class _Answer:
    """Stands where a request on the long way has its future."""

    __slots__ = ("_connection", "_length", "_settled", "_share", "_stream", "_way")

    def __init__(self, way: ShortWay, connection: Connection, stream: str, share: Share, length: int) -> None:
        self._way, self._connection, self._stream = way, connection, stream
        self._share, self._length = share, length
        self._settled = False

    def done(self) -> bool:
        return self._settled

    def set_result(self, outcome: Outcome, /) -> None:
        self._settled = True
        self._way.ended(self._share, self._length)
        self._connection.answered(self._way.told(outcome))

    def set_exception(self, error: type | BaseException, /) -> None:
        self._settled = True
        self._way.ended(self._share, self._length)
        known = error if isinstance(error, Exception) else RuntimeError(str(error))
        self._connection.answered(self._way.failed(known, self._stream))
