"""Serves many subscriptions over one WebSocket: JSON text in, the messages of the wire contract out, each with its id.

1. A message that cannot be read or served is answered with an `error` message; the connection stays open. Only what
   breaks RFC 6455 itself ends it (`sockets/wire.py`).
2. Messages of one subscription keep their order; subscriptions on one socket do not wait for each other.
3. A socket begins one subscription in a turn of the loop; each counts as a request of its credential.
4. A `subscribe` with an id in use replaces that subscription: nothing of the old one is written after it. A view's new
   one begins with a snapshot; a stream's goes on where the old one was, after `subscribed`.
5. The close code says whether to come back: `docs/reference/http.md` lists them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any

import msgspec
from aiohttp import web

from penstock.config import Limits
from penstock.errors import BadRequestError, PenstockError, PolicyError, UpgradeError
from penstock.observe.metrics import Observer
from penstock.observe.signals import RequestFailed, SocketClosed, SubscriberCut
from penstock.position import Position
from penstock.protocol import encode
from penstock.rights.guard import SUBPROTOCOL
from penstock.serve.fanout.messages import LARGE_BYTES, Message, error
from penstock.serve.fanout.receiver import PipeReceiver
from penstock.serve.replies import error_reply
from penstock.serve.subscribers import Named
from penstock.sockets import frames
from penstock.sockets.frames import close_frame, text_frame
from penstock.sockets.handshake import VERSION, agree
from penstock.sockets.pipe import Pipe
from penstock.sockets.wire import Wire, upgrade

RESTARTING = close_frame(frames.RESTARTING, "restarting: resume from your last position")
MESSAGE_BYTES = 64 * 1024
"""The longest message a client may send: a long `where`, not data."""
_KINDS = ("view", "stream", "channel")
MOST_SUBSCRIPTIONS = 1_000
"""On one socket; more belongs on several, or into one query."""
MOST_PER_S = 1_000.0
LEAST_PER_S = 0.01


class SocketReceiver(PipeReceiver):
    """One subscription on a socket."""

    __slots__ = (
        "_form",
        "_over",
        "_unpaced",
        "_way",
        "before",
        "deflates",
        "early_ack",
        "id",
        "named",
        "names",
        "of",
        "reached",
    )
    transport = "websocket"

    def __init__(self, pipe: Pipe, id: str, *, deflates: bool = False) -> None:
        super().__init__(pipe)
        self.id = id
        self.deflates = deflates
        self._form = _form(id, deflates)
        self._way: Pipe | _Nowhere = pipe
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
        frame = message.frames.get(self._form)
        return self._way.offer(message.frame(self._form) if frame is None else frame)

    async def send(self, message: Message) -> None:
        if self.deflates and len(message.payload) > LARGE_BYTES:
            await asyncio.to_thread(message.deflated)
        await self._pipe.drained()
        if not self._over:
            self._pipe.put(self.frame(message))

    def stop(self) -> None:
        """Nothing is written for it from here on."""
        self._over, self._way = True, _Nowhere()

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


@lru_cache(1024)
def _form(id: str, deflates: bool) -> tuple[str | None, bool]:
    """One object for all who chose the same id: a frame is found faster by what is not only equal but the same."""
    return id, deflates


class _Nowhere:
    """The way of a subscription that is over."""

    def offer(self, frame: bytes) -> bool:
        return True


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
        ask: Callable[[], None],
        observer: Observer,
        *,
        deflates: bool = False,
    ) -> None:
        """`defaults` are fields that a `subscribe` message on this socket need not have. `ask` is called for each, and
        raises `TooManyError` when the credential asks more often than it may."""
        self.wire: Wire
        self._pipe = pipe
        self._subscribe = subscribe
        self._defaults = dict(defaults)
        self._ask = ask
        self._observer = observer
        self._deflates = deflates
        self._resuming: asyncio.Task[None] | None = None
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
        if self._resuming is not None:
            tasks.append(self._resuming)
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
        self._ask()
        self._one_a_turn()
        receiver = SocketReceiver(self._pipe, id, deflates=self._deflates)
        receiver.names = fields.get("name") is not None
        if before is not None:
            receiver.before = self._stopped(before).passed_on()
        task = asyncio.create_task(self._serve(receiver, fields, before and before[1]), name=f"subscription {id}")
        self._open[id] = receiver, task
        task.add_done_callback(lambda done: self._over(id, done))

    def _one_a_turn(self) -> None:
        """A query takes a millisecond to understand, and a packet holds thousands: the next one waits until this one
        has begun and everybody else on the loop has had a turn."""
        self.wire.pause()
        asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        if self._resuming is None:
            self.wire.resume()

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
        if not self._pipe.put(frame) and self._resuming is None:
            self.wire.pause()
            self._resuming = asyncio.create_task(self._resume())

    async def _resume(self) -> None:
        """A client that does not read our answers is not read, until it has."""
        with suppress(ConnectionError):
            await self._pipe.drained()
            self._resuming = None
            self._go_on()

    def _fail(self, id: object, failure: PenstockError) -> None:
        self._reply(error(failure.body()).socket(id if isinstance(id, str) else None))

    def _fail_ack(self, id: object, failure: PenstockError) -> None:
        """Said so that nobody takes it for the end of the subscription."""
        self._reply(text_frame(encode(_only_id({"id": id}) | {"type": "error", "to": "ack", "error": failure.body()})))


def _read(text: str | bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
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


async def serve_socket(
    request: web.Request,
    subscribe: Subscribe,
    defaults: Mapping[str, str],
    ask: Callable[[], None],
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
    response = await upgrade(request, agreed)
    pipe = Pipe(
        request,
        limits.subscriber_bytes,
        lambda waiting, policy: _cut(observer, waiting, policy),
        stalled_s=limits.subscriber_cut_s,
    )
    opened(pipe)
    session = Session(pipe, subscribe, defaults, ask, observer, deflates=agreed.deflate)
    session.wire = Wire(
        request,
        pipe,
        lambda frame: session.take(frame.data),
        most_bytes=MESSAGE_BYTES,
        deflate=agreed.deflate,
        on_closed=lambda code: observer.emit(SocketClosed(code)),
        on_failed=lambda failure: observer.emit(RequestFailed("socket", f"{type(failure).__name__}: {failure}")),
    )
    session.wire.start()
    try:
        await session.wire.ended()
    finally:
        session.wire.close()
        await session.close()
    return response


def cut_socket(why: PenstockError) -> bytes:
    """The last frames of a socket that may not go on: an `error` message, and a close that says not to come back."""
    return error(why.body()).socket(None) + close_frame(frames.NOT_ANY_MORE, why.detail or why.message)


def _cut(observer: Observer, waiting: int, policy: str) -> bytes:
    observer.emit(SubscriberCut("websocket", waiting, policy))
    observer.emit(SocketClosed(frames.TOO_SLOW))
    return close_frame(frames.TOO_SLOW, "too slow: resume from your last position")
