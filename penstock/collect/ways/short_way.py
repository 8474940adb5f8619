"""Takes the commonest POST past aiohttp's requests, tasks and middlewares, which cost ten times what its event does.

1. It takes what is certain to be taken: a plain head, a body that is whole and whose events decode at once, a sender
   with the right to write, a stream without limits in force, room and a turn that are free. Whatever else comes is left
   to aiohttp, byte for byte, before anything was done with it: so everything that can be refused is refused there.
2. The same objects judge, join, write, count and answer as on the long way (`Guard`, `Judge`, `Room`, `Turns`,
   `Intake`, `outcome_reply`). Only what is around them is shorter.
3. A reply is written when the commit is durable, to the byte as aiohttp would write it.

A request goes this way only where nothing else is under way on its connection and aiohttp's parser is known to stand
between two messages. Meanwhile the connection is, for aiohttp, one that answers: for its timeouts, for its shutdown,
and for what the sender sends behind it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from aiohttp import web
from aiohttp.helpers import rfc822_formatted_time
from aiohttp.http import SERVER_SOFTWARE
from aiohttp.web_protocol import RequestHandler

from penstock.clock import Clock
from penstock.collect.intake import Intake, Outcome
from penstock.collect.judging.json_events import SLICE_BYTES, Form
from penstock.collect.limits.pressure import Pressure
from penstock.collect.limits.room import RoomShare
from penstock.collect.sender import Sender
from penstock.collect.ways.connections import Connections, WatchedHandler
from penstock.collect.ways.door import Door
from penstock.collect.ways.door_replies import error_reply, outcome_reply
from penstock.collect.ways.request_body import form_of
from penstock.collect.ways.without_ack import Unanswered
from penstock.errors import OverloadedError, UnsupportedContentError
from penstock.rights.credential import Credential

MOST_HEADS = 512
"""A sender's heads differ in the length of the body alone, so that nearly all were read before; 2 MB at most."""
BEHIND_BYTES = 64 * 1024
"""What a sender may send behind a request before its reply; then reading pauses."""
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


_LEANT_ON = (
    *("_buffer_paused", "_close", "_force_close", "_handler_waiter", "_keepalive_handle", "_keepalive_timeout"),
    *("_messages", "_next_keepalive_close_time", "_pause_reading_for_buffer", "_paused", "_process_keepalive"),
    *("_request_count", "_request_in_progress", "_resume_reading_for_buffer", "_upgraded", "_waiter"),
)
"""What aiohttp keeps of a connection, under names that its next version may change."""


def misfit() -> str | None:
    """Why this aiohttp cannot have it, if it cannot."""
    missing = [name for name in _LEANT_ON if not hasattr(RequestHandler, name)]
    return f"this aiohttp has no RequestHandler.{missing[0]}" if missing else None


class Writers(Protocol):
    """Who may write: `penstock.rights.guard.Guard`."""

    def writer(self, stream: str, host: str, authorization: str | None) -> Credential | None:
        """Who posts, if there is no doubt that they may; None: ask the long way, which says what is wrong."""

    def grants(self, credential: Credential) -> bool:
        """One request of its rate is used up; False: there is none, and nothing was used or counted."""

    def plain_marks(self) -> Mapping[str, str]:
        """Headers of every reply to a request without an `Origin`."""


class AnsweredConnection(Protocol):
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

    def __call__(self, connections: Connections, manager: Any, **options: Any) -> ShortHandler:
        """The handler of a new connection."""
        return ShortHandler(self, connections, manager, **options)

    def take(self, connection: AnsweredConnection, data: bytes) -> int:
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

    def _take(self, connection: AnsweredConnection, post: _Post, body: bytes) -> bool:
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
        sender = self._senders.get((address, credential.id))
        if sender is None:
            if len(self._senders) >= MOST_HEADS:
                self._senders.clear()
            sender = Sender("post", address, None if credential.is_anonymous else credential.id)
            self._senders[address, credential.id] = sender
        return sender

    # Answering

    def ended(self, share: RoomShare, length: int) -> None:
        self._pressure.turns.end(share.account, length)
        share.close()

    def reply(self, outcome: Outcome) -> bytes:
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

    def __init__(
        self, way: ShortWay, connection: AnsweredConnection, stream: str, share: RoomShare, length: int
    ) -> None:
        self._way, self._connection, self._stream = way, connection, stream
        self._share, self._length = share, length
        self._settled = False

    def done(self) -> bool:
        return self._settled

    def set_result(self, outcome: Outcome, /) -> None:
        self._settled = True
        self._way.ended(self._share, self._length)
        self._connection.answered(self._way.reply(outcome))

    def set_exception(self, error: type | BaseException, /) -> None:
        self._settled = True
        self._way.ended(self._share, self._length)
        failure = error if isinstance(error, Exception) else RuntimeError(str(error))
        self._connection.answered(self._way.failed(failure, self._stream))


class ShortHandler(WatchedHandler):
    """One connection whose plain requests go past aiohttp."""

    __slots__ = ("_behind", "_owed", "_short", "_undrained", "_way")

    def __init__(self, way: ShortWay, connections: Connections, manager: Any, **options: Any) -> None:
        super().__init__(connections, manager, **options)
        self._way = way
        self._owed: int | None = 0
        """Bytes that the message which aiohttp reads still has to come; 0: it stands between two; None: who knows."""
        self._short = False
        """A request is on the short way."""
        self._undrained = False
        """It is answered, and the sender does not read the reply."""
        self._behind = b""
        """What was sent behind it, or before aiohttp is ready for the next request."""

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if data and (self._short or self._behind):
            self._keep(data)
        elif self._owed == 0 and data and not self.busy:
            if self._waits:
                self._begin(data)
            else:  # aiohttp is about to, if it does not close: what it does next stands before this in the loop
                self._behind = data
                self._loop.call_soon(self._catch_up)
        else:
            self.hand_over(data)

    def _begin(self, data: bytes) -> None:
        """The short way, if it takes this."""
        self._short = self._request_in_progress = True
        size = self._way.take(self, data)
        if not size:
            self._short = self._request_in_progress = False
            self.hand_over(data)
        elif size < len(data):
            self._keep(data[size:])

    def hand_over(self, data: bytes) -> None:
        """The long way."""
        if data and self._owed is not None:
            size = self._owed or _message_bytes(data)
            self._owed = size - len(data) if len(data) <= size else None
        super().hand_over(data)

    @property
    def _waits(self) -> bool:
        """Whether aiohttp has answered everything and waits for the next request, or has not begun at all."""
        if self._waiter is None:
            return not self._request_count and not self._close and not self._force_close
        return not self._waiter.done() and not self._messages and not self._upgraded

    def _keep(self, data: bytes) -> None:
        self._behind += data
        if len(self._behind) > BEHIND_BYTES and not self._buffer_paused:
            self._pause_reading_for_buffer()

    def answered(self, reply: bytes) -> None:
        """Never raises: others are answered behind it."""
        transport = self.transport
        if transport is not None and not transport.is_closing():
            transport.write(reply)
        self._undrained = self._paused and transport is not None
        if not self._undrained:
            self._go_on()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._undrained:
            self._undrained = False
            self._go_on()

    def _go_on(self) -> None:
        """The reply is written: as aiohttp goes on behind one."""
        self._short = self._request_in_progress = False
        if self._handler_waiter is not None and not self._handler_waiter.done():
            self._handler_waiter.set_result(None)
        if self.transport is None:
            return
        if self._close or self._force_close:
            self.transport.close()
            return
        self._next_keepalive_close_time = close_time = self._loop.time() + self._keepalive_timeout
        if self._keepalive_handle is None:
            self._keepalive_handle = self._loop.call_at(close_time, self._process_keepalive)
        if self._behind:
            self._loop.call_soon(self._catch_up)

    def _catch_up(self) -> None:
        data, self._behind = self._behind, b""
        if self._buffer_paused:
            self._resume_reading_for_buffer()
        if self.transport is None:
            return
        if self._waits:
            self._begin(data)
        else:
            self.hand_over(data)

    def _process_keepalive(self) -> None:
        if self._short:
            self._keepalive_handle = None
        else:
            super()._process_keepalive()


def _message_bytes(data: bytes) -> int:
    """Of the message that begins here; 0 where that is not certain."""
    end = data.find(END, 0, MOST_BYTES)
    head = plain_head(data[: end + len(END)]) if end >= 0 else None
    return 0 if head is None else head.bytes + head.length


# A plain head. Two parsers that see one request in different ways are how requests are smuggled, so this one knows no
# leniency: a head is plain when its lines are of one shape, no name stands there twice, and nothing in it says that the
# message could be framed, answered or ended in another way than by its `Content-Length`. Every other head is read by
# aiohttp alone.

MOST_BYTES = 4096
"""Half of what aiohttp takes as one line: no limit of its own can be met by a plain head."""
END = b"\r\n\r\n"
_METHODS = rb"GET|HEAD|POST|PUT|PATCH|DELETE|OPTIONS"
_LINE = rb"[A-Za-z0-9-]+: ?[!-~](?:[ -~]*[!-~])?\r\n"
_HEAD = re.compile(rb"(%s) (/[!-~]*) HTTP/1\.1\r\n((?:%s)+)\r\n" % (_METHODS, _LINE))
_LENGTH = re.compile("0|[1-9][0-9]{0,8}")
_HOST = re.compile(r"[A-Za-z0-9._-]+(?::[0-9]{1,5})?|\[[0-9A-Fa-f:.]+\](?::[0-9]{1,5})?")
_DOUBTFUL = frozenset({"transfer-encoding", "te", "trailer", "upgrade", "expect", "proxy-connection", "keep-alive"})


@dataclass(frozen=True, slots=True)
class PlainHead:
    """A request without its body; names of headers are in lower case."""

    method: str
    target: str
    headers: Mapping[str, str]
    bytes: int
    length: int
    """Of the body."""


def plain_head(raw: bytes) -> PlainHead | None:
    """The head that `raw` is, with the empty line at its end; None when aiohttp must look at it.

    >>> head = plain_head(b"POST /streams/a HTTP/1.1\\r\\nHost: a\\r\\nContent-Length: 2\\r\\n\\r\\n")
    >>> head.target, head.length
    ('/streams/a', 2)
    >>> plain_head(b"POST /streams/a HTTP/1.1\\r\\nHost: a\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n") is None
    True
    """
    match = _HEAD.fullmatch(raw) if len(raw) <= MOST_BYTES else None
    if match is None:
        return None
    lines = [line.partition(":") for line in match[3].decode("ascii").split("\r\n")[:-1]]
    headers = {name.lower(): value.removeprefix(" ") for name, _, value in lines}
    if len(headers) != len(lines) or not _is_settled(headers):
        return None
    length = int(headers.get("content-length", "0"))
    return PlainHead(match[1].decode("ascii"), match[2].decode("ascii"), headers, len(raw), length)


def _is_settled(headers: Mapping[str, str]) -> bool:
    """Whether the connection stays, and the message ends where its length says."""
    return (
        _HOST.fullmatch(headers.get("host", "")) is not None
        and _LENGTH.fullmatch(headers.get("content-length", "0")) is not None
        and headers.get("connection", "keep-alive").lower() == "keep-alive"
        and _DOUBTFUL.isdisjoint(headers)
    )
