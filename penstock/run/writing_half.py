"""The half of an edge that writes: its log, collection and retention. One edge of a folder has it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any

from aiohttp import web

from penstock.collect.collection import Collect
from penstock.collect.letters.routes import DeadLetterOffice
from penstock.errors import PenstockError
from penstock.log.group import GroupCommit
from penstock.log.opening import open_log
from penstock.rights.credential import credential_of
from penstock.rights.guard import Guard
from penstock.rights.inbox import Inbox
from penstock.run.reading_half import ReadingHalf, Setting
from penstock.run.retainer import Retainer
from penstock.views.views import RowsAfter

_log = logging.getLogger(__name__)


class Writer:
    """The edge's log in the hands of the one process that writes it."""

    def __init__(self, setting: Setting, opened: AsyncExitStack) -> None:
        self.log = open_log(setting.folder.edge_log, app=setting.application.name, clock=setting.clock)
        opened.callback(self.log.close)
        self.group = GroupCommit(self.log, unwritten_bytes=setting.limits.unwritten_bytes)
        opened.push_async_callback(asyncio.to_thread, self.group.close)
        self.memory = self.log.memory()
        self.inbox = Inbox(setting.folder.inbox)

    async def remember(self, values: Mapping[str, Any]) -> None:
        """Let others keep a word in the log's control stream; durable on return."""
        await asyncio.wrap_future(self.group.submit([], values))

    def is_well(self) -> bool | PenstockError:
        return self.group.problem or True


class WritingHalf:
    """Takes events in, and lets go what is no longer kept."""

    def __init__(self, writer: Writer, reading: ReadingHalf) -> None:
        setting, views = reading.setting, reading.views
        self._writer, self._reading = writer, reading
        self._application, self._clock = setting.application, setting.clock
        self.collect = Collect(
            setting.application,
            writer.log,
            writer.group,
            views.wait_absorbed,
            setting.limits,
            setting.clock,
            setting.observer.emit,
            absorbed=views.absorbed,
            rows=RowsAfter(views),
        )
        self._office = DeadLetterOffice(
            reading.log,
            writer.memory,
            self.collect.intakes,
            setting.limits,
            setting.clock,
            setting.observer.emit,
            pulls=setting.application.pulls,
            room=self.collect.pressure.room,
            slow=self.collect.slow,
            filtered=setting.application.filtered(),
        )
        self.collect.measure(setting.observer, reading.connections)
        self.collect.pulls.measure(setting.observer)
        status = reading.serving.status
        status.known_ids = lambda name: writer.log.known_ids(self.collect.intakes[name].stream)
        status.more |= {
            "pulls": self.collect.pulls.status,
            "pressure": self.collect.pressure.status,
            "udp": self.collect.udps.status,
        }

    async def open(self, opened: AsyncExitStack) -> None:
        """Begin to take events in; requests come later, when the port is bound."""
        log, group, rights = self._writer.log, self._writer.group, self._reading.rights
        for declared in self._application.streams:
            if declared.id and (stream := log.find(declared.name)):  # else the first sender waits for the ids
                await asyncio.wrap_future(group.run(partial(log.horizon, stream)))
        self.collect.publishing.still = lambda request: rights.still(credential_of(request))
        await self.collect.start(secured=not rights.is_open)
        rights.on_first_key = self._secure
        opened.push_async_callback(self.collect.close)
        retainer = Retainer(self._application, log, group, self._reading.log.flows, self._clock)
        opened.push_async_callback(_cancel, asyncio.create_task(retainer.run()))

    def add_routes(self, web_app: web.Application, guard: Guard) -> None:
        self.collect.add_routes(web_app)
        self._office.add_routes(web_app)
        self._reading.connections.short = self.collect.short_way(guard)

    async def _secure(self) -> None:
        """The first key was made while the app runs: what needs none ends now, as it would end the next start."""
        for why in await self.collect.udps.secure():
            _log.error("%s; the port is closed, and the app will not start again like this: %s", why.message, why.hint)


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
