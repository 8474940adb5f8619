"""The main of the `edge` process: one writer of the log, the door, the views and data access on one loop, and no JVM.

It takes its lock, opens the log, then the port; `/healthz` answers from there on, while views load. On SIGTERM it
stops listening, answers what it has begun, writes what waits, and ends.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import ssl
import time
from contextlib import AsyncExitStack
from typing import IO, Any

import uvloop
from aiohttp import web

from penstock import plain
from penstock.config import Folder
from penstock.declaration import Application
from penstock.errors import FolderHeldError
from penstock.run.edge_memory import collect_garbage_seldom, give_memory_back
from penstock.run.lifecycle import announce
from penstock.run.ownership import WAIT_S, check_folder, flock, holder
from penstock.run.preflight import port_error
from penstock.run.reading_half import CONNECTIONS, ReadingHalf, Setting
from penstock.run.security import Security
from penstock.run.writing_half import Writer, WritingHalf

BACKLOG = 1_024
"""Connections that wait to be accepted: a thousand clients come back at once when an edge is started again."""
SHUTDOWN_S = 3.0
"""What requests that were begun get to be answered; subscribers are told at once."""

_log = logging.getLogger(__name__)


def run(application: Application, folder: Folder, host: str, port: int, security: Security | None = None) -> None:
    """Blocks until SIGTERM or SIGINT."""
    give_memory_back()
    check_folder(folder, application.name)
    with _held(folder):
        uvloop.run(_serve(application, folder, host, port, security or Security()))


def _held(folder: Folder) -> IO[str]:
    """The edge's lock; an edge that was killed a moment ago may still have it."""
    file = folder.edge_lock.open("a+")
    deadline = time.monotonic() + WAIT_S
    while not flock(file):
        if time.monotonic() > deadline:
            raise FolderHeldError(
                f"another edge works on the folder '{folder.root}'",
                detail=f"process {holder(folder.edge_lock)} holds {folder.edge_lock.name}",
                hint="end that process, or pass another folder with --data",
            )
        time.sleep(0.05)
    return file


async def _serve(application: Application, folder: Folder, host: str, port: int, security: Security) -> None:
    """Open everything in order, wait, and close it in the opposite order: first the door, last the log."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with AsyncExitStack() as opened:
        certificate = security.certificate(folder, host)
        tls = certificate.context() if certificate else None
        web_app = await open_edge(Setting(application, folder, host, security, security.limits), opened)
        collect_garbage_seldom()
        bound = await _listen(web_app, host, port, opened, tls)
        place = {"scheme": security.scheme, "host": host, "port": bound}
        announce(folder, "edge", place | {"plain": plain.off(plain.AIOHTTP)})
        _log.info("listening on %s://%s:%d", security.scheme, host, bound)
        if certificate is not None:
            _log.info("certificate %s, SHA-256 %s", certificate.cert, certificate.fingerprint())
        await stop.wait()
        _log.info("stopping")


async def open_edge(setting: Setting, opened: AsyncExitStack) -> web.Application:
    """What answers requests, with everything behind it, which `opened` closes in the opposite order."""
    writer = Writer(setting, opened)
    reading = ReadingHalf(setting, writer)
    await reading.open(opened)
    writing = WritingHalf(writer, reading)
    await writing.open(opened)
    web_app, guard = reading.application(opened)
    writing.add_routes(web_app, guard)
    reading.serving.add_routes(web_app)
    return web_app


async def _listen(
    web_app: web.Application, host: str, port: int, opened: AsyncExitStack, tls: ssl.SSLContext | None = None
) -> int:
    """Bind the port and return it; the door unpacks bodies itself, within bounds."""
    options: dict[str, Any] = {"access_log": None, "auto_decompress": False, "shutdown_timeout": SHUTDOWN_S}
    connections = web_app[CONNECTIONS]
    runner = connections.runner(web_app, **options)
    await runner.setup()
    opened.push_async_callback(runner.cleanup)
    try:
        await connections.listen(runner, host, port, BACKLOG, tls)
    except OSError as error:
        raise port_error(host, port, error) from None
    return int(runner.addresses[0][1])
