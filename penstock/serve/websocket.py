"""Serves many subscriptions over one WebSocket: JSON text in, the messages of the wire contract out, each with its id.

1. A message that cannot be read or served is answered with an `error` message; the connection stays open.
2. Messages of one subscription keep their order; subscriptions on one socket do not wait for each other.
3. A socket that is too slow is closed with 4008 and can resume every subscription from its last position.
4. A socket whose credential was revoked or has expired is told so and closed with 4401.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from aiohttp import WSMsgType, web

from penstock.errors import BadRequestError, PenstockError
from penstock.observe.metrics import Observer
from penstock.observe.signals import RequestFailed, SubscriberCut
from penstock.protocol import encode
from penstock.rights.guard import SUBPROTOCOL
from penstock.serve.delivery import Pipe, close_frame, socket_frame
from penstock.serve.messages import Message, error

TOO_SLOW = close_frame(4008, "too slow: resume from your last position")
RESTARTING = close_frame(1001, "restarting: resume from your last position")
NOT_ANY_MORE = 4401
"""Close code: the credential was revoked or has expired; reconnecting with it does not help."""
PING_S = 30.0
GOODBYE_S = 2.0
"""How long a client may take to answer a close."""
MESSAGE_BYTES = 64 * 1024
"""The longest message a client may send: a long `where`, not data."""
_KINDS = ("view", "stream", "channel")
MOST_SUBSCRIPTIONS = 1_000
"""On one socket; more belongs on several, or into one query."""


class SocketReceiver:
    """One subscription on a socket."""

    transport = "websocket"

    def __init__(self, pipe: Pipe, id: str) -> None:
        self._pipe = pipe
        self._id = id

    def offer(self, message: Message) -> None:
        self._pipe.offer(message.socket(self._id))

    async def send(self, message: Message) -> None:
        await self._pipe.send(message.socket(self._id))


Subscribe = Callable[[Mapping[str, Any], SocketReceiver], Awaitable[None]]
"""Serves what a `subscribe` message asks for until cancelled; raises `PenstockError` when it cannot."""


class Session:
    """The conversation on one socket."""

    def __init__(self, pipe: Pipe, subscribe: Subscribe, defaults: Mapping[str, str], observer: Observer) -> None:
        """`defaults` are fields that a `subscribe` message on this socket need not have."""
        self._pipe = pipe
        self._subscribe = subscribe
        self._defaults = dict(defaults)
        self._observer = observer
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def take(self, text: str | bytes) -> None:
        """One message of the client's."""
        fields: dict[str, Any] = {}
        try:
            fields = _read(text)
            self._act(fields)
        except PenstockError as failure:
            self._fail(fields.get("id"), failure)

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _act(self, fields: dict[str, Any]) -> None:
        kind = fields.get("type")
        if kind == "subscribe":
            self._begin(self._completed(fields))
        elif kind == "unsubscribe":
            self._end(_id(self._completed(fields)))
        elif kind == "ping":
            self._pipe.offer(socket_frame(encode({"type": "pong"} | _only_id(fields))))
        else:
            raise BadRequestError(
                f"a message of type '{str(kind)[:50]}' is not known", hint="send subscribe, unsubscribe or ping"
            )

    def _completed(self, fields: dict[str, Any]) -> dict[str, Any]:
        """A message that names what it is about stands by itself; any other is about this socket's own."""
        return fields if any(fields.get(kind) for kind in _KINDS) else self._defaults | fields

    def _begin(self, fields: dict[str, Any]) -> None:
        id = _id(fields)
        if id in self._tasks:
            raise BadRequestError(
                f"the id '{id}' is in use on this socket", hint="unsubscribe first, or choose another"
            )
        if len(self._tasks) >= MOST_SUBSCRIPTIONS:
            raise BadRequestError(
                f"this socket has {MOST_SUBSCRIPTIONS} subscriptions", hint="open another socket, or ask with a where"
            )
        task = self._tasks[id] = asyncio.create_task(self._serve(id, fields), name=f"subscription {id}")
        task.add_done_callback(lambda done: self._tasks.pop(id, None) if self._tasks.get(id) is done else None)

    def _end(self, id: str) -> None:
        task = self._tasks.pop(id, None)
        if task is None:
            raise BadRequestError(f"there is no subscription '{id}' on this socket")
        task.cancel()

    async def _serve(self, id: str, fields: Mapping[str, Any]) -> None:
        try:
            await self._subscribe(fields, SocketReceiver(self._pipe, id))
        except PenstockError as failure:
            self._fail(id, failure)
        except ConnectionError:
            self._pipe.close()
        except Exception as failure:
            self._observer.emit(RequestFailed("socket", f"{type(failure).__name__}: {failure}"))
            self._fail(id, PenstockError("something went wrong in the server", hint="its log says what"))

    def _fail(self, id: object, failure: PenstockError) -> None:
        self._pipe.offer(error(failure.body()).socket(id if isinstance(id, str) else None))


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


async def serve_socket(
    request: web.Request,
    subscribe: Subscribe,
    defaults: Mapping[str, str],
    *,
    bound_bytes: int,
    observer: Observer,
    opened: Callable[[Pipe], None] = lambda pipe: None,
) -> web.WebSocketResponse:
    """Talk until the client leaves or is cut."""
    socket = web.WebSocketResponse(
        timeout=GOODBYE_S,
        heartbeat=PING_S,
        compress=False,
        max_msg_size=MESSAGE_BYTES,
        protocols=(SUBPROTOCOL,),
    )
    await socket.prepare(request)
    pipe = Pipe(request, bound_bytes, lambda waiting: _cut(observer, waiting))
    opened(pipe)
    session = Session(pipe, subscribe, defaults, observer)
    try:
        async for message in socket:
            if message.type in (WSMsgType.TEXT, WSMsgType.BINARY):
                session.take(message.data)
    finally:
        pipe.close()
        await session.close()
    return socket


def cut_socket(why: PenstockError) -> bytes:
    """The last frames of a socket that may not go on: an `error` message, and a close that says not to come back."""
    return error(why.body()).socket(None) + close_frame(NOT_ANY_MORE, (why.detail or why.message)[:60])


def _cut(observer: Observer, waiting: int) -> bytes:
    observer.emit(SubscriberCut("websocket", waiting))
    return TOO_SLOW
