"""Follows over Server-Sent Events, for networks that let plain HTTP through and nothing else."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator

import msgspec

from penstock.client.asking import Asking
from penstock.client.http_calls import HttpCalls
from penstock.client.refusing import Passing, told
from penstock.errors import UnreachableError
from penstock.protocol import Message

_decode = msgspec.json.Decoder(dict).decode


class OverEvents:
    """The transport `sse`. The server sends a comment every 15 s."""

    def __init__(self, calls: HttpCalls, idle_s: float) -> None:
        self._calls, self._idle_s = calls, idle_s

    async def messages(self, asking: Asking, since: str | None) -> AsyncGenerator[Message, None]:
        parameters = asking.parameters()
        if since is not None:
            parameters["after" if asking.kind == "stream" else "last_event_id"] = since
        blocks = Blocks()
        async with self._calls.events(f"{asking.path}/events", parameters, self._idle_s) as content:
            while data := await content.readany():
                for message in blocks.feed(data):
                    if message.get("type") == "error":
                        raise told(message.get("error") or {})
                    yield message
        raise Passing(UnreachableError("the server ended the stream of events"))


class Blocks:
    """Cuts bytes into events: blocks of lines between empty ones; a line that begins with a colon is a heartbeat."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._data: list[bytes] = []
        self._id: bytes | None = None

    def feed(self, data: bytes) -> Iterator[Message]:
        """The messages that are complete with these bytes.

        >>> blocks = Blocks()
        >>> list(blocks.feed(b'id: p1\\ndata: {"type":"ch')), list(blocks.feed(b'anges"}\\n\\nid: p2\\n\\n'))
        ([], [{'type': 'changes'}, {'type': 'position', 'position': 'p2'}])
        """
        *lines, rest = data.split(b"\n")
        for line in lines:
            whole = b"".join((*self._rest, line))
            self._rest = []
            if (message := self._line(whole.removesuffix(b"\r"))) is not None:
                yield message
        if rest:
            self._rest.append(rest)

    def _line(self, line: bytes) -> Message | None:
        if not line:
            return self._block()
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
        elif name == b"id":
            self._id = value.removeprefix(b" ")
        return None

    def _block(self) -> Message | None:
        data, id = self._data, self._id
        self._data, self._id = [], None
        if data:
            try:
                message: Message = _decode(b"\n".join(data))
            except msgspec.MsgspecError:
                raise Passing(UnreachableError("the server sent something that is no message")) from None
            return message
        return None if id is None else {"type": "position", "position": id.decode()}
