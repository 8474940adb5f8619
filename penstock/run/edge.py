"""The main of the `edge` process: the door, the views and data access on one loop, and no JVM.

It takes its lock, opens the log, then the port; `/healthz` answers from there on, while views load. On SIGTERM it
stops listening, answers what it has begun, writes what waits, and ends. With `--read-only` it takes no lock and writes
nothing: any number of such edges serve beside the one that writes.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import ssl
import time
from contextlib import AsyncExitStack, closing
from typing import IO, Any

import uvloop
from aiohttp import web

from penstock import plain
from penstock.config import Folder
from penstock.declaration import Application
from penstock.errors import FolderHeldError
from penstock.log.folder_log import FolderLog
from penstock.log.log import Log, Turn
from penstock.log.opening import open_log
from penstock.run.announcement import Presence, address, announce
from penstock.run.edge_log import Setting, WrittenLog
from penstock.run.edge_memory import collect_garbage_seldom, give_memory_back
from penstock.run.ownership import WAIT_S, check_folder, flock, holder
from penstock.run.preflight import port_error
from penstock.run.reading_edge import FOLLOWED, open_reading_edge
from penstock.run.reading_half import CONNECTIONS, ReadingHalf, cancelled
from penstock.run.security import Security
from penstock.run.writing_half import WritingHalf

BACKLOG = 1_024
"""Connections that wait to be accepted: a thousand clients come back at once when an edge is started again."""
SHUTDOWN_S = 3.0
"""What requests that were begun get to be answered; subscribers are told at once."""

_log = logging.getLogger(__name__)


def run(
    application: Application,
    folder: Folder,
    host: str,
    port: int,
    security: Security | None = None,
    *,
    read_only: bool = False,
    standby: bool = False,
) -> None:
    """Blocks until SIGTERM or SIGINT."""
    give_memory_back()
    check_folder(folder, application.name, tell=_log.warning)
    security = security or Security()
    setting = Setting(application, folder, host, security, security.limits)
    if read_only:
        uvloop.run(_serve(setting, port))
        return
    turn: Turn = "standby" if standby else "free"
    with _held(folder), closing(open_log(folder.edge_log, app=application.name, turn=turn)) as log:
        uvloop.run(_serve(setting, port, log))


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


async def _serve(setting: Setting, port: int, log: Log | None = None) -> None:
    """Open everything in order, wait, and close it in the opposite order: first the door, last the log."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    folder, host, security = setting.folder, setting.host, setting.security
    async with AsyncExitStack() as opened:
        certificate = security.certificate(folder, host)
        tls = certificate.context() if certificate else None
        web_app = await (open_reading_edge(setting, opened) if log is None else open_edge(setting, opened, log))
        collect_garbage_seldom()
        bound = await _listen(web_app, host, port, opened, tls)
        place = {"scheme": security.scheme, "host": host, "port": bound, "plain": plain.off(plain.AIOHTTP)}
        if log is None:
            opened.callback(Presence(folder, place).close)
        else:
            announce(folder, "edge", place)
        _log.info("listening on %s", address(security.scheme, host, bound))
        if certificate is not None:
            _log.info("certificate %s, SHA-256 %s", certificate.cert, certificate.fingerprint())
        await _until(stop, web_app.get(FOLLOWED))
        _log.info("stopping")


async def open_edge(setting: Setting, opened: AsyncExitStack, written: Log | None = None) -> web.Application:
    """What answers requests, with everything behind it, which `opened` closes in the opposite order; a log that was
    opened already is the caller's to close."""
    if written is None:
        written = opened.enter_context(closing(open_log(setting.folder.edge_log, app=setting.application.name)))
    edge_log, log = WrittenLog(setting, opened, written), FolderLog(setting.folder, keep=True)
    opened.callback(log.close)
    reading = ReadingHalf(setting, log, edge_log)
    writing = WritingHalf(edge_log, reading)  # makes the tables that the other half follows
    await reading.open(opened)
    await writing.open(opened)
    web_app, guard = reading.application(opened)
    web_app[FOLLOWED] = asyncio.create_task(edge_log.until_replaced(), name="whose turn it is")
    opened.push_async_callback(cancelled, web_app[FOLLOWED])
    writing.add_routes(web_app, guard)
    reading.serving.add_routes(web_app)
    return web_app


async def _until(stop: asyncio.Event, followed: asyncio.Task[None] | None) -> None:
    """Until it is asked to stop; raises why there is nothing more to follow."""
    waiting: list[asyncio.Future[Any]] = [asyncio.ensure_future(stop.wait()), *([followed] if followed else [])]
    done, _ = await asyncio.wait(waiting, return_when="FIRST_COMPLETED")
    waiting[0].cancel()
    for task in done:
        task.result()


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
