"""A WebSocket client that writes whatever bytes a test wants and reads whole frames, without any library."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from penstock.sockets.frames import inflated

DEADLINE_S = 60.0


def frame(
    opcode: int, data: bytes = b"", *, fin: bool = True, rsv: int = 0, mask: bytes | None = b"\x01\x02\x03\x04"
) -> bytes:
    """A frame as a client writes it."""
    first = (0x80 if fin else 0) | (rsv << 4) | opcode
    masked = 0x80 if mask is not None else 0
    if len(data) < 126:
        head = bytes((first, masked | len(data)))
    elif len(data) < 65536:
        head = bytes((first, masked | 126)) + len(data).to_bytes(2, "big")
    else:
        head = bytes((first, masked | 127)) + len(data).to_bytes(8, "big")
    if mask is None:
        return head + data
    return head + mask + bytes(byte ^ mask[i % 4] for i, byte in enumerate(data))


class RawSocket:
    """A client that writes bytes and reads frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: str) -> None:
        self.reader, self.writer, self.head = reader, writer, head

    def write(self, *parts: bytes) -> None:
        self.writer.write(b"".join(parts))

    async def read(self) -> tuple[int, bytes] | None:
        """First byte and payload of the next frame; None when the connection ended. A reset is no end."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                first, length = await self.reader.readexactly(2)
                if length == 126:
                    length = int.from_bytes(await self.reader.readexactly(2), "big")
                elif length == 127:
                    length = int.from_bytes(await self.reader.readexactly(8), "big")
                return first, await self.reader.readexactly(length)
        except asyncio.IncompleteReadError:
            return None

    async def json(self) -> dict[str, object]:
        got = await self.read()
        assert got is not None
        first, payload = got
        assert first & 0x8F == 0x81, got
        data = inflated(payload, 10**7) if first & 0x40 else payload
        body: dict[str, object] = json.loads(data)
        return body

    async def end(self) -> list[tuple[int, bytes]]:
        """Everything up to the end of the connection."""
        frames = []
        while (got := await self.read()) is not None:
            frames.append(got)
        return frames


HANDSHAKE = {
    "Host": "x",
    "Upgrade": "websocket",
    "Connection": "keep-alive, Upgrade",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version": "13",
}


@asynccontextmanager
async def raw_socket(
    port: int, path: str, version: str = "1.1", receive_bytes: int | None = None, **headers: str | None
) -> AsyncIterator[RawSocket]:
    """Over a connection of its own; headers as keywords, None leaves one out."""
    connection = socket.socket()
    if receive_bytes is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=connection)
    given = HANDSHAKE | {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"GET {path} HTTP/{version}", *(f"{n}: {v}" for n, v in given.items() if v is not None), "", ""]
    writer.write("\r\n".join(lines).encode())
    try:
        async with asyncio.timeout(DEADLINE_S):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
        yield RawSocket(reader, writer, head)
    finally:
        writer.close()
