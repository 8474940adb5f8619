"""An edge with webhooks over real files and sockets, endpoints that misbehave as told, and a clock to be played."""

from __future__ import annotations

import asyncio
import io
import json
import ssl
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
from aiohttp import ClientSession, ClientTimeout, web
from edge import DEADLINE_S, eventually
from fake_flows import FakeFlows, small_app
from standardwebhooks.webhooks import Webhook as Verifier

from penstock import App
from penstock.clock import SystemClock
from penstock.config import Limits
from penstock.log.folder_log import FolderLog
from penstock.log.group_commit import GroupCommit
from penstock.log.log import Append, StreamSpec
from penstock.log.opening import open_log
from penstock.observe.metrics import Observer
from penstock.rights.guard import Guard
from penstock.rights.inbox import Inbox, Instruction
from penstock.rights.keys import make_key
from penstock.rights.rights import Rights
from penstock.serve.replies import errors_as_json
from penstock.serve.serving import Serving
from penstock.serve.webhooks.address_rules import AddressRules
from penstock.serve.webhooks.endpoint import Endpoint
from penstock.serve.webhooks.webhook_registry import WebhookOptions, Webhooks
from penstock.views.views import Views
from tests.memory_folder import memory_folder

ANYWHERE = AddressRules(anywhere=True)
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class PlayedClock:
    """Stands still until it is moved; who sleeps by it is woken in order."""

    def __init__(self) -> None:
        self.us = SystemClock().now_us()
        self.sleepers: list[tuple[int, asyncio.Future[None]]] = []

    def now_us(self) -> int:
        return self.us

    def monotonic(self) -> float:
        return SystemClock().monotonic()

    async def sleep(self, seconds: float) -> None:
        entry = (self.us + round(seconds * 1e6), asyncio.get_running_loop().create_future())
        self.sleepers.append(entry)
        try:
            await entry[1]
        finally:
            self.sleepers.remove(entry)

    async def advance(self, seconds: float, quiet: Callable[[], Awaitable[None]]) -> None:
        """Let time pass; `quiet` waits until nobody is at work between two alarms."""
        target = self.us + round(seconds * 1e6)
        await quiet()
        while (due := min((at for at, _ in self.sleepers), default=target + 1)) <= target:
            self.us = max(self.us, due)
            for _, future in [sleeper for sleeper in self.sleepers if sleeper[0] <= due]:
                future.done() or future.set_result(None)
            await asyncio.sleep(0)
            await quiet()
        self.us = target


class Taker:
    """An endpoint on a real port. `answers` are used up one by one; then everything is taken."""

    def __init__(self) -> None:
        self.answers: deque[Answer | int] = deque()
        self.always: Answer | int = 200
        self.tried: list[tuple[str, Any]] = []
        """Every request: its id and body."""
        self.taken: list[tuple[str, Any]] = []
        """Those that were answered with 200."""
        self.heads: list[dict[str, str]] = []
        self.raw: list[bytes] = []
        self.port = 0
        self._runner: web.AppRunner | None = None

    async def start(self, tls: ssl.SSLContext | None = None) -> None:
        app = web.Application(client_max_size=1024**3)
        app.router.add_post("/{tail:.*}", self._take)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.05)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=tls, reuse_address=True).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """The port refuses connections from now on."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def url(self, path: str = "/hook", scheme: str = "http") -> str:
        return f"{scheme}://127.0.0.1:{self.port}{path}"

    async def _take(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        heard = (request.headers["webhook-id"], json.loads(raw))
        self.tried.append(heard)
        self.raw.append(raw)
        self.heads.append({name.lower(): value for name, value in request.headers.items()})
        answer = self.answers.popleft() if self.answers else self.always
        if not isinstance(answer, int):
            return await answer(request)
        if answer == 200:
            self.taken.append(heard)
        return web.Response(status=answer)

    def verify(self, secret: str, number: int = -1) -> Any:
        """What the library that receivers use says of a request; raises what is wrong with it."""
        return Verifier(secret).verify(self.raw[number], self.heads[number])

    @property
    def bodies(self) -> list[Any]:
        return [body for _, body in self.taken]

    async def has(self, count: int) -> None:
        await eventually(lambda: len(self.taken) >= count, f"{len(self.taken)} of {count} were delivered")


async def hang(request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(30)
    return web.Response()


async def hang_up(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.close()
    return web.Response()


async def redirect(request: web.Request) -> web.StreamResponse:
    return web.Response(status=302, headers={"Location": "/elsewhere"})


async def never_ending(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(status=200)
    await response.prepare(request)
    while True:
        await response.write(b"x" * 65_536)


class Hooked:
    """An edge in miniature that can be stopped and started on the same folder."""

    def __init__(
        self, path: Path, *, clock: PlayedClock | None, limits: Limits, secured: bool, app: App | None, **options: Any
    ) -> None:
        self.folder, self.clock, self.observer = memory_folder(path), clock or SystemClock(), Observer()
        self.application = (app or small_app()).declared()
        self.log = open_log(self.folder.edge_log, app="small")
        definition = self.application.stream("rsvps")
        assert definition is not None
        self.rsvps = self.log.find("rsvps") or self.log.create(StreamSpec("rsvps", definition.stored))
        self.group = GroupCommit(self.log)
        self.reader = FolderLog(self.folder)
        self.views = Views(self.application, self.reader.flows, limits=limits, observer=self.observer)
        self.inbox = Inbox(self.folder.inbox)
        self.rights = Rights(self.log.memory(), inbox=self.inbox, remember=self.remember, signals=self.observer.emit)
        self.remembered = 0
        self.options = WebhookOptions(
            options.pop("rules", ANYWHERE),
            sleep=clock.sleep if clock else asyncio.sleep,
            random=Random(7),
            **options,
        )
        self.serving = Serving(
            self.application,
            self.views,
            self.reader,
            folder=self.folder,
            clock=self.clock,
            observer=self.observer,
            remember=self.remember,
            memory=self.log.memory(),
            rights=self.rights,
            webhooks=self.options,
        )
        self.site = web.Application(middlewares=[errors_as_json(self.observer)])
        if secured:
            Guard(self.rights).add_to(self.site)
        self.serving.add_routes(self.site)
        self.http: ClientSession
        self.key: str | None = None

    async def remember(self, values: Mapping[str, Any]) -> None:
        await asyncio.wrap_future(self.group.submit([], values))
        self.remembered += 1

    @property
    def webhooks(self) -> Webhooks:
        assert self.serving._webhooks is not None
        return self.serving._webhooks

    def endpoint(self, id: str) -> Endpoint:
        return self.webhooks._endpoints[id]

    async def quiet(self) -> None:
        """Wait until every endpoint has everything, or waits for its time."""
        seen = 0
        async with asyncio.timeout(DEADLINE_S):
            while seen < 3:
                seen = 0 if any(self._busy(e) for e in self.webhooks._endpoints.values()) else seen + 1
                await asyncio.sleep(0.02)

    def _busy(self, endpoint: Endpoint) -> bool:
        due = endpoint.trouble is not None and endpoint.trouble.retry_us <= self.clock.now_us()
        return endpoint.state == "delivering" or (endpoint.state == "paused" and due)

    async def ask(self, method: str, path: str, body: Any = None, key: str | None = None) -> tuple[int, Any]:
        key = key or self.key
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        data = io.BytesIO(raw) if raw else None
        async with self.http.request(method, path, data=data, headers=headers) as reply:
            text = await reply.text()
            return reply.status, json.loads(text) if text else None

    async def hook(self, taker: Taker | str, **fields: Any) -> Any:
        """Make a webhook; on the view `topics` unless another is named."""
        fields = {"url": taker if isinstance(taker, str) else taker.url()} | fields
        if "stream" not in fields:
            fields = {"view": "topics"} | fields
        status, body = await self.ask("POST", "/webhooks", fields)
        assert status == 201, body
        return body

    async def at_rows(self, rows: int, view: str = "topics") -> None:
        held = self.views.view(view)
        assert await held.until(lambda: held.content is not None and len(held.content.rows) >= rows, DEADLINE_S)

    def post(self, *topics: str) -> None:
        """Events of the stream `rsvps`."""
        self.post_ids([f"{t}{i}" for i, t in enumerate(topics)], topics)

    def post_ids(self, ids: Sequence[str], topics: Sequence[str]) -> None:
        rows = [{"topic": t, "n": i, "_id": id, "_key": t} for i, (id, t) in enumerate(zip(ids, topics, strict=True))]
        batch = pa.RecordBatch.from_pylist(rows, schema=self.rsvps.schema)
        self.group.submit([Append(self.rsvps, batch)]).result(DEADLINE_S)

    async def new_key(self, *scopes: str, name: str = "k", **claims: str) -> str:
        key, record = make_key(name, scopes, claims, self.clock.now_us(), None)
        self.inbox.post(Instruction("create", record.id, record))
        await self.rights.tick()
        return key

    async def revoke(self, key: str) -> None:
        self.inbox.post(Instruction("revoke", key.split("_")[1], at_us=self.clock.now_us()))
        await self.rights.tick()


@asynccontextmanager
async def hooked(
    path: Path,
    *,
    clock: PlayedClock | None = None,
    limits: Limits | None = None,
    secured: bool = False,
    app: App | None = None,
    **options: Any,
) -> AsyncIterator[Hooked]:
    async with AsyncExitStack() as opened:
        edge = Hooked(path, clock=clock, limits=limits or Limits(), secured=secured, app=app, **options)
        opened.callback(edge.log.close)
        opened.callback(edge.reader.close)
        opened.push_async_callback(asyncio.to_thread, edge.group.close)
        await edge.views.start()
        opened.push_async_callback(edge.views.stop)
        runner = web.AppRunner(edge.site, access_log=None, shutdown_timeout=0.2)
        await runner.setup()
        opened.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        edge.http = await opened.enter_async_context(ClientSession(url, timeout=ClientTimeout(total=DEADLINE_S)))
        yield edge


@asynccontextmanager
async def taking(tls: ssl.SSLContext | None = None) -> AsyncIterator[Taker]:
    taker = Taker()
    await taker.start(tls)
    try:
        yield taker
    finally:
        await taker.stop()


@asynccontextmanager
async def flowing(path: Path) -> AsyncIterator[FakeFlows]:
    flows = FakeFlows(memory_folder(path).flows_log)
    try:
        yield flows
    finally:
        flows.close()
