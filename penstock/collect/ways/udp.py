"""Reads datagrams into streams: one JSON event per datagram, or several, one per line, with nobody to answer.

1. What arrived in the process is received: taken, known, dead or shed. A full queue sheds, and says so, and so does
   an error. When the edge stops, what was read is written, though a view lags or its sender sends too much.
2. What the kernel dropped before, because the process was too slow to read, was never received; it is read out of
   `/proc/net/udp` and shown beside the counts, so that this loss is visible too.
3. Datagrams wait in a bounded queue while the log is full or a view lags.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock.clock import Clock
from penstock.collect.intake import Intake
from penstock.collect.judging.json_events import MOST_REJECTED, SLICE_BYTES, lines_of
from penstock.collect.sender import Sender
from penstock.config import Limits
from penstock.declaration import UdpDef
from penstock.errors import DeclarationError, OutcomeUnknownError, PenstockError, PortInUseError, TooManyError
from penstock.observe.signals import CollectFailed, ReceiptLost, Signals

SOCKET_BYTES = 8 * 1024**2
"""What the kernel is asked to hold for us, twice 0.1 s of a fast network; it gives as much as `net.core.rmem_max`."""
TOGETHER_BYTES = 512 * 1024
"""Datagrams that are judged and written together, at most."""
TOGETHER_EVENTS = MOST_REJECTED // 2
"""So few that none are refused together, were they all garbage."""
LONGEST_WAIT_S = 1.0

MOMENT_US = 100_000
"""Datagrams of one address that came within it are taken as having come together, with the first."""

_Datagram = tuple[bytes, str, int]
"""With where it came from, and when."""


_Together = tuple[int, list[bytes]]
"""Events that came together, and when."""


class Udp:
    """One port into one stream; lives on the edge's loop."""

    def __init__(self, declared: UdpDef, intake: Intake, limits: Limits, clock: Clock, signals: Signals) -> None:
        self._declared, self._intake = declared, intake
        self._most, self._clock, self._signals = limits.udp_bytes, clock, signals
        self._queue: deque[_Datagram] = deque()
        self._queued = 0
        self._dropped = 0
        self._arrived = asyncio.Event()
        self._transport: asyncio.DatagramTransport | None = None
        self._socket: socket.socket | None = None
        self._task: asyncio.Task[None] | None = None
        self._ending = False
        self.port = declared.port

    def check(self, secured: bool) -> None:
        """Raises `DeclarationError` where events without a key would get into an app that asks for keys."""
        declared = self._declared
        if secured and not declared.open:
            raise DeclarationError(
                f"{declared.place}: this app has keys, and the UDP port {declared.port} takes events without one",
                hint="add open=True to app.udp(...) if that is meant, or remove it",
            )

    async def start(self) -> None:
        """Raises `PortInUseError`."""
        loop = asyncio.get_running_loop()
        self._socket = self._bound()
        self.port = self._socket.getsockname()[1]
        self._transport, _ = await loop.create_datagram_endpoint(lambda: _Protocol(self._put), sock=self._socket)
        self._task = loop.create_task(self._keep_taking(), name=f"udp {self.port}")

    async def close(self) -> None:
        """Stop reading, and write what was read."""
        if self._transport is None or self._task is None:
            return
        self._transport.close()
        self._ending = True
        self._arrived.set()
        await self._task

    def status(self) -> dict[str, Any]:
        """For `/status`: `kernel_drops` are datagrams that the system dropped before we could read them."""
        return {
            "stream": self._declared.stream,
            "host": self._declared.host,
            "port": self.port,
            "queued_bytes": self._queued,
            "kernel_drops": self.kernel_drops(),
        }

    def kernel_drops(self) -> int | None:
        """None where the system does not tell."""
        if self._socket is None or self._socket.fileno() < 0:
            return None
        return kernel_drops(self._socket)

    def _bound(self) -> socket.socket:
        declared = self._declared
        family = socket.AF_INET6 if ":" in declared.host else socket.AF_INET
        port = socket.socket(family, socket.SOCK_DGRAM)
        try:
            port.setblocking(False)
            port.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BYTES)
            port.bind((declared.host, declared.port))
        except OSError as error:
            port.close()
            raise PortInUseError(
                f"{declared.place}: the UDP port {declared.host}:{declared.port} cannot be opened",
                detail=str(error),
                hint="end the program that has it, or declare another port",
            ) from None
        return port

    # Arriving

    def _put(self, data: bytes, address: str) -> None:
        if self._queued + len(data) > self._most:
            self._dropped += len(lines_of(data))
        else:
            self._queue.append((data, address, self._clock.now_us()))
            self._queued += len(data)
        self._arrived.set()

    # Taking

    async def _keep_taking(self) -> None:
        while not (self._ending and not self._queue and not self._dropped):
            await self._arrived.wait()
            self._arrived.clear()
            try:
                while self._queue or self._dropped:
                    await self._take()
            except Exception as error:  # the next datagram must find somebody
                self._signals(CollectFailed(f"udp/{self.port}", error))
                if self._ending:
                    self._lose(error)
                    return
                await asyncio.sleep(LONGEST_WAIT_S)
                self._arrived.set()

    def _lose(self, error: Exception) -> None:
        """The log takes nothing, not even a count, and this process ends."""
        events = self._dropped + sum(len(lines_of(data)) for data, _, _ in self._queue)
        self._signals(ReceiptLost(self._declared.stream, "udp", error, events))

    async def _take(self) -> None:
        dropped, self._dropped = self._dropped, 0
        by_address: dict[str, list[_Together]] = {}
        size = 0
        while self._queue and size < TOGETHER_BYTES:
            data, address, received_us = self._queue.popleft()
            size += len(data)
            _gather(by_address.setdefault(address, []), lines_of(data), received_us)
        takes = [self._until_taken(Sender("udp", address), groups) for address, groups in by_address.items()]
        if dropped:
            takes.append(self._until_dropped(dropped))
        ended = await asyncio.gather(*takes, return_exceptions=True)
        self._queued -= size
        for error in ended:
            if error is not None:
                raise error

    async def _until_taken(self, sender: Sender, groups: list[_Together]) -> None:
        for at, (received_us, raws) in enumerate(groups):
            try:
                await self._until_some_taken(sender, raws, received_us)
            except Exception:
                self._dropped += sum(len(more) for _, more in groups[at:])
                raise

    async def _until_some_taken(self, sender: Sender, raws: list[bytes], received_us: int) -> None:
        judge = self._intake.judge
        decoded = (
            judge.decode_each(raws)
            if sum(map(len, raws)) <= SLICE_BYTES // 4
            else await asyncio.to_thread(judge.decode_each, raws)
        )
        try:
            await self._trying(lambda: self._intake.take(decoded, received_us, sender, anyway=self._ending))
        except TooManyError:
            await self._until_counted(sender, len(raws))

    async def _until_dropped(self, events: int) -> None:
        try:
            await self._until_counted(Sender("udp"), events)
        except Exception:
            self._dropped += events
            raise

    async def _until_counted(self, sender: Sender, events: int) -> None:
        await self._trying(lambda: self._intake.drop(events, sender))

    async def _trying(self, write: Callable[[], Any]) -> None:
        """Nobody can be told to come again, so that it is tried until it works, while the queue fills behind it."""
        wait_s = 0.05
        while True:
            try:
                await write()
                return
            except OutcomeUnknownError:  # it goes on; a second time it would be written twice
                return
            except TooManyError:
                raise
            except PenstockError as error:
                if not error.retry or self._ending:
                    raise
            await asyncio.sleep(wait_s)
            wait_s = min(LONGEST_WAIT_S, wait_s * 2)


def _gather(groups: list[_Together], lines: list[bytes], received_us: int) -> None:
    """Put the events of a datagram to those that came just before, never too many together."""
    for start in range(0, len(lines), TOGETHER_EVENTS):
        some = lines[start : start + TOGETHER_EVENTS]
        late = not groups or received_us - groups[-1][0] > MOMENT_US
        if late or len(groups[-1][1]) + len(some) > TOGETHER_EVENTS:
            groups.append((received_us, []))
        groups[-1][1].extend(some)


class _Protocol(asyncio.DatagramProtocol):
    def __init__(self, put: Callable[[bytes, str], None]) -> None:
        self._put = put

    def datagram_received(self, data: bytes, addr: tuple[Any, ...]) -> None:
        self._put(data, str(addr[0]))


class Udps:
    """All UDP ports of an app."""

    def __init__(
        self,
        declared: tuple[UdpDef, ...],
        intakes: Mapping[str, Intake],
        limits: Limits,
        clock: Clock,
        signals: Signals,
    ) -> None:
        self._ports = [Udp(d, intakes[d.stream], limits, clock, signals) for d in declared]

    async def start(self, *, secured: bool = False) -> None:
        """Raises `PortInUseError`, and `DeclarationError` for a port that is not open in an app that has keys."""
        for udp in self._ports:
            udp.check(secured)
        for udp in self._ports:
            await udp.start()

    async def secure(self) -> list[DeclarationError]:
        """The app has its first key from now on: close the ports that it must not have, and say why of each."""
        why = []
        for udp in self._ports:
            try:
                udp.check(secured=True)
            except DeclarationError as error:
                why.append(error)
                with suppress(PenstockError):
                    await udp.close()
        return why

    async def close(self) -> None:
        for udp in self._ports:
            with suppress(PenstockError):
                await udp.close()

    def status(self) -> list[dict[str, Any]]:
        return [udp.status() for udp in self._ports]

    def drops(self) -> dict[tuple[str, ...], float]:
        """By stream and port, for the gauge."""
        return {(s["stream"], str(s["port"])): float(s["kernel_drops"] or 0) for s in self.status()}


_TABLES = {socket.AF_INET: Path("/proc/net/udp"), socket.AF_INET6: Path("/proc/net/udp6")}
_INODE, _DROPS = 9, 12


def kernel_drops(listening: socket.socket) -> int | None:
    """How many datagrams the kernel has dropped before we could read them; None where the system does not tell."""
    table = _TABLES.get(listening.family)
    try:
        inode = str(os.fstat(listening.fileno()).st_ino)
        lines = table.read_text().splitlines()[1:] if table else []
    except OSError:
        return None
    ours = [columns for columns in map(str.split, lines) if len(columns) > _DROPS and columns[_INODE] == inode]
    return int(ours[0][_DROPS]) if ours else None
