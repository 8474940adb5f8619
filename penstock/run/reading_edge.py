"""An edge that only reads: it serves beside the one that writes, and says where that one is to whoever must write."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from aiohttp import web

from penstock.collect.collect_routes import ROUTES as COLLECT_ROUTES
from penstock.collect.letters.letter_office import DeadLetterOffice
from penstock.collect.letters.stored_letters import masked
from penstock.collect.tables.row_reads import RowReads
from penstock.collect.ways.acks import Acks
from penstock.collect.ways.receipts import Receipts
from penstock.errors import UnknownStreamError
from penstock.log.folder_log import FolderLog
from penstock.position import Position
from penstock.rights.guard import PIXEL, bind, refuse
from penstock.run.edge_log import FollowedLog, Setting
from penstock.run.reading_half import ReadingHalf, cancelled
from penstock.serve.describe.serve_routes import ROUTES as SERVE_ROUTES
from penstock.serve.webhooks.webhook_routes import ROUTES as WEBHOOK_ROUTES

FOLLOWED: web.AppKey[asyncio.Task[None]] = web.AppKey("followed", asyncio.Task)
"""The task that ends, with an error, when the data folder is gone, or another edge writes."""


async def open_reading_edge(setting: Setting, opened: AsyncExitStack) -> web.Application:
    """What answers requests, with everything behind it, which `opened` closes in the opposite order."""
    log = FolderLog(setting.folder, keep=True)
    opened.callback(log.close)
    edge_log = await asyncio.to_thread(FollowedLog, setting.folder, log.edge, opened)
    reading = ReadingHalf(setting, log, edge_log)
    await reading.open(opened)
    web_app, _ = reading.application(opened)
    web_app[FOLLOWED] = asyncio.create_task(edge_log.until_gone(), name="the data folder")
    opened.push_async_callback(cancelled, web_app[FOLLOWED])
    reading.serving.add_routes(web_app)
    _show_collection(web_app, reading, edge_log)
    tables = (COLLECT_ROUTES, SERVE_ROUTES, WEBHOOK_ROUTES)
    writing = [route for table in tables for route in table if route.needs_writer]
    refuse(web_app, [route for route in writing if route.path.endswith(PIXEL)], edge_log.refuse_pixel)
    refuse(web_app, writing, edge_log.refuse)
    return web_app


def _show_collection(web_app: web.Application, reading: ReadingHalf, edge_log: FollowedLog) -> None:
    """What can be read of what was sent: acks and dead letters."""
    setting, memory, log = reading.setting, edge_log.memory, reading.log
    application, limits, clock, emit = setting.application, setting.limits, setting.clock, setting.observer.emit

    async def end_of(stream: str) -> Position | None:
        if application.table(stream):
            content = reading.views.view(stream).content
            return None if content is None else Position("view", stream, content.epoch, (content.offset,))
        try:
            return await asyncio.to_thread(log.position_end, stream) if application.stream(stream) else None
        except UnknownStreamError:  # the edge that writes has not made it yet
            return None

    receipts, wait_absorbed = Receipts(memory, clock), reading.views.wait_absorbed
    acks = Acks(end_of, receipts, wait_absorbed, limits, clock, emit, edge_log.refusal)
    bind(web_app, COLLECT_ROUTES, ack=acks.get, read_row=RowReads(application, reading.views, limits).get)
    mask = masked({stream.name: stream.events.kind for stream in application.streams})
    office = DeadLetterOffice(log, memory, {}, limits, clock, emit, mask=mask, filtered=application.filtered())
    office.add_routes(web_app, replays=False)
