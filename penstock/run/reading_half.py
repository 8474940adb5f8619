"""The half of an edge that reads: both logs, rights, views and data access. Any number of edges of a folder have it."""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING

from aiohttp import web

from penstock.collect.ways.connections import Connections
from penstock.declaration import Application
from penstock.log.folder_log import FolderLog
from penstock.observe.signals import RequestRefused
from penstock.rights.guard import Guard
from penstock.rights.rights import Rights
from penstock.rights.web_origins import WebOrigins
from penstock.run.announcement import processes
from penstock.run.edge_log import FollowedLog, Setting, WrittenLog
from penstock.run.log_status import LogStatus
from penstock.run.security import OPEN, PROBE, refuse_open, request_rate
from penstock.serve.replies import errors_as_json, quieten
from penstock.serve.serving import Serving
from penstock.serve.subscribers import nothing_is_remembered
from penstock.views.views import Views

if TYPE_CHECKING:
    from penstock.rights.tokens import Tokens

CONNECTIONS = web.AppKey("connections", Connections)
_log = logging.getLogger(__name__)


class ReadingHalf:
    """Follows what is written and shows it."""

    def __init__(self, setting: Setting, log: FolderLog, edge_log: WrittenLog | FollowedLog) -> None:
        self.setting, self.log = setting, log
        application, clock, observer = setting.application, setting.clock, setting.observer
        self.rights = Rights(
            edge_log.memory,
            tokens=_tokens(setting),
            inbox=edge_log.inbox,
            remember=edge_log.remember,
            supervisor=os.environ.get(PROBE),
            clock=clock,
            signals=observer.emit,
            rate=request_rate(setting.security.key_rate),
            connections=setting.security.key_connections,
        )
        run = os.environ.get("PENSTOCK_RUN")
        self.views = Views(
            application, log.flows, limits=setting.limits, clock=clock, observer=observer, run=run, door=log.edge
        )
        self.serving = Serving(
            application,
            self.views,
            log,
            folder=setting.folder,
            clock=clock,
            checks={**edge_log.checks, "flows": Started(application, self.views)},
            remember=None if isinstance(edge_log, FollowedLog) else edge_log.remember,
            memory=edge_log.memory,
            rights=self.rights,
            webhooks=setting.security.webhooks(setting.host),
            refusal=edge_log.refusal if isinstance(edge_log, FollowedLog) else nothing_is_remembered,
        )
        self.serving.status.processes = partial(processes, setting.folder)
        log_status = LogStatus(log, edge_log.log if isinstance(edge_log, WrittenLog) else None)
        log_status.measure(observer)
        self.serving.status.more["log"] = log_status
        self.connections = connections = Connections(setting.limits, clock, observer.emit)
        observer.gauge("penstock_collect_connections", "Open connections.", (), lambda: {(): float(connections.open)})

    async def open(self, opened: AsyncExitStack) -> None:
        """Begin to follow; raises `NoKeyError` when everybody could come in from other machines."""
        await self.rights.start()
        opened.push_async_callback(self.rights.close)
        refuse_open(self.setting.host, self.rights.is_open)
        if self.rights.is_open:
            _log.info(OPEN)
        await self.views.start()
        opened.push_async_callback(self.views.stop)

    def application(self, opened: AsyncExitStack) -> tuple[web.Application, Guard]:
        """What answers requests, without a route, and what stands before its handlers."""
        observer, application = self.setting.observer, self.setting.application
        names = frozenset(stream.name for stream in application.streams)

        def refused(name: str, code: str) -> None:
            observer.emit(RequestRefused(name if name in names else "", code))

        opened.callback(quieten(lambda: refused("", "bad_request")))
        web_app = web.Application(middlewares=[errors_as_json(observer)])
        guard = Guard(
            self.rights,
            origins=WebOrigins(self.setting.security.cors),
            signatures=frozenset(entry.name for entry in application.entries if entry.signed),
            signals=observer.emit,
            on_refused=refused,
            filtered=application.filtered(),
        )
        guard.add_to(web_app)
        web_app[CONNECTIONS] = self.connections
        self.connections.start()
        opened.push_async_callback(self.connections.close)
        return web_app, guard


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


def _tokens(setting: Setting) -> Tokens | None:
    if not setting.security.tokens:
        return None
    from penstock.rights.tokens import Tokens  # with cryptography, which takes a while to import

    return Tokens(setting.security.tokens, setting.clock, setting.observer.emit)


async def cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
