"""Plays the transcripts of a document against a real edge, line by line, and says where they part.

A line of a transcript begins with what it is:

    * batch + {row} - {key}     the flow commits a batch of the view `topics`; `* rebuild + {row}` builds it anew
    * time passes               15 s without a message: those are told their position who know of less
    WS /path                    open a WebSocket; `> ` and `< ` are then what the client and the server say
    SSE /path                   open a stream of events; `< ` is then a line of it. Comments are left out
    GET /path, POST /path BODY  a request; `= 200 BODY` is the reply
    close CODE                  the server closes the socket with this code; `leave`: the client goes

A header of the request may stand in lines of its own behind it, with four blanks. `<name>` in a JSON text is a token:
whatever it is where it is first seen, and the same again wherever the name stands.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from aiohttp import ClientResponse, ClientWebSocketResponse, WSMsgType
from edge import DEADLINE_S, eventually
from test_openapi import Edge

_TOKEN = re.compile(r"<([a-z]\w*)>")
_JSON = json.JSONDecoder()


class Differs(AssertionError):
    """The edge did something else."""


@dataclass
class Tokens:
    """What the names in angle brackets stand for."""

    known: dict[str, str] = field(default_factory=dict)

    def filled(self, text: str) -> str:
        return _TOKEN.sub(lambda match: self.known.get(match[1], match[0]), text)

    def match(self, wanted: Any, found: Any, path: str = "") -> None:
        """Raises `Differs` where they differ; names that are new are learned."""
        if isinstance(wanted, str) and (name := _TOKEN.fullmatch(wanted)) and isinstance(found, str):
            wanted = self.known.setdefault(name[1], found)
        if isinstance(wanted, dict) and isinstance(found, dict):
            if wanted.keys() != found.keys():
                raise Differs(f"{path}: fields {sorted(found)} instead of {sorted(wanted)}")
            for key in wanted:
                self.match(wanted[key], found[key], f"{path}.{key}")
        elif isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
            for at, (one, other) in enumerate(zip(wanted, found, strict=True)):
                self.match(one, other, f"{path}[{at}]")
        elif wanted != found:
            raise Differs(f"{path}: {found!r} instead of {wanted!r}")


class Player:
    """One transcript against one edge."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self._stream = edge.flows.build()
        self._offset = 0
        self._tokens = Tokens()
        self._socket: ClientWebSocketResponse | None = None
        self._events: ClientResponse | None = None
        self._reply: tuple[int, str] | None = None
        self.noted: list[Any] = []
        """Everything that was said by the edge, for whoever wants to look at it too."""

    async def play(self, text: str) -> None:
        async with AsyncExitStack() as opened:
            self._opened = opened
            for number, (line, headers) in enumerate(_lines(text), 1):
                try:
                    async with asyncio.timeout(DEADLINE_S):
                        await self._step(line, headers)
                except (Differs, TimeoutError, ValueError) as problem:
                    raise Differs(f"step {number}: {line}\n  {type(problem).__name__} {problem}") from None

    async def _step(self, line: str, headers: dict[str, str]) -> None:
        what, _, rest = line.partition(" ")
        filled = self._tokens.filled(rest)
        if what == "*":
            await self._happen(rest)
        elif what == "WS":
            protocols = [p.strip() for p in headers.pop("Sec-WebSocket-Protocol", "").split(",") if p.strip()]
            opening = self._edge.http.ws_connect(filled, protocols=protocols, headers=headers, max_msg_size=0)
            self._socket, self._events = await self._opened.enter_async_context(opening), None
        elif what == "SSE":
            filled_headers = {name: self._tokens.filled(value) for name, value in headers.items()}
            asking = self._edge.http.get(filled, headers=filled_headers)
            self._events, self._socket = await self._opened.enter_async_context(asking), None
        elif what in ("GET", "POST", "PATCH", "DELETE"):
            await self._ask(what, filled, headers)
        elif what == "=":
            self._compare_reply(rest)
        elif what == ">":
            await self._said(filled)
        elif what == "<":
            await self._heard(rest)
        elif what == "close":
            await self._closed(int(rest))
        elif what == "leave":
            await self._leave()
        else:
            raise Differs(f"'{what}' means nothing")

    # What happens in the server

    async def _happen(self, what: str) -> None:
        kind, _, rest = what.partition(" ")
        if kind == "time":
            await self._time_passes()
            return
        upserts, deletes = _changes(rest)
        if kind == "rebuild":
            self._stream, self._offset = self._edge.flows.build(live=False), 0
        elif kind != "batch":
            raise Differs(f"'{kind}' means nothing")
        self._edge.flows.commit(self._stream, upserts, [{"rsvps": 0, "group": "", **key} for key in deletes])
        self._offset += 1
        if kind == "rebuild":
            self._edge.flows.serve("topics", self._stream.epoch)
        await self._until_applied()

    async def _until_applied(self) -> None:
        view = self._edge.views.view("topics")

        def there() -> bool:
            content = view.content
            return content is not None and content.epoch == self._stream.epoch and content.offset >= self._offset

        assert await view.until(there, DEADLINE_S), "the view does not move"

    async def _time_passes(self) -> None:
        groups = self._edge.serving.hub._groups
        await eventually(lambda: all(g.cursor >= self._offset for g in groups.values() if g.members), "level")
        await self._edge.serving.hub.announce_all()

    # What is said

    async def _ask(self, method: str, asked: str, headers: dict[str, str]) -> None:
        path, _, body = asked.partition(" ")
        if body:
            headers = {"Content-Type": "application/json", **headers}
        headers = {name: self._tokens.filled(value) for name, value in headers.items()}
        async with self._edge.http.request(method, path, data=body or None, headers=headers) as reply:
            self._reply = reply.status, await reply.text()

    def _compare_reply(self, wanted: str) -> None:
        assert self._reply is not None, "nothing was asked"
        status, _, body = wanted.partition(" ")
        found = self._reply
        if int(status) != found[0]:
            raise Differs(f"{found[0]}: {found[1][:300]}")
        if body:
            self.noted.append(json.loads(found[1]))
            self._tokens.match(json.loads(body), self.noted[-1])

    async def _said(self, text: str) -> None:
        assert self._socket is not None, "no socket is open"
        await self._socket.send_str(text)

    async def _heard(self, wanted: str) -> None:
        if self._socket is not None:
            message = await self._socket.receive()
            if message.type is not WSMsgType.TEXT:
                raise Differs(f"{message.type}, {message.data}")
            self.noted.append(json.loads(message.data))
            self._tokens.match(json.loads(wanted), self.noted[-1])
        else:
            self._compare_line(wanted, await self._line())

    async def _line(self) -> str:
        """The next line of a stream of events that is no comment."""
        assert self._events is not None, "nothing is open"
        while line := (await self._events.content.readline()).decode():
            if not line.startswith(":"):
                return line.rstrip("\n")
        raise Differs("the stream of events has ended")

    def _compare_line(self, wanted: str, found: str) -> None:
        name, _, value = wanted.partition(": ")
        if wanted in ("", "(blank)"):
            self._tokens.match("", found)
        elif name == "data":
            self.noted.append(json.loads(found.removeprefix("data: ")))
            self._tokens.match(json.loads(value), self.noted[-1])
        else:
            there, _, other = found.partition(": ")
            self._tokens.match([name, value], [there, other])

    async def _closed(self, code: int) -> None:
        assert self._socket is not None, "no socket is open"
        message = await self._socket.receive()
        if message.type is not WSMsgType.CLOSE or message.data != code:
            raise Differs(f"{message.type}, {message.data}")

    async def _leave(self) -> None:
        if self._socket is not None:
            await self._socket.close()
        elif self._events is not None:
            self._events.close()
        self._socket = self._events = None


def _lines(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Each line that is not empty, with the headers that stand behind it."""
    waiting: tuple[str, dict[str, str]] | None = None
    for line in text.splitlines():
        if line.startswith("    ") and waiting:
            name, _, value = line.strip().partition(": ")
            waiting[1][name] = value
        elif line.strip():
            if waiting:
                yield waiting
            waiting = (line.rstrip(), {})
    if waiting:
        yield waiting


def _changes(text: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """`+ {row} - {key}`, any number of each."""
    found: dict[str, list[dict[str, Any]]] = {"+": [], "-": []}
    while text := text.strip():
        value, end = _JSON.raw_decode(text, 2)
        found[text[0]].append(value)
        text = text[end:]
    return found["+"], found["-"]
