"""A whole edge on loopback, door and data access behind one guard, over real files and sockets, with a played clock."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from aiohttp import ClientSession, ClientTimeout, web
from fake_flows import FakeFlows, Rsvp
from playing import PlayedClock

from penstock import App, Event, Private, Struct, signed
from penstock.clock import SystemClock
from penstock.collect.collection import Collect
from penstock.config import Limits
from penstock.log.folder_log import FolderLog
from penstock.log.group_commit import GroupCommit
from penstock.log.opening import open_log
from penstock.observe.metrics import Observer
from penstock.observe.signals import RequestRefused
from penstock.rights.credential import TokenOptions, credential_of
from penstock.rights.guard import Guard
from penstock.rights.inbox import Inbox, Instruction
from penstock.rights.keys import make_key
from penstock.rights.rights import Rights
from penstock.rights.tokens import Tokens
from penstock.rights.web_origins import WebOrigins
from penstock.serve.replies import errors_as_json
from penstock.serve.serving import Serving
from penstock.serve.webhooks.address_rules import AddressRules
from penstock.serve.webhooks.webhook_registry import WebhookOptions
from penstock.views.views import RowsAfter, Views
from tests.memory_folder import memory_folder

HOOK_SECRET = "the secret of the hook"


class Person(Struct):
    phone: Private[str]
    city: str = ""


class Order(Event):
    amount: int
    email: Private[str] = ""
    people: list[Person] = []


class Lock(Event):
    key: str = ""


def shop() -> App:
    app = App("small")
    app.stream("locks", Lock)
    app.stream("rsvps", Rsvp, key="topic")
    app.stream("orders", Order)
    app.stream("hooks", Order, signed=signed.github(secret_env="HOOK_SECRET"))

    @app.view(key="topic", order_by="-rsvps")
    def topics(rsvps: Any) -> Any:
        """Topics with the most RSVPs."""

    @app.view(key="topic")
    def hidden(rsvps: Any) -> Any: ...

    @app.view(key="phone")
    def buyers(orders: Any) -> Any: ...

    return app


class Clock(PlayedClock):
    """Wall time is played, intervals are real: waits must end."""

    monotonic = SystemClock.monotonic  # type: ignore[assignment]


class SecureEdge:
    def __init__(
        self,
        path: Path,
        tokens: TokenOptions | None,
        cors: tuple[str, ...],
        supervisor: str | None,
        app: App,
        **limits_of_keys: Any,
    ) -> None:
        self.application = app.declared()
        self.clock, self.observer = Clock(), Observer()
        self.folder = memory_folder(path)
        self.log = open_log(self.folder.edge_log, app="small", clock=self.clock)
        self.group = GroupCommit(self.log)
        self.reader = FolderLog(self.folder)
        self.flows = FakeFlows(self.folder.flows_log)
        self.inbox = Inbox(self.folder.inbox)
        limits, emit = Limits(), self.observer.emit
        self.views = Views(self.application, self.reader.flows, limits=limits, clock=self.clock, observer=self.observer)
        self.collect = Collect(
            self.application,
            self.log,
            self.group,
            self.views.wait_absorbed,
            limits,
            self.clock,
            emit,
            rows=RowsAfter(self.views),
        )
        self.rights = Rights(
            self.log.memory(),
            tokens=Tokens(tokens, self.clock, emit) if tokens else None,
            inbox=self.inbox,
            remember=self._remember,
            supervisor=supervisor,
            clock=self.clock,
            signals=emit,
            **limits_of_keys,
        )
        self.collect.publishing.still = lambda request: self.rights.still(credential_of(request))
        self.serving = Serving(
            self.application,
            self.views,
            self.reader,
            clock=self.clock,
            observer=self.observer,
            remember=self._remember,
            memory=self.log.memory(),
            rights=self.rights,
            webhooks=WebhookOptions(AddressRules(anywhere=True)),
        )
        self.site = web.Application(middlewares=[errors_as_json(self.observer)])
        Guard(
            self.rights,
            origins=WebOrigins(cors),
            signatures=self.collect.signatures,
            signals=emit,
            on_refused=lambda name, code: emit(RequestRefused(name, code)),
            filtered=self.application.filtered(),
        ).add_to(self.site)
        self.collect.add_routes(self.site)
        self.serving.add_routes(self.site)
        self.http: ClientSession
        self.url = ""

    async def _remember(self, values: Mapping[str, Any]) -> None:
        await asyncio.wrap_future(self.group.submit([], values))

    async def key(
        self,
        *scopes: str,
        name: str = "k",
        seconds: float | None = None,
        rate: str | None = None,
        connections: int | None = None,
        **claims: str | list[str],
    ) -> str:
        """A new key, as `penstock keys create` makes one on a running server."""
        now_us = self.clock.now_us()
        ends = None if seconds is None else now_us + round(seconds * 1e6)
        key, record = make_key(name, scopes, claims, now_us, ends, rate=rate, connections=connections)
        self.inbox.post(Instruction("create", record.id, record))
        await self.rights.tick()
        return key

    async def revoke(self, key: str) -> None:
        self.inbox.post(Instruction("revoke", key.split("_")[1], at_us=self.clock.now_us()))
        await self.rights.tick()

    async def ask(
        self, method: str, path: str, key: str | None = None, body: bytes | None = None, **headers: str
    ) -> Answer:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        shown = {"Authorization": f"Bearer {key}"} if key else {}
        async with self.http.request(method, self.url + path, data=body, headers=shown | named) as reply:
            return Answer(reply.status, await reply.read(), dict(reply.headers))

    async def get(self, path: str, key: str | None = None, **headers: str) -> Answer:
        return await self.ask("GET", path, key, **headers)

    async def post(self, stream: str, key: str | None = None, body: bytes = b'{"amount": 1}', **headers: str) -> Answer:
        kind = {"Content_Type": "application/json"} | headers
        return await self.ask("POST", f"/streams/{stream}", key, body, **kind)

    def refused(self, reason: str) -> float:
        return self.observer.value("penstock_rights_refused_total", reason=reason)


def _fill(edge: SecureEdge) -> None:
    build = edge.flows.build("topics")
    edge.flows.commit(build, [{"topic": "jazz", "rsvps": 3, "group": "a"}])
    edge.flows.build("hidden")
    edge.flows.build("buyers", pa.schema([("phone", pa.string()), ("orders", pa.int64())]), ["phone"])


class Answer:
    def __init__(self, status: int, raw: bytes, headers: dict[str, str]) -> None:
        self.status, self.raw, self.headers = status, raw, headers

    @property
    def body(self) -> Any:
        return json.loads(self.raw)

    @property
    def tag(self) -> str:
        return next(value for name, value in self.headers.items() if name.lower() == "etag")

    @property
    def code(self) -> str:
        return str(self.body["error"]["code"])


@asynccontextmanager
async def secure_edge(
    path: Path,
    *,
    tokens: TokenOptions | None = None,
    cors: tuple[str, ...] = (),
    supervisor: str | None = None,
    app: Callable[[], App] = shop,
    site: Callable[[SecureEdge], None] = lambda edge: None,
    **limits_of_keys: Any,
) -> AsyncIterator[SecureEdge]:
    """`site` is called before anything starts; `limits_of_keys` are those of `Rights`."""
    async with AsyncExitStack() as opened:
        edge = SecureEdge(path, tokens, cors, supervisor, app(), **limits_of_keys)
        opened.callback(edge.log.close)
        opened.callback(edge.reader.close)
        opened.callback(edge.flows.close)
        opened.push_async_callback(asyncio.to_thread, edge.group.close)
        if app is shop:
            _fill(edge)
        site(edge)
        await edge.views.start()
        opened.push_async_callback(edge.views.stop)
        await edge.rights.start()
        opened.push_async_callback(edge.rights.close)
        runner = web.AppRunner(edge.site, access_log=None, auto_decompress=False, shutdown_timeout=1.0)
        await runner.setup()
        opened.push_async_callback(edge.collect.close)
        opened.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        edge.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        edge.http = await opened.enter_async_context(ClientSession(timeout=ClientTimeout(total=60)))
        yield edge
