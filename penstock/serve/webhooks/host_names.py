"""Looks up the hosts of webhooks, so that a name server which hangs holds up only the hosts that it is asked for.

1. The system's own lookup cannot be ended, so it runs in threads that nobody else needs, one for a host at a time.
2. When all of them hang, a host that was found before is reached where it was found last. Addresses are judged when the
   socket is made, so an old one is no way around the rules.
"""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor

from aiohttp.abc import AbstractResolver, ResolveResult

THREADS = 16
PATIENCE_S = 1.0
"""How long a new answer is waited for where there is an old one."""
MOST_KNOWN = 10_000

_Asked = tuple[str, int, int]
_Found = list[tuple[int, int, str]]


class HostNames(AbstractResolver):
    """Of one edge; lives on its loop until `shut`."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="webhook-dns")
        self._asking: dict[_Asked, asyncio.Future[_Found]] = {}
        self._known: dict[_Asked, _Found] = {}

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        return [
            ResolveResult(hostname=host, host=address, port=port, family=kind, proto=proto, flags=socket.AI_NUMERICHOST)
            for kind, proto, address in await self._found((host, port, family))
        ]

    async def close(self) -> None:
        """For one of the sessions that share it; `shut` is for all."""

    def shut(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _found(self, asked: _Asked) -> _Found:
        answer = asyncio.shield(self._answer(asked))
        known = self._known.get(asked)
        try:
            async with asyncio.timeout(None if known is None else PATIENCE_S):
                return await answer
        except TimeoutError:
            assert known is not None
            return known

    def _answer(self, asked: _Asked) -> asyncio.Future[_Found]:
        """That of the lookup that is under way, or of a new one."""
        if (asking := self._asking.get(asked)) is None:
            asking = asyncio.get_running_loop().run_in_executor(self._threads, _look_up, *asked)
            self._asking[asked] = asking
            asking.add_done_callback(lambda done: self._note(asked, done))
        return asking

    def _note(self, asked: _Asked, done: asyncio.Future[_Found]) -> None:
        self._asking.pop(asked, None)
        if done.cancelled() or done.exception() is not None:
            return
        self._known.pop(asked, None)
        self._known[asked] = done.result()
        if len(self._known) > MOST_KNOWN:
            self._known.pop(next(iter(self._known)))


def _look_up(host: str, port: int, family: int) -> _Found:
    found = socket.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    return [(kind, proto, str(address[0])) for kind, _, proto, _, address in found]
