"""Serves many subscriptions over one WebSocket: JSON text in, the messages of the wire contract out, each with its id.

1. A message that cannot be read or served is answered with an `error` message; the connection stays open. Only what
   breaks RFC 6455 itself ends it (`serve/frames.py`).
2. Messages of one subscription keep their order; subscriptions on one socket do not wait for each other.
3. A `subscribe` with an id in use replaces that subscription: nothing of the old one is written after it. A view's new
   one begins with a snapshot; a stream's goes on where the old one was, after `subscribed`.
4. The close code says whether to come back: `docs/reference/http.md` lists them.
5. Everything leaves through the `Pipe`, control frames too, and nothing after a close frame.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, cast

import msgspec
from aiohttp import web

from penstock.config import Limits
from penstock.errors import BadRequestError, PenstockError, PolicyError, UpgradeError
from penstock.observe.metrics import Observer
from penstock.observe.signals import RequestFailed, SocketClosed, SubscriberCut
from penstock.position import Position
from penstock.protocol import encode
from penstock.rights.guard import SUBPROTOCOL
from penstock.serve import frames
from penstock.serve.delivery import LAST_WORDS_S, Pipe
from penstock.serve.frames import Fault, Frame, FrameReader, close_frame, ping_frame, pong_frame, text_frame
from penstock.serve.handshake import VERSION, agree
from penstock.serve.messages import LARGE_BYTES, Message, error
from penstock.serve.receiver import PipeReceiver
from penstock.serve.replies import error_reply
from penstock.serve.subscribers import Named

RESTARTING = close_frame(frames.RESTARTING, "restarting: resume from your last position")
PING_S = 30.0
"""A client that has said nothing for so long is asked whether it is there."""
PONG_S = 15.0
"""How long it may take to answer, if nothing waits for it to be read."""
MESSAGE_BYTES = 64 * 1024
"""The longest message a client may send: a long `where`, not data."""
_KINDS = ("view", "stream", "channel")
MOST_SUBSCRIPTIONS = 1_000
"""On one socket; more belongs on several, or into one query."""
MOST_PER_S = 1_000.0
LEAST_PER_S = 0.01


class SocketReceiver(PipeReceiver):
    """One subscription on a socket."""

    transport = "websocket"

    def __init__(self, pipe: Pipe, id: str, *, deflates: bool = False) -> None:
        super().__init__(pipe)
        self.id = id
        self.deflates = deflates
        self._form = (id, deflates)
        self._unpaced: PenstockError | None = None
        self.of: tuple[str, str] | None = None
        """What it is of: `("view", name)` or `("stream", name)`."""
        self.named: Named | None = None
        self.names = False
        """Whether it asked for a name, which takes a moment to open."""
        self.early_ack: Callable[[], None] | None = None
        """What was acknowledged meanwhile; the last counts."""
        self.reached: Position | str | Callable[[], Position] | None = None
        """Of a stream: how far it was read, or who knows."""
        self.before: Before | None = None
        """What the subscription that had this id before was of, and how far it was read."""
        self._over = False

    def frame(self, message: Message) -> bytes:
        return message.frame(self._form)

    def offer(self, message: Message) -> bool | None:
        return self._over or self._pipe.offer(message.frame(self._form))

    async def send(self, message: Message) -> None:
        if self.deflates and len(message.payload) > LARGE_BYTES:
            await asyncio.to_thread(message.deflated)
        await self._pipe.drained()
        if not self._over:
            self._pipe.put(self.frame(message))

    def stop(self) -> None:
        """Nothing is written for it from here on."""
        self._over = True

    def passed_on(self) -> Before | None:
        """What one that takes its place must know; one that had not begun passes on what it was given."""
        if self.of is None:
            return self.before
        return self.of, self.reached() if callable(self.reached) else self.reached

    def name(self, named: Named) -> None:
        """Its name is open."""
        self.named = named
        if self.early_ack is not None:
            self.early_ack()

    def refuse_pace(self, why: PenstockError) -> None:
        """It cannot be given a pace; one that was asked for before this was known is refused now."""
        self._unpaced = why
        if self.pace_s is not None:
            self.pace_s = None
            self._pipe.put(error(why.body()).socket(self.id))

    def pace(self, per_s: object) -> None:
        """At most so many messages a second; None: as they come."""
        if self._unpaced is not None:
            raise self._unpaced
        self.pace_s = None if per_s is None else 1 / _per_s(per_s)
        self.on_pace()


Before = tuple[tuple[str, str], Position | str | None]
Subscribe = Callable[[Mapping[str, Any], SocketReceiver], Awaitable[None]]
"""Serves what a `subscribe` message asks for until cancelled; raises `PenstockError` when it cannot."""


class Session:
    """The conversation on one socket."""

    def __init__(
        self,
        pipe: Pipe,
        subscribe: Subscribe,
        defaults: Mapping[str, str],
        observer: Observer,
        *,
        deflates: bool = False,
        hold: Callable[[], None] = lambda: None,
    ) -> None:
        """`defaults` are fields that a `subscribe` message on this socket need not have. `hold` stops reading from a
        client that has more answers waiting than it reads."""
        self._pipe = pipe
        self._subscribe = subscribe
        self._defaults = dict(defaults)
        self._observer = observer
        self._deflates = deflates
        self._hold = hold
        self._open: dict[str, tuple[SocketReceiver, asyncio.Task[None]]] = {}

    def take(self, text: str | bytes) -> None:
        """One message of the client's."""
        fields: dict[str, Any] = {}
        try:
            fields = _read(text)
            self._act(fields)
        except PenstockError as failure:
            self._fail(fields.get("id"), failure)

    async def close(self) -> None:
        tasks = [task for _, task in self._open.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _act(self, fields: dict[str, Any]) -> None:
        kind = fields.get("type")
        if kind == "subscribe":
            self._begin(self._completed(fields))
        elif kind == "unsubscribe":
            self._end(_id(self._completed(fields)))
        elif kind == "pace":
            self._receiver(fields).pace(fields.get("per_s"))
        elif kind == "ack":
            self._ack(fields)
        elif kind == "ping":
            self._reply(text_frame(encode({"type": "pong"} | _only_id(fields))))
        else:
            raise BadRequestError(
                f"a message of type '{str(kind)[:50]}' is not known",
                hint="send subscribe, unsubscribe, ack, pace or ping",
            )

    def _completed(self, fields: dict[str, Any]) -> dict[str, Any]:
        """A message that names what it is about stands by itself; any other is about this socket's own."""
        return fields if any(fields.get(kind) for kind in _KINDS) else self._defaults | fields

    # Subscriptions

    def _begin(self, fields: dict[str, Any]) -> None:
        id = _id(fields)
        before = self._open.get(id)
        if before is None and len(self._open) >= MOST_SUBSCRIPTIONS:
            raise BadRequestError(
                f"this socket has {MOST_SUBSCRIPTIONS} subscriptions", hint="open another socket, or ask with a where"
            )
        receiver = SocketReceiver(self._pipe, id, deflates=self._deflates)
        receiver.names = fields.get("name") is not None
        if before is not None:
            receiver.before = self._stopped(before).passed_on()
        task = asyncio.create_task(self._serve(receiver, fields, before and before[1]), name=f"subscription {id}")
        self._open[id] = receiver, task
        task.add_done_callback(lambda done: self._over(id, done))

    def _over(self, id: str, task: asyncio.Task[None]) -> None:
        if id in self._open and self._open[id][1] is task:
            del self._open[id]

    def _end(self, id: str) -> None:
        if id not in self._open:
            raise BadRequestError(f"there is no subscription '{id}' on this socket")
        self._stopped(self._open.pop(id))

    def _stopped(self, subscription: tuple[SocketReceiver, asyncio.Task[None]]) -> SocketReceiver:
        receiver, task = subscription
        receiver.stop()
        task.cancel()
        return receiver

    async def _serve(
        self, receiver: SocketReceiver, fields: Mapping[str, Any], before: asyncio.Task[None] | None
    ) -> None:
        try:
            if before is not None:
                await asyncio.wait([before])
            await self._subscribe(fields, receiver)
        except PenstockError as failure:
            self._fail(receiver.id, failure)
        except ConnectionError:
            self._pipe.close()
        except Exception as failure:
            self._observer.emit(RequestFailed("socket", f"{type(failure).__name__}: {failure}"))
            self._fail(receiver.id, PenstockError("something went wrong in the server", hint="its log says what"))
        finally:
            if receiver.named is not None:
                await asyncio.shield(receiver.named.close())

    def _receiver(self, fields: Mapping[str, Any]) -> SocketReceiver:
        id = _id({**self._defaults, **fields})
        if id not in self._open:
            raise BadRequestError(f"there is no subscription '{id}' on this socket")
        return self._open[id][0]

    def _ack(self, fields: Mapping[str, Any]) -> None:
        try:
            self._acknowledge(self._receiver(fields), fields)
        except PenstockError as failure:
            self._fail_ack(fields.get("id"), failure)

    def _acknowledge(self, receiver: SocketReceiver, fields: Mapping[str, Any]) -> None:
        if receiver.named is None and receiver.names:
            receiver.early_ack = lambda: self._ack(fields)
            return
        if receiver.named is None or receiver.of is None:
            raise BadRequestError(
                f"the subscription '{receiver.id}' has no name", hint='subscribe with "name", then ack its positions'
            )
        kind, name = receiver.of
        position = Position.parse(str(fields.get("position")), "view" if kind == "view" else "stream", name)
        receiver.named.ack(
            position,
            lambda durable: self._reply(text_frame(encode({"type": "acked", "id": receiver.id, "position": durable}))),
            lambda failure: self._fail_ack(receiver.id, failure),
        )

    # Answers

    def _reply(self, frame: bytes) -> None:
        if not self._pipe.put(frame):
            self._hold()

    def _fail(self, id: object, failure: PenstockError) -> None:
        self._reply(error(failure.body()).socket(id if isinstance(id, str) else None))

    def _fail_ack(self, id: object, failure: PenstockError) -> None:
        """Said so that nobody takes it for the end of the subscription."""
        self._reply(text_frame(encode(_only_id({"id": id}) | {"type": "error", "to": "ack", "error": failure.body()})))


def _read(text: str | bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise BadRequestError(
            "a message must be a JSON object", detail=str(problem), hint='{"type": "subscribe", "view": "..."}'
        ) from None


def _id(fields: Mapping[str, Any]) -> str:
    """The subscription's id; a client with one subscription per view may leave it out."""
    id = fields.get("id") or next((fields[kind] for kind in _KINDS if fields.get(kind)), None)
    if not isinstance(id, str) or len(id) > 200:
        raise BadRequestError("an id must be a text of at most 200 characters", hint='{"id": "s1", ...}')
    return id


def _only_id(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": fields["id"]} if isinstance(fields.get("id"), str) else {}


def _per_s(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not LEAST_PER_S <= value <= MOST_PER_S:
        raise BadRequestError(
            "'per_s' must be a number of messages a second",
            hint=f"from {LEAST_PER_S:g} to {MOST_PER_S:g}, or null for as many as there are",
        )
    return float(value)


def never_conflated(what: str) -> PolicyError:
    """Why a subscription cannot be given a pace."""
    return PolicyError(f"{what} gives every change, so that none can be left out", hint="read it as fast as it comes")


# The connection


class Wire:
    """What stands between the connection's bytes and the session: frames, pings, and the close handshake.

    aiohttp calls `feed_data` and `feed_eof` (`RequestHandler.set_parser`) once the connection is upgraded.
    """

    def __init__(self, request: web.Request, pipe: Pipe, observer: Observer, *, deflate: bool) -> None:
        self.session: Session
        self.gone = asyncio.Event()
        """The client has said its last word, or the connection is lost."""
        self._protocol = request.protocol
        self._pipe, self._observer = pipe, observer
        self._reader = FrameReader(MESSAGE_BYTES, deflate=deflate)
        self._loop = asyncio.get_running_loop()
        self._heard = self._loop.time()
        self._pong: bytes | None = None
        self._timer = self._loop.call_later(PONG_S, self._look)
        self._resuming: asyncio.Task[None] | None = None

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        self._heard = self._loop.time()
        if self.gone.is_set():
            return False, b""
        try:
            for frame in self._reader.feed(bytes(data)):
                self._take(frame)
        except Fault as fault:
            self._finish(fault.code, fault.reason)
        except Exception as failure:
            self._observer.emit(RequestFailed("socket", f"{type(failure).__name__}: {failure}"))
            self._finish(frames.INTERNAL, "something went wrong in the server")
        return False, b""

    def feed_eof(self) -> None:
        self.gone.set()
        self._pipe.close()

    def close(self) -> None:
        self._timer.cancel()
        if self._resuming is not None:
            self._resuming.cancel()

    def hold(self) -> None:
        """Stop reading from a client that does not read our answers, until it has."""
        if self._resuming is None:
            self._protocol.pause_reading()
            self._resuming = self._loop.create_task(self._resume())

    async def _resume(self) -> None:
        with suppress(ConnectionError):
            await self._pipe.drained()
            self._resuming = None
            self._protocol.resume_reading()

    def _take(self, frame: Frame) -> None:
        if frame.opcode == frames.CLOSE:
            code = frames.close_answer(frame.data)
            self.gone.set()
            self._pipe.end(close_frame(code, ""))
        elif self._pipe.closed.is_set():
            pass  # a close was sent: what comes before its answer does not matter
        elif frame.opcode == frames.PING:
            self._answer(frame.data)
        elif frame.opcode in (frames.TEXT, frames.BINARY):
            self.session.take(frame.data)

    def _answer(self, data: bytes) -> None:
        """Pong; of pings that came while there was no room the newest is answered, as the RFC allows."""
        waits, self._pong = self._pong is not None, data
        if not waits:
            self._pipe.first(self._newest_pong)

    def _newest_pong(self) -> bytes:
        data, self._pong = self._pong or b"", None
        return pong_frame(data)

    def _finish(self, code: int, reason: str) -> None:
        """The client broke the protocol: nothing that it says later can be understood."""
        self.gone.set()
        if not self._pipe.closed.is_set():
            self._observer.emit(SocketClosed(code))
        self._pipe.end(close_frame(code, reason))

    def _look(self) -> None:
        """Ask a client that says nothing whether it is there; while something waits to be read the pipe judges it."""
        silent_s = self._loop.time() - self._heard
        self._timer = self._loop.call_later(PONG_S, self._look)
        if self._pipe.closed.is_set() or not self._pipe.is_idle:
            self._pipe.watch()
            return
        if silent_s >= PING_S + PONG_S:
            self._observer.emit(SocketClosed(frames.SILENT))
            self._pipe.end(close_frame(frames.SILENT, "no answer to a ping: resume from your last position"))
        elif silent_s >= PING_S:
            self._pipe.first(ping_frame())


async def serve_socket(
    request: web.Request,
    subscribe: Subscribe,
    defaults: Mapping[str, str],
    *,
    limits: Limits,
    observer: Observer,
    opened: Callable[[Pipe], None] = lambda pipe: None,
) -> web.StreamResponse:
    """Talk until the client leaves or is cut."""
    try:
        agreed = agree(request, SUBPROTOCOL)
    except UpgradeError as refused:
        return error_reply(refused, VERSION)
    response = web.StreamResponse(status=101, headers=agreed.headers)
    response.force_close()
    await response.prepare(request)
    pipe = Pipe(
        request,
        limits.subscriber_bytes,
        lambda waiting, policy: _cut(observer, waiting, policy),
        stalled_s=limits.subscriber_cut_s,
    )
    opened(pipe)
    wire = Wire(request, pipe, observer, deflate=agreed.deflate)
    wire.session = Session(pipe, subscribe, defaults, observer, deflates=agreed.deflate, hold=wire.hold)
    request.protocol.keep_alive(False)
    request.protocol.set_parser(cast(Any, wire))  # all that it needs are feed_data and feed_eof
    try:
        await pipe.closed.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                await wire.gone.wait()
    finally:
        wire.close()
        pipe.close()
        await wire.session.close()
    return response


def cut_socket(why: PenstockError) -> bytes:
    """The last frames of a socket that may not go on: an `error` message, and a close that says not to come back."""
    return error(why.body()).socket(None) + close_frame(frames.NOT_ANY_MORE, why.detail or why.message)


def _cut(observer: Observer, waiting: int, policy: str) -> bytes:
    observer.emit(SubscriberCut("websocket", waiting, policy))
    observer.emit(SocketClosed(frames.TOO_SLOW))
    return close_frame(frames.TOO_SLOW, "too slow: resume from your last position")
