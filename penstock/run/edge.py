"""The main of the `edge` process: one writer of the log, the door, the views and data access on one loop, and no JVM.

It takes its lock, opens the log, then the port; `/healthz` answers from there on, while views load. On SIGTERM it
stops listening, answers what it has begun, writes what waits, and ends.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import IO, TYPE_CHECKING, Any

import uvloop
from aiohttp import web

from penstock.clock import Clock, SystemClock
from penstock.collect.collection import Collect
from penstock.collect.letters.routes import DeadLetterOffice
from penstock.collect.signals import SIGNALS, RequestRefused
from penstock.collect.ways.connections import Connections
from penstock.config import Folder, Limits
from penstock.declaration import Application
from penstock.errors import FolderHeldError
from penstock.log.folder import FolderLog
from penstock.log.group import GroupCommit
from penstock.log.logs.sqlite import SqliteLog
from penstock.observe.metrics import Observer
from penstock.rights.credential import credential_of
from penstock.rights.guard import Guard
from penstock.rights.inbox import Inbox
from penstock.rights.origins import Origins
from penstock.rights.rights import Rights
from penstock.rights.signals import SIGNALS as RIGHTS_SIGNALS
from penstock.run.edge_memory import collect_garbage_seldom, give_memory_back
from penstock.run.lifecycle import announce
from penstock.run.ownership import WAIT_S, check_folder, flock, holder
from penstock.run.preflight import port_error
from penstock.run.retainer import Retainer
from penstock.run.security import OPEN, PROBE, Security, refuse_open, request_rate
from penstock.serve.health import Checks
from penstock.serve.noise import quieten
from penstock.serve.replies import errors_as_json
from penstock.serve.routes import Serving
from penstock.views.views import RowsAfter, Views

if TYPE_CHECKING:
    from penstock.rights.tokens import Tokens

CONNECTIONS = web.AppKey("connections", Connections)
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
        web_app = await _open(application, folder, opened, host, security)
        collect_garbage_seldom()
        bound = await _listen(web_app, host, port, opened, tls)
        announce(folder, "edge", {"scheme": security.scheme, "host": host, "port": bound})
        _log.info("listening on %s://%s:%d", security.scheme, host, bound)
        if certificate is not None:
            _log.info("certificate %s, SHA-256 %s", certificate.cert, certificate.fingerprint())
        await stop.wait()
        _log.info("stopping")


async def _open(
    application: Application,
    folder: Folder,
    opened: AsyncExitStack,
    host: str = "127.0.0.1",
    security: Security | None = None,
) -> web.Application:
    security = security or Security()
    limits, clock, observer = _limits(security), SystemClock(), Observer()
    observer.declare((*SIGNALS, *RIGHTS_SIGNALS))
    log = SqliteLog.open(folder.edge_db, app=application.name, clock=clock)
    opened.callback(log.close)
    group = GroupCommit(log, unwritten_bytes=limits.unwritten_bytes)
    opened.push_async_callback(asyncio.to_thread, group.close)
    rights = Rights(
        log.memory(),
        tokens=_tokens(security, clock, observer),
        inbox=Inbox(folder.inbox),
        remember=_remember(group),
        supervisor=os.environ.get(PROBE),
        clock=clock,
        signals=observer.emit,
        rate=request_rate(security.key_rate),
        connections=security.key_connections,
    )
    await rights.start()
    opened.push_async_callback(rights.close)
    refuse_open(host, rights.is_open)
    if rights.is_open:
        _log.info(OPEN)
    reader = FolderLog(folder)
    opened.callback(reader.close)
    run = os.environ.get("PENSTOCK_RUN")
    views = Views(application, reader.flows, limits=limits, clock=clock, observer=observer, run=run)
    collect = Collect(
        application,
        log,
        group,
        views.wait_absorbed,
        limits,
        clock,
        observer.emit,
        absorbed=views.absorbed,
        rows=RowsAfter(views),
    )
    connections = Connections(limits, clock, observer.emit)
    collect.measure(observer, connections)
    started = Started(application, views)
    checks: Checks = {"collect": lambda: group.problem or True, "flows": started}
    serving = Serving(
        application,
        views,
        reader,
        folder=folder,
        clock=clock,
        checks=checks,
        remember=_remember(group),
        memory=log.memory(),
        rights=rights,
        webhooks=security.webhooks(host),
    )
    serving.status.more |= {
        "pulls": collect.pulls.status,
        "pressure": collect.pressure.status,
        "udp": collect.udps.status,
    }
    serving.status.known_ids = lambda name: log.known_ids(collect.intakes[name].stream)
    collect.pulls.measure(observer)
    for stream in (found for declared in application.streams if (found := log.find(declared.name)) and declared.id):
        await asyncio.wrap_future(group.run(partial(log.horizon, stream)))  # else the first sender waits for the ids
    await views.start()
    opened.push_async_callback(views.stop)
    collect.publishing.still = lambda request: rights.still(credential_of(request))
    await collect.start(secured=not rights.is_open)
    rights.on_first_key = partial(_secure, collect)
    opened.push_async_callback(collect.close)
    keeping = asyncio.create_task(Retainer(application, log, group, reader.flows, clock).run())
    opened.push_async_callback(_cancel, keeping)
    opened.callback(quieten(lambda: observer.emit(RequestRefused("", "bad_request"))))
    web_app = web.Application(middlewares=[errors_as_json(observer)])
    guard = Guard(
        rights,
        origins=Origins(security.cors),
        signatures=collect.signatures,
        signals=observer.emit,
        on_refused=lambda name, code: observer.emit(RequestRefused(name if name in collect.intakes else "", code)),
        filtered=application.filtered(),
    )
    guard.add_to(web_app)
    collect.add_routes(web_app)
    office = DeadLetterOffice(
        reader,
        log.memory(),
        collect.intakes,
        limits,
        clock,
        observer.emit,
        pulls=application.pulls,
        room=collect.pressure.room,
        slow=collect.slow,
        filtered=application.filtered(),
    )
    office.add_routes(web_app)
    serving.add_routes(web_app)
    connections.short = collect.short_way(guard)
    connections.start()
    opened.push_async_callback(connections.close)
    web_app[CONNECTIONS] = connections
    return web_app


def _tokens(security: Security, clock: Clock, observer: Observer) -> Tokens | None:
    if not security.tokens:
        return None
    from penstock.rights.tokens import Tokens  # with cryptography, which takes a while to import

    return Tokens(security.tokens, clock, observer.emit)


def _limits(security: Security) -> Limits:
    if security.max_connections is None:
        return Limits()
    return Limits(connections=security.max_connections)


def _remember(group: GroupCommit) -> Callable[[Mapping[str, Any]], Awaitable[Any]]:
    """Lets others keep a word in the log's control stream."""

    async def remember(values: Mapping[str, Any]) -> None:
        await asyncio.wrap_future(group.submit([], values))

    return remember


async def _secure(collect: Collect) -> None:
    """The first key was made while the app runs: what needs none ends now, as it would end the next start."""
    for why in await collect.udps.secure():
        _log.error("%s; the port is closed now, and the app will not start again like this: %s", why.message, why.hint)


class Started:
    """Whether every query of this run has started once: the last part of being ready.

    It stays true from then on: flows that are started again later must not close a healthy door.
    """

    def __init__(self, application: Application, views: Views) -> None:
        self._names = [node.name for node in application.nodes]
        self._views = views
        self._done = False

    def __call__(self) -> bool:
        self._done = self._done or all(self._views.flow_state(name).state != "starting" for name in self._names)
        return self._done


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


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
