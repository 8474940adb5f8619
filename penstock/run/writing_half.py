"""The half of an edge that writes: its log, collection and retention. One edge of a folder has it."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from functools import partial

from aiohttp import web

from penstock.collect.collection import Collect
from penstock.collect.letters.letter_office import DeadLetterOffice
from penstock.collect.ticks import Ticks
from penstock.rights.credential import credential_of
from penstock.rights.guard import Guard
from penstock.run.edge_log import WrittenLog
from penstock.run.reading_half import ReadingHalf, cancelled
from penstock.run.retainer import Retainer
from penstock.run.topic_publisher import publishing
from penstock.views.views import RowsAfter

_log = logging.getLogger(__name__)


class WritingHalf:
    """Takes events in, and lets go what is no longer kept."""

    def __init__(self, edge_log: WrittenLog, reading: ReadingHalf) -> None:
        setting, views = reading.setting, reading.views
        self._edge_log, self._reading = edge_log, reading
        self._application, self._clock, self._signals = setting.application, setting.clock, setting.observer.emit
        self.collect = Collect(
            setting.application,
            edge_log.log,
            edge_log.group,
            views.wait_absorbed,
            setting.limits,
            setting.clock,
            setting.observer.emit,
            absorbed=views.absorbed,
            rows=RowsAfter(views),
            views=views,
        )
        self._office = DeadLetterOffice(
            reading.log,
            edge_log.memory,
            self.collect.intakes,
            setting.limits,
            setting.clock,
            setting.observer.emit,
            pulls=setting.application.pulls,
            room=self.collect.pressure.room,
            slow=self.collect.slow,
            filtered=setting.application.filtered(),
            tables=self.collect.tables,
        )
        self.collect.measure(setting.observer)
        self.collect.pulls.measure(setting.observer)
        status = reading.serving.status
        status.known_ids = lambda name: edge_log.log.known_ids(self.collect.intakes[name].stream)
        status.holder = self._holder
        status.more |= {
            "pulls": self.collect.pulls.status,
            "pressure": self.collect.pressure.status,
            "udp": self.collect.udps.status,
        }

    async def open(self, opened: AsyncExitStack) -> None:
        """Begin to take events in; requests come later, when the port is bound."""
        log, group, rights = self._edge_log.log, self._edge_log.group, self._reading.rights
        for declared in self._application.streams:
            if declared.id and (stream := log.find(declared.name)):  # else the first sender waits for the ids
                await asyncio.wrap_future(group.run(partial(log.horizon, stream)))
        self.collect.publishing.still = lambda request: rights.still(credential_of(request))
        await self.collect.start(secured=not rights.is_open)
        rights.on_first_key = self._secure
        opened.push_async_callback(self.collect.close)
        retainer = Retainer(self._application, log, group, self._reading.log.flows, self._clock)
        opened.push_async_callback(cancelled, asyncio.create_task(retainer.run()))
        folder = self._reading.setting.folder
        published = publishing(self._application, folder, "edge", group, self._clock)
        await asyncio.to_thread(published.__enter__)
        opened.push_async_callback(asyncio.to_thread, published.__exit__, None, None, None)
        ticks = Ticks(self._application, log, group, self._reading.log.flows, self._clock, self._signals)
        opened.push_async_callback(cancelled, asyncio.create_task(ticks.run()))

    def _holder(self, stream: str) -> str | None:
        intake = self.collect.intakes.get(stream)
        return intake.promises.holder() if intake is not None and intake.promises is not None else None

    def add_routes(self, web_app: web.Application, guard: Guard) -> None:
        self.collect.add_routes(web_app)
        self._office.add_routes(web_app)
        self._reading.connections.short = self.collect.short_way(guard)

    async def _secure(self) -> None:
        """The first key was made while the app runs: what needs none ends now, as it would end the next start."""
        for why in await self.collect.udps.secure():
            _log.error("%s; the port is closed, and the app will not start again like this: %s", why.message, why.hint)
