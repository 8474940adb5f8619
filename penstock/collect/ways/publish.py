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
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from aiohttp import WSCloseCode, WSMsgType, web

from penstock.clock import Clock
from penstock.collect.intake import Intake
from penstock.collect.judging.arrival import Decoded
from penstock.collect.judging.cutting import SLICE_BYTES
from penstock.collect.limits.pressure import Pressure
from penstock.collect.sender import Sender, sender_of
from penstock.collect.signals import CollectFailed, RequestRefused, Signals
from penstock.collect.ways import publish_messages as messages
from penstock.collect.ways.publish_messages import Hello, Ping, Publish
from penstock.collect.ways.replies import error_reply
from penstock.config import Limits
from penstock.errors import BadBodyError, PenstockError, TooLargeError
from penstock.log.control import producer_key
from penstock.log.log import Producer

PING_S = 30.0
GOODBYE_S = 2.0
MOST_EVENTS = 10_000
"""In one message, so that none holds up the others of its socket for long."""
OVER_WINDOW = 4029
INLINE_BYTES = SLICE_BYTES // 4

Still = Callable[[web.Request], None]


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
        self._sessions: set[Session] = set()

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
            return error_reply(error)
        sender = sender_of(request, "publish")
        socket = web.WebSocketResponse(
            timeout=GOODBYE_S,
            heartbeat=PING_S,
            compress=False,
            max_msg_size=self.limits.publish_bytes,
            decode_text=False,
        )
        await socket.prepare(request)
        session = Session(socket, intake, sender, lambda: self.still(request), self)
        self._sessions.add(session)
        try:
            await session.run()
        finally:
            self._sessions.discard(session)
        return socket

    async def end(self, app: web.Application | None = None) -> None:
        """Acknowledge what was read, and let the clients go."""
        await asyncio.gather(*(session.end() for session in list(self._sessions)))


class Session:
    """One socket."""

    def __init__(
        self,
        socket: web.WebSocketResponse,
        intake: Intake,
        sender: Sender,
        still: Callable[[], None],
        publishing: Publishing,
    ) -> None:
        self._socket, self._intake, self._sender, self._still = socket, intake, sender, still
        self._pressure, self._memory = publishing.pressure, publishing.memory
        self._limits, self._clock, self._signals = publishing.limits, publishing.clock, publishing.signals
        self._hello: Hello | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting_bytes = 0
        self._fewer = asyncio.Event()
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._said = asyncio.Event()
        self._quiet = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None
        self._ending = False
        self._over = asyncio.Event()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        self._say(messages.welcome(self._intake.stream.name, self._limits.publish_window, self._limits.publish_bytes))
        writing = loop.create_task(self._write())
        self._reading = loop.create_task(self._read())
        try:
            await asyncio.wait([self._reading])
            await self._settle(writing)
            if self._ending:
                await self._close(WSCloseCode.GOING_AWAY, "stopping: send again what has no ack")
        finally:
            self._reading.cancel()
            writing.cancel()
            await asyncio.gather(self._reading, writing, return_exceptions=True)
            self._over.set()

    async def end(self) -> None:
        """The edge stops: read no more, acknowledge, and say goodbye."""
        self._ending = True
        if self._reading is not None:
            self._reading.cancel()
            await self._over.wait()

    async def _close(self, code: int, reason: str) -> None:
        with suppress(ConnectionError, asyncio.TimeoutError):
            await self._socket.close(code=code, message=reason.encode())

    async def _settle(self, writing: asyncio.Task[None]) -> None:
        """Until every message that was read has its answer on the wire."""
        if self._tasks:
            await asyncio.wait(list(self._tasks))
        if not writing.done():
            await self._quiet.wait()

    # Reading

    async def _read(self) -> None:
        async for message in self._socket:
            if message.type == WSMsgType.BINARY:
                await self._close(WSCloseCode.UNSUPPORTED_DATA, "send JSON as text")
                return
            if message.type == WSMsgType.TEXT:
                if self._full() and not await self._until_fewer():
                    await self._close(
                        OVER_WINDOW, f"more than {self._limits.publish_window} messages or too many bytes wait"
                    )
                    return
                await self._take(message.data)

    def _full(self) -> bool:
        held = self._waiting_bytes + self._out_bytes
        return len(self._tasks) >= self._limits.publish_window or held >= self._limits.publish_bytes

    async def _until_fewer(self) -> bool:
        """Nothing is read meanwhile. False when it took too long."""
        deadline = asyncio.get_running_loop().time() + self._limits.publish_grace_s
        while self._full():
            self._fewer.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._fewer.wait()
            except TimeoutError:
                return False
        return True

    async def _take(self, text: bytes) -> None:
        """One message. Those of a socket are judged one after the other, so that their order stays."""
        try:
            asked = messages.read(text)
        except PenstockError as error:
            self._refuse(messages.id_of(text), error)
            return
        if isinstance(asked, Ping):
            self._say(messages.pong())
        elif isinstance(asked, Hello):
            self._hello = asked
            self._say(messages.resume(self._expected(asked)))
        else:
            await self._begin(asked, len(text))

    async def _begin(self, asked: Publish, size: int) -> None:
        received_us, hello = self._clock.now_us(), self._hello
        producer = None if hello is None else Producer(hello.producer, hello.epoch, asked.id)
        share = self._pressure.room.share(self._sender.account)
        try:
            self._still()
            self._pressure.guards[self._intake.stream.name].check(self._sender.account)
            if len(asked.events) > MOST_EVENTS:
                raise TooLargeError(f"a message holds at most {MOST_EVENTS} events", hint="send several messages")
            share.grow(size)
            share.hold(len(asked.events))
            decoded = await self._decode(asked, size)
        except PenstockError as error:
            share.close()
            self._refuse(asked.id, error)
            return
        except BaseException:  # the session ends meanwhile
            share.close()
            raise
        turns, account = self._pressure.turns, self._sender.account
        try:
            if not turns.begin(account, size):
                await turns.wait(account, size)
        except BaseException:
            share.close()
            raise
        self._waiting_bytes += size
        task = asyncio.get_running_loop().create_task(self._answer(asked.id, decoded, received_us, producer))

        def done(task: asyncio.Task[None]) -> None:
            share.close()
            turns.end(account, size)
            self._tasks.discard(task)
            self._waiting_bytes -= size
            self._fewer.set()

        self._tasks.add(task)
        task.add_done_callback(done)

    async def _decode(self, asked: Publish, size: int) -> Decoded:
        judge = self._intake.judge
        if size <= INLINE_BYTES:
            return judge.decode_each(asked.events)
        return await asyncio.to_thread(judge.decode_each, asked.events)

    async def _answer(self, id: int, decoded: Decoded, received_us: int, producer: Producer | None) -> None:
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
        self._out.append(message)
        self._out_bytes += len(message)
        self._said.set()
        self._quiet.clear()

    async def _write(self) -> None:
        try:
            while True:
                await self._said.wait()
                self._said.clear()
                out, self._out = self._out, []
                for message in out:
                    await self._socket.send_frame(message, WSMsgType.TEXT)
                    self._out_bytes -= len(message)
                    self._fewer.set()
                if not self._out:
                    self._quiet.set()
        except ConnectionError:
            return
        finally:
            self._quiet.set()
