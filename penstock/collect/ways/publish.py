"""Takes events in over a WebSocket: each message is acknowledged by its id when its events are on the disk.

1. An ack means what a 200 of the door means. An error is about one message, of which nothing was taken, and does not
   close the socket.
2. A client may have `window` messages waiting for their ack, and so many bytes of them and of answers that it has not
   read. Beyond it, it is not read (TCP makes it wait), and when that lasts it is closed with 4029.
3. After a `hello` the ids are the producer's sequence: a client that comes back sends what was not acknowledged
   again, and what was taken counts as duplicates.
4. When the edge stops, what was read is acknowledged first, then the socket is closed with 1001.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from aiohttp import web

from penstock.clock import Clock
from penstock.collect.intake import Intake
from penstock.collect.judging.incoming_events import DecodedEvents
from penstock.collect.judging.json_events import SLICE_BYTES
from penstock.collect.limits.pressure import Pressure
from penstock.collect.limits.room import RoomShare
from penstock.collect.sender import Sender, sender_of
from penstock.collect.ways import publish_messages as messages
from penstock.collect.ways.door_replies import error_reply
from penstock.collect.ways.publish_messages import Hello, Publish
from penstock.config import Limits
from penstock.errors import BadBodyError, PenstockError, TooLargeError, UpgradeError
from penstock.log.control import producer_key
from penstock.log.log import Producer
from penstock.observe.signals import CollectFailed, PublisherClosed, RequestRefused, Signals
from penstock.rights.credential import credential_of, heard_by
from penstock.rights.guard import SUBPROTOCOL
from penstock.sockets import frames
from penstock.sockets.frames import Frame, close_frame, text_frame
from penstock.sockets.handshake import VERSION, agree
from penstock.sockets.pipe import Pipe
from penstock.sockets.wire import Wire, upgrade

GOODBYE_S = 2.0
MOST_EVENTS = 10_000
"""In one message, so that none holds up the others of its socket for long."""
OVER_WINDOW = 4029
INLINE_BYTES = SLICE_BYTES // 4

Still = Callable[[web.Request], None]
Later = Callable[[], Awaitable[None]]
"""What must be done before the next message is read."""


class Publishing:
    """The handler of `GET /streams/{stream}/publish`; lives on the edge's loop."""

    def __init__(
        self,
        find: Callable[[str], Intake],
        pressure: Pressure,
        memory: Mapping[str, Any],
        limits: Limits,
        clock: Clock,
        signals: Signals,
        still: Still = lambda request: None,
    ) -> None:
        """`find` raises what a POST to a stream of that name would be answered with; `still` is asked before each
        message and raises when the sender may no longer write: a socket can outlive its key."""
        self._find, self.pressure, self.memory = find, pressure, memory
        self.limits, self.clock, self.signals = limits, clock, signals
        self.still = still
        self._sessions: set[PublishSession] = set()

    @property
    def open(self) -> int:
        return len(self._sessions)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Talk until the client leaves, or this edge stops."""
        name = request.match_info["stream"]
        try:
            intake = self._find(name)
        except PenstockError as error:
            self.signals(RequestRefused("", error.code))
            return error_reply(heard_by(credential_of(request), error))
        try:
            handshake = agree(request, SUBPROTOCOL)
        except PenstockError as error:
            self.signals(RequestRefused(name, error.code))
            return error_reply(error, VERSION if isinstance(error, UpgradeError) else {})
        response = await upgrade(request, handshake)
        pipe = Pipe(request, self.limits.publish_bytes, self._cut, stalled_s=self.limits.subscriber_cut_s)
        session = PublishSession(pipe, intake, sender_of(request, "publish"), lambda: self.still(request), self)
        session.wire = Wire(
            request,
            pipe,
            session.take,
            most_bytes=self.limits.publish_bytes,
            deflate=handshake.deflate,
            on_closed=lambda code: self.signals(PublisherClosed(code)),
            on_failed=lambda failure: self.signals(CollectFailed("publish", failure)),
        )
        self._sessions.add(session)
        try:
            await session.run()
        finally:
            self._sessions.discard(session)
        return response

    def _cut(self, waiting: int, policy: str) -> bytes:
        """For a client that has not read its acks for so long."""
        self.signals(PublisherClosed(OVER_WINDOW))
        return close_frame(OVER_WINDOW, "answers are not read: send again what has no ack")

    async def end(self, app: web.Application | None = None) -> None:
        """Acknowledge what was read, and let the clients go."""
        await asyncio.gather(*(session.end() for session in list(self._sessions)))


class PublishSession:
    """One socket. Its messages are judged one after the other, so that their order stays: while one waits, whether for
    room, for a thread or for its turn, the wire is paused."""

    def __init__(
        self,
        pipe: Pipe,
        intake: Intake,
        sender: Sender,
        still: Callable[[], None],
        publishing: Publishing,
    ) -> None:
        self.wire: Wire
        self._pipe, self._intake, self._sender, self._still = pipe, intake, sender, still
        self._pressure, self._memory = publishing.pressure, publishing.memory
        self._limits, self._clock, self._signals = publishing.limits, publishing.clock, publishing.signals
        self._hello: Hello | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting_bytes = 0
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._fewer = asyncio.Event()
        self._later: asyncio.Task[None] | None = None
        self._waits: RoomShare | None = None
        """Of the message that waits."""
        self._over = asyncio.Event()

    async def run(self) -> None:
        self._say(messages.welcome(self._intake.stream.name, self._limits.publish_window, self._limits.publish_bytes))
        self.wire.start()
        try:
            await self.wire.ended()
        finally:
            self.wire.close()
            await self._settled()
            self._over.set()

    async def end(self) -> None:
        """The edge stops: read no more, acknowledge, and say goodbye."""
        self.wire.pause()
        await self._settled()
        self._flush()
        with suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(GOODBYE_S):
                await self._pipe.drained()
        self._pipe.end(close_frame(frames.GOING_AWAY, "stopping: send again what has no ack"))
        await self._over.wait()

    async def _settled(self) -> None:
        """Until every message that was taken has its answer; one that waits is not taken."""
        if self._later is not None:
            self._later.cancel()
            await asyncio.wait([self._later])
        if self._waits is not None:
            self._waits.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # Reading

    def take(self, frame: Frame) -> None:
        """One message, from the wire."""
        if frame.opcode != frames.TEXT:
            self.wire.finish(frames.NOT_THIS, "send JSON as text")
            return
        later = partial(self._when_fewer, frame.data) if self._full() else self._taken(frame.data)
        if later is not None:
            self.wire.pause()
            self._later = asyncio.get_running_loop().create_task(self._go_on_after(later))

    async def _go_on_after(self, later: Later) -> None:
        try:
            await later()
        except Exception as failure:
            self._signals(CollectFailed("publish", failure))
            self.wire.finish(frames.INTERNAL, "something went wrong in the server")
        self._later = None
        self.wire.resume()

    def _full(self) -> bool:
        held = self._waiting_bytes + self._out_bytes + self._pipe.unsent_bytes
        return len(self._tasks) >= self._limits.publish_window or held >= self._limits.publish_bytes

    async def _when_fewer(self, text: bytes) -> None:
        try:
            async with asyncio.timeout(self._limits.publish_grace_s):
                while self._full():
                    self._flush()
                    self._fewer.clear()
                    await (self._fewer.wait() if self._tasks else self._pipe.drained())
        except TimeoutError:
            most = self._limits.publish_window
            self.wire.finish(OVER_WINDOW, f"more than {most} messages or too many bytes wait")
        except ConnectionError:
            return
        else:
            later = self._taken(text)
            if later is not None:
                await later()

    def _taken(self, text: bytes) -> Later | None:
        """Take a message, or say what must be waited for first."""
        try:
            message = messages.read(text)
        except PenstockError as error:
            self._refuse(messages.id_of(text), error)
            return None
        if isinstance(message, Publish):
            return self._begin(message, len(text))
        if isinstance(message, Hello):
            self._hello = message
            self._say(messages.resume(self._expected(message)))
        else:
            self._say(messages.pong())
        return None

    def _begin(self, message: Publish, size: int) -> Later | None:
        self._waits = share = self._pressure.room.share(self._sender.account)
        begun = _Begun(message, size, self._clock.now_us(), self._producer(message.id), share)
        try:
            self._still()
            self._pressure.guards[self._intake.stream.name].check(self._sender.account)
            if len(message.events) > MOST_EVENTS:
                raise TooLargeError(f"a message holds at most {MOST_EVENTS} events", hint="send several messages")
            share.grow(size)
            share.hold(len(message.events))
            if size > INLINE_BYTES:
                return partial(self._decode_apart, begun)
            decoded = self._intake.judge.decode_each(message.events)
        except PenstockError as error:
            share.close()
            self._refuse(message.id, error)
            return None
        if self._pressure.turns.begin(self._sender.account, size):
            self._start(begun, decoded)
            return None
        return partial(self._wait_for_turn, begun, decoded)

    async def _decode_apart(self, begun: _Begun) -> None:
        try:
            decoded = await asyncio.to_thread(self._intake.judge.decode_each, begun.message.events)
        except PenstockError as error:
            begun.share.close()
            self._refuse(begun.message.id, error)
        else:
            await self._wait_for_turn(begun, decoded)

    async def _wait_for_turn(self, begun: _Begun, decoded: DecodedEvents) -> None:
        turns, account = self._pressure.turns, self._sender.account
        if not turns.begin(account, begun.size):
            await turns.wait(account, begun.size)
        self._start(begun, decoded)

    def _start(self, begun: _Begun, decoded: DecodedEvents) -> None:
        size, account = begun.size, self._sender.account
        self._waits = None
        self._waiting_bytes += size
        task = asyncio.get_running_loop().create_task(
            self._answer(begun.message.id, decoded, begun.received_us, begun.producer)
        )

        def done(task: asyncio.Task[None]) -> None:
            begun.share.close()
            self._pressure.turns.end(account, size)
            self._tasks.discard(task)
            self._waiting_bytes -= size
            self._fewer.set()

        self._tasks.add(task)
        task.add_done_callback(done)

    def _producer(self, sequence: int) -> Producer | None:
        return None if self._hello is None else Producer(self._hello.producer, self._hello.epoch, sequence)

    async def _answer(self, id: int, decoded: DecodedEvents, received_us: int, producer: Producer | None) -> None:
        try:
            self._say(messages.ack(id, await self._intake.take(decoded, received_us, self._sender, producer)))
        except PenstockError as error:
            self._refuse(id, error)
        except Exception as error:
            self._signals(CollectFailed("publish", error))
            self._say(messages.failed(id, PenstockError("the server met an error of its own", hint="see its log")))

    def _expected(self, hello: Hello) -> int:
        """The sequence that comes next from this producer; 0 in a new epoch."""
        mark = self._memory.get(producer_key(self._intake.stream, Producer(hello.producer, hello.epoch, 0)))
        return int(mark[1]) + 1 if mark and int(mark[0]) == hello.epoch else 0

    # Writing

    def _refuse(self, id: Any, error: PenstockError) -> None:
        if not isinstance(error, BadBodyError):
            self._signals(RequestRefused(self._intake.stream.name, error.code))
        self._say(messages.failed(id, error))

    def _say(self, message: bytes) -> None:
        """With all that is said in this turn of the loop: a commit acknowledges many, and a write is a system call."""
        if not self._out:
            asyncio.get_running_loop().call_soon(self._flush)
        frame = text_frame(message)
        self._out.append(frame)
        self._out_bytes += len(frame)

    def _flush(self) -> None:
        if self._out:
            out, self._out, self._out_bytes = self._out, [], 0
            self._pipe.put(b"".join(out))


class _Begun(NamedTuple):
    """A message that has its share of the room."""

    message: Publish
    size: int
    received_us: int
    producer: Producer | None
    share: RoomShare
