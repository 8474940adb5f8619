"""The description of the HTTP interface is valid OpenAPI, and says of each path what really happens there."""

from __future__ import annotations

import asyncio
import json
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from io import BytesIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

from aiohttp import ClientSession, web
from aiohttp.test_utils import TestClient, TestServer, make_mocked_request
from described import Document
from edge import eventually
from fake_flows import FakeFlows, small_app, topic
from openapi_spec_validator import OpenAPIV31SpecValidator

from penstock.app import App
from penstock.clock import SystemClock
from penstock.collect.collection import Collect
from penstock.collect.letters.letter_office import DeadLetterOffice
from penstock.config import Folder, Limits
from penstock.errors import UnauthorizedError
from penstock.event import Event
from penstock.log.folder_log import FolderLog
from penstock.log.group_commit import GroupCommit
from penstock.log.opening import open_log
from penstock.observe.metrics import Observer
from penstock.position import Position
from penstock.rights.guard import Guard, routes_of
from penstock.rights.inbox import Instruction
from penstock.rights.keys import make_key
from penstock.rights.rights import Rights
from penstock.rights.tickets import SECRETS, Tickets
from penstock.run.edge import open_edge
from penstock.run.edge_log import Setting
from penstock.serve.replies import errors_as_json
from penstock.serve.serving import Serving
from penstock.serve.webhooks import webhook_registry
from penstock.serve.webhooks.address_rules import AddressRules
from penstock.serve.webhooks.webhook_registry import WebhookOptions
from penstock.testing.contracts.log_backends import BACKENDS
from penstock.views.views import RowsAfter, Views
from tests.docs.route_tables import ROUTES
from tests.memory_folder import memory_folder

Spec = dict[str, Any]
Operation = tuple[str, str]
"""Method and path."""
_STATIC = ("/assets/", "/favicon")
OPEN = ("/", "/healthz", "/readyz")
DOCUMENTS = ("/openapi.json", "/asyncapi.json")
STAYING = ("/events", "/socket", "/publish")
"""How the paths end whose connections stay; AsyncAPI describes them."""
LIMITS = Limits(body_bytes=100_000, view_bytes=200_000, body_pause_s=0.2)


def described_app() -> App:
    """The small app with a channel of a view and one of a stream."""
    app = small_app()
    app.channel("jazz", "topics", where="topic = 'jazz'")
    app.channel("yeses", "yes")
    app.channel("over", "elsewhere")
    return app


class Place(Event):
    place: str
    seats: int = 10


def app_of_everything() -> App:
    app = described_app()
    app.table("places", Place, key="place")
    return app


class Edge:
    """All that an edge is made of, within reach."""

    def __init__(self, folder: Folder) -> None:
        self.application = described_app().declared()
        self.observer = Observer()
        self.flows = FakeFlows(folder.flows_log)
        self.log = open_log(folder.edge_log, app="small")
        self.group = GroupCommit(self.log)
        self.reader = FolderLog(folder)
        self.views = Views(self.application, self.reader.flows, limits=LIMITS, observer=self.observer)
        clock = SystemClock()
        self.collect = Collect(
            self.application,
            self.log,
            self.group,
            self.views.wait_absorbed,
            LIMITS,
            clock,
            self.observer.emit,
            rows=RowsAfter(self.views),
        )
        checks = {"collect": lambda: self.group.problem or True}
        self.rights = Rights()  # keys are made when the log is gone; tickets need it
        self.rights.tickets = Tickets(self.log.memory(), clock, self._remember)
        self.serving = Serving(
            self.application,
            self.views,
            self.reader,
            folder=folder,
            checks=checks,
            remember=self._remember,
            rights=self.rights,
            memory=self.log.memory(),
            webhooks=WebhookOptions(AddressRules(anywhere=True)),
        )
        self.serving.status.more |= {
            "pulls": self.collect.pulls.status,
            "pressure": self.collect.pressure.status,
            "udp": self.collect.udps.status,
        }
        self.web = web.Application(middlewares=[errors_as_json(self.observer)])
        Guard(self.rights).add_to(self.web)
        self.collect.add_routes(self.web)
        DeadLetterOffice(
            self.reader, self.log.memory(), self.collect.intakes, LIMITS, clock, self.observer.emit
        ).add_routes(self.web)
        self.serving.add_routes(self.web)
        self.seen: dict[Operation, set[int]] = defaultdict(set)
        self.replies: list[tuple[str, str, int, str, Any]] = []
        """Method, path, status, content type and body of everything that was asked."""
        self.http: ClientSession

    async def _remember(self, values: Mapping[str, Any]) -> None:
        await asyncio.wrap_future(self.group.submit([], values))

    async def ask(self, method: str, path: str, body: Any = None, **more: Any) -> Any:
        """One request, whose status is noted."""
        data: Any = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        if data is not None and len(data) > 2**20:
            data = BytesIO(data)
        headers = {"Content-Type": "application/json", **more.pop("headers", {})}
        async with self.http.request(method, path, data=data, headers=headers, **more) as reply:
            self.seen[method.lower(), path].add(reply.status)
            endless = reply.content_type == "text/event-stream"
            image = reply.content_type == "image/gif"
            text = "" if endless or image or reply.status == 101 else await reply.text()
            found = json.loads(text) if text.startswith("{") else text
            self.replies.append((method.lower(), path, reply.status, reply.content_type, found))
        return found

    async def stall(self, path: str, method: str = "POST") -> None:
        """A body that is begun and never ended."""

        async def endless() -> AsyncIterator[bytes]:
            yield b"{"
            await asyncio.sleep(30)

        headers = {"Content-Type": "application/json"}
        async with self.http.request(method, path, data=endless(), headers=headers) as reply:
            self.seen[method.lower(), path].add(reply.status)

    async def expect(self, status: int, method: str, path: str, body: Any = None, **more: Any) -> Any:
        before = self.seen[method.lower(), path]
        self.seen[method.lower(), path] = set()
        answer = await self.ask(method, path, body, **more)
        found = self.seen[method.lower(), path]
        assert found == {status}, f"{method} {path} {more}: {found} instead of {status}: {answer}"
        found |= before
        return answer


@asynccontextmanager
async def running(folder: Folder) -> AsyncIterator[Edge]:
    edge = Edge(folder)
    await edge.views.start()
    await edge.collect.start()
    async with TestServer(edge.web) as server, ClientSession(base_url=server.make_url("/")) as edge.http:
        yield edge
    await edge.collect.close()
    await edge.views.stop()
    edge.group.close()
    for log in (edge.reader, edge.log, edge.flows):
        log.close()


async def test_it_is_valid(tmp_path: Path) -> None:
    async with running(memory_folder(tmp_path)) as edge:
        edge.flows.build()
        await eventually(lambda: edge.views.view("topics").content is not None, "loaded")
        spec = await edge.ask("GET", "/openapi.json")
    errors = [f"{list(error.absolute_path)}: {error.message}" for error in OpenAPIV31SpecValidator(spec).iter_errors()]
    assert errors == []
    event = spec["paths"]["/streams/rsvps"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert event["oneOf"][0] == {"$ref": "#/components/schemas/event.Rsvp"}
    assert spec["components"]["schemas"]["event.Rsvp"]["required"] == ["topic"]


async def test_it_has_every_route_of_the_edge_and_no_other(tmp_path: Path) -> None:
    async with AsyncExitStack() as opened:
        app = await open_edge(Setting(app_of_everything().declared(), memory_folder(tmp_path)), opened)
        async with TestClient(TestServer(app)) as client, client.get("/openapi.json") as reply:
            described = await reply.json()
            async with client.get("/asyncapi.json") as reply:
                others = await reply.json()
        there = set()
        for path, item in described["paths"].items():
            for method in item:
                route = await app.router.resolve(make_mocked_request(method.upper(), filled(path)))
                assert route.http_exception is None, f"{method} {path} is described and not served"
                there.add((method.upper(), route.route.resource.canonical if route.route.resource else path))
    served = {(route.method, route.resource.canonical) for route in app.router.routes() if route.resource}
    served = {(m, path) for m, path in served if m != "HEAD" and not path.startswith(_STATIC)}
    assert {(m, path) for m, path in served if not path.endswith(STAYING)} == there
    assert {route for route in routes_of(app) if route.summary} == set(ROUTES), "the whole table has handlers"
    names = {"{view}": "topics", "{stream}": "rsvps", "{channel}": "jazz"}
    staying = {path for _, path in served if path.endswith(STAYING)}
    for name, one in names.items():
        staying = {path.replace(name, one) for path in staying}
    assert staying <= {channel["address"] for channel in others["channels"].values()}


async def test_both_documents_name_the_parameters_that_are_taken_and_no_other(tmp_path: Path) -> None:
    async with AsyncExitStack() as opened:
        app = await open_edge(Setting(app_of_everything().declared(), memory_folder(tmp_path)), opened)
        async with TestClient(TestServer(app)) as client:
            spec, others = [await (await client.get(path)).json() for path in DOCUMENTS]
        described: dict[str, set[str]] = defaultdict(set)
        for path, item in spec["paths"].items():
            for method, operation in item.items() if path not in OPEN else ():
                route = await app.router.resolve(make_mocked_request(method.upper(), filled(path)))
                named = (p["name"] for p in operation.get("parameters", ()) if p["in"] == "query")
                described[f"{method.upper()} {canonical(route)}"] |= set(named)
        for channel in others["channels"].values():
            if not (channel["address"] or "").endswith(("/events", "/socket")):
                continue
            route = await app.router.resolve(make_mocked_request("GET", channel["address"]))
            (bindings,) = (channel.get("bindings") or one_operation(others, channel)["bindings"]).values()
            described[f"GET {canonical(route)}"] |= set(bindings.get("query", {}).get("properties", ()))
    for path in ("views/{view}", "streams/{stream}", "channels/{channel}"):
        described[f"GET /{path}/events"].add("lastEventId")  # another spelling
    described["POST /streams/{stream}"].add("key")  # a credential: `beacon` of the security schemes
    described["GET /streams/{stream}/pixel.gif"] = {"*"}
    taken = {route.request: set(route.taken) for route in routes_of(app) if route.path not in OPEN}
    assert {request: names for request, names in described.items() if names} == {r: n for r, n in taken.items() if n}


def canonical(route: Any) -> str:
    return str(route.route.resource.canonical)


def one_operation(spec: Spec, channel: Spec) -> Spec:
    """The operation that says how a channel over HTTP is asked."""
    found = [o for o in spec["operations"].values() if spec["channels"][o["channel"]["$ref"].split("/")[-1]] is channel]
    return found[0]


def by_route(spec: Spec, seen: Mapping[Operation, set[int]]) -> tuple[dict[str, set[int]], dict[str, set[int]]]:
    """Described and seen statuses, of all paths that one handler serves together."""
    described: dict[str, set[int]] = defaultdict(set)
    found: dict[str, set[int]] = defaultdict(set)
    for path, item in spec["paths"].items():
        for method, operation in item.items():
            described[route_of(method, path)] |= {int(status) for status in operation["responses"]}
    for (method, path), statuses in seen.items():
        found[route_of(method, path)] |= statuses
    return dict(described), dict(found)


def route_of(method: str, path: str) -> str:
    parts = path.split("/")
    if len(parts) > 2:
        parts[2] = "{}"
    return f"{method.upper()} {'/'.join(parts)}"


async def test_every_status_that_is_described_occurs_and_every_one_that_occurs_is_described(tmp_path: Path) -> None:
    async with running(Folder(tmp_path)) as edge:  # of a log in memory only large events can be refused for room
        spec = await edge.ask("GET", "/openapi.json")
        await ask_for_the_state_of_things(edge)
        ack = await post_all_kinds(edge)
        await read_views(edge, ack)
        await read_streams(edge)
        await read_channels(edge)
        await look_at_dead_letters(edge)
        await subscribe(edge)
        await leave_webhooks(edge)
        await when_the_log_fails(edge)
        now = Document(await edge.ask("GET", "/openapi.json"))
        await with_what_is_not_taken(edge, spec)
        await without_a_right(edge, spec)
        await above_the_limit(edge, spec)
        ending = {(method, path): found for (method, path), found in edge.seen.items() if not path.endswith(STAYING)}
        described, seen = by_route(spec, ending)
        assert seen == described
        for (method, path), statuses in ending.items():
            assert statuses <= {int(status) for status in spec["paths"][template(path)][method]["responses"]}, path
        replies = [reply for reply in edge.replies if not reply[1].endswith(STAYING)]
        assert [problem for reply in replies for problem in problems(now, *reply)] == []


def template(path: str) -> str:
    """A path as the document has it."""
    if path.startswith("/acks/"):
        return "/acks/{token}"
    if path.startswith("/subscribers/"):
        return "/subscribers/{name}"
    path = re.sub("^/webhooks/wh_[^/]*", "/webhooks/{id}", path)
    return "/dead/{letter}" if path.startswith("/dead/0-") else path


def problems(document: Document, method: str, path: str, status: int, kind: str, body: Any) -> list[str]:
    """What a reply has that its description does not say, or the other way round."""
    place = ["paths", template(path), method, "responses", str(status)]
    described = document.at("#/" + "/".join(part.replace("/", "~1") for part in place)).get("content")
    if not described:
        return [] if not body else [f"{method} {path} {status}: a body, and none is described"]
    if kind not in described:
        return [f"{method} {path} {status}: {kind}, and described is {list(described)}"]
    return document.problems([*place, "content", kind, "schema"], body) if kind == "application/json" else []


def filled(path: str) -> str:
    for name, value in {"token": "t", "letter": "0-0", "id": "wh_0", "name": "n", "key": "k"}.items():
        path = path.replace(f"{{{name}}}", value)
    return path


async def with_what_is_not_taken(edge: Edge, spec: Spec) -> None:
    """A parameter that no path knows, and an `Accept` that cannot be met."""
    for path, item in spec["paths"].items():
        for method, operation in item.items() if path not in OPEN and not path.endswith("/pixel.gif") else ():
            await edge.expect(400, method.upper(), filled(path), params={"were": "topic = 'a'"})
            if "406" in operation["responses"]:
                await edge.expect(406, "GET", path, headers={"Accept": "text/event-stream"})


async def without_a_right(edge: Edge, spec: Spec) -> None:
    """Everything that is not open to all: under a foreign name, and once there is a key, without one."""
    closed = [(method, path) for path, item in spec["paths"].items() for method in item if path not in OPEN]
    for method, path in closed:
        await edge.expect(
            403,
            method.upper(),
            filled(path),
            headers={"Host": "evil.example"},
        )
    _, record = make_key("", ("read:*",), {}, 0, None)
    await edge.rights.obey(Instruction("create", record.id, record))
    for method, path in closed:
        await edge.expect(401, method.upper(), filled(path))


async def above_the_limit(edge: Edge, spec: Spec) -> None:
    """Everything that needs a right, under a key that has asked already."""
    key, record = make_key("", ("admin",), {}, 0, None, rate="1/day")
    await edge.rights.obey(Instruction("create", record.id, record))
    shown = {"Authorization": f"Bearer {key}"}
    async with edge.http.get("/status", headers=shown) as reply:
        assert reply.status == 200
    for path, item in spec["paths"].items():
        for method in item if path not in OPEN else ():
            await edge.expect(429, method.upper(), filled(path), headers=shown)


async def ask_for_the_state_of_things(edge: Edge) -> None:
    for path in ("/", "/views", "/streams", "/status", "/graph", "/healthz", "/metrics", *DOCUMENTS):
        await edge.expect(200, "GET", path)
    for path in DOCUMENTS:
        async with edge.http.get(path) as reply:
            tag = reply.headers["ETag"]
        await edge.expect(304, "GET", path, headers={"If-None-Match": tag})
    await edge.expect(503, "GET", "/readyz")
    await edge.expect(200, "GET", "/readyz", params={"for": "collect"})
    await edge.expect(400, "GET", "/readyz", params={"for": "lunch"})


async def post_all_kinds(edge: Edge) -> str:
    post, path = "POST", "/streams/rsvps"
    ack = (await edge.expect(200, post, path, {"topic": "a"}))["ack"]
    receipt = (await edge.expect(202, post, path, {"topic": "a"}, params={"ack": "none"}))["ack"]
    producer = {"Producer-Id": "p", "Producer-Epoch": "1", "Producer-Seq": "0"}
    await edge.expect(200, post, path, {"topic": "a"}, headers=producer)
    await edge.expect(204, post, path, {"topic": "a"}, headers=producer)
    await edge.expect(403, post, path, {"topic": "a"}, headers=producer | {"Producer-Epoch": "0"})
    await edge.expect(409, post, path, {"topic": "a"}, headers=producer | {"Producer-Seq": "5"})
    await edge.expect(400, post, path, b"{")
    await edge.expect(404, post, path, {"topic": "a"}, params={"reply": "nope"})
    await edge.expect(202, post, path, {"topic": "a"}, params={"reply": "topics", "wait": 0})
    await edge.expect(200, "GET", f"{path}/pixel.gif", params={"topic": "a"})
    await edge.expect(413, post, path, {"topic": "a" * 200_000})
    await edge.expect(415, post, path, b"<a/>", headers={"Content-Type": "text/xml"})
    await edge.expect(422, post, path, {"topic": 1})
    await edge.expect(409, post, "/streams/dead", {"topic": "a"})
    await edge.stall(path)
    await edge.expect(200, "GET", f"/acks/{receipt}", params={"wait": 1})
    await edge.expect(400, "GET", f"/acks/{ack}", params={"wait": "long"})
    await edge.expect(404, "GET", f"/acks/{Position('stream', 'rsvps', 'another', (0,)).token()}")
    return str(ack)


async def read_views(edge: Edge, ack: str) -> None:
    path = "/views/topics"
    for loading in (path, "/channels/jazz"):
        await edge.expect(503, "GET", loading, params={"wait": 0})
    old = edge.flows.build()
    edge.flows.commit(old, [topic("a", 1)])
    at_old = (await edge.expect(200, "GET", path))["position"]
    await edge.expect(204, "GET", path, params={"since": at_old, "wait": 0})
    await edge.expect(504, "GET", path, params={"after": ack, "wait": 0})
    await edge.expect(400, "GET", path, params={"where": "nonsense("})
    async with edge.http.get(path) as reply:
        etag = reply.headers["ETag"]
    await edge.expect(304, "GET", path, headers={"If-None-Match": etag})
    new = edge.flows.build()
    edge.flows.commit(new, [topic("a", 1)])
    await eventually(lambda: edge.views.view("topics").content.epoch == new.epoch, "rebuilt")  # type: ignore[union-attr]
    for at in (path, f"{path}/events"):
        await edge.expect(410, "GET", at, params={"at_least": at_old, "wait": 0})
        await edge.expect(504, "GET", at, params={"after": ack, "wait": 0})
    large = edge.flows.build("elsewhere", key=("topic", "group"))
    edge.flows.commit(large, [topic(f"t{i}", i, "g" * 100) for i in range(5_000)])
    await eventually(lambda: edge.views.view("elsewhere").problem is not None, "over its budget")
    await edge.expect(507, "GET", "/views/elsewhere")
    await edge.expect(507, "GET", "/views/elsewhere/events")


async def read_streams(edge: Edge) -> None:
    await edge.expect(503, "GET", "/streams/yes")
    await edge.expect(503, "GET", "/streams/yes/schema")
    await edge.expect(200, "GET", "/streams/rsvps/schema")
    await edge.expect(400, "GET", "/streams/rsvps/schema", params={"version": "newest"})
    await edge.expect(404, "GET", "/streams/rsvps/schema", params={"version": 9})
    position = (await edge.expect(200, "GET", "/streams/rsvps"))["next"]
    await edge.expect(400, "GET", "/streams/rsvps", params={"limit": "-1"})
    stream = edge.flows.flow()
    edge.flows.emit(stream, ["a"], {})
    gone = (await edge.expect(200, "GET", "/streams/yes"))["next"]
    edge.flows.log.drop(stream)
    edge.flows.flow()
    await edge.expect(410, "GET", "/streams/yes", params={"after": gone})
    await edge.expect(400, "GET", "/streams/yes", params={"after": position})


async def read_channels(edge: Edge) -> None:
    await edge.expect(200, "GET", "/channels")
    path = "/channels/jazz"
    old = (await edge.expect(200, "GET", path))["position"]
    await edge.expect(204, "GET", path, params={"since": old, "wait": 0})
    await edge.expect(400, "GET", path, params={"where": "nonsense("})
    gone = Position("view", "topics", "another", (1,)).token()
    for at in (path, f"{path}/events"):
        await edge.expect(504, "GET", at, params={"at_least": _later(old), "wait": 0})
        await edge.expect(410, "GET", at, params={"at_least": gone, "wait": 0})
    async with edge.http.get(path) as reply:
        etag = reply.headers["ETag"]
    await edge.expect(304, "GET", path, headers={"If-None-Match": etag})
    await edge.expect(200, "GET", f"{path}/events")
    await edge.expect(400, "GET", f"{path}/events", params={"where": "nonsense("})
    await edge.expect(507, "GET", "/channels/over")
    await edge.expect(507, "GET", "/channels/over/events")
    await edge.expect(200, "GET", "/channels/yeses")
    await edge.expect(200, "GET", "/channels/yeses/events")
    ticket = {"channel": "jazz"}
    await edge.expect(201, "POST", "/tickets", ticket)
    await edge.expect(400, "POST", "/tickets", {"views": "jazz"})
    await edge.expect(404, "POST", "/tickets", {"view": "nope"})


def _later(token: str) -> str:
    position = Position.parse(token)
    return Position(position.kind, position.name, position.epoch, (position.offsets[0] + 9,)).token()


MENDED = {"letters": [{"letter": "0-0", "events": [{"topic": "a" * 50_000}]}]}


async def look_at_dead_letters(edge: Edge) -> None:
    await edge.expect(200, "GET", "/dead")
    await edge.expect(400, "GET", "/dead", params={"limit": "all"})
    await edge.expect(410, "GET", "/dead", params={"after": Position("stream", "dead", "x.y", (0, 0)).token()})
    await edge.expect(200, "GET", "/dead/0-0")
    await edge.expect(404, "GET", "/dead/0-99")
    edge.seen["get", "/dead/0-0"].add(400)
    async with edge.http.get("/dead/no-ne") as reply:
        assert reply.status == 400
    path = "/dead/replay"
    await edge.expect(200, "POST", path, MENDED | {"dry_run": True})
    await edge.expect(400, "POST", path, {"letters": "all"})
    await edge.expect(413, "POST", path, {"letters": ["a" * 200_000]})
    await edge.expect(415, "POST", path, b"<a/>", headers={"Content-Type": "text/xml"})


async def subscribe(edge: Edge) -> None:
    await edge.expect(200, "GET", "/views/topics/events")
    await edge.expect(400, "GET", "/views/topics/events", params={"where": "nonsense("})
    await edge.expect(200, "GET", "/streams/rsvps/events")
    await edge.expect(400, "GET", "/streams/rsvps/events", params={"after": "nonsense"})
    sockets = ("/views/topics/socket", "/streams/rsvps/socket", "/channels/jazz/socket")
    for path in (*sockets, "/streams/rsvps/publish", "/socket"):
        broken = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
        await edge.expect(400, "GET", path, headers=broken)
        if not path.endswith("publish"):
            await edge.expect(426, "GET", path)
        async with edge.http.ws_connect(path) as socket:
            edge.seen["get", path].add(101)
            await socket.close()
    async with edge.http.ws_connect("/socket") as socket:
        for name in ("n", "kept"):
            await socket.send_json({"type": "subscribe", "id": name, "view": "topics", "name": name})
            assert (await socket.receive_json())["type"] == "snapshot"
    await edge.expect(200, "GET", "/subscribers")
    await edge.expect(200, "DELETE", "/subscribers/n")
    await edge.expect(404, "DELETE", "/subscribers/n")


HOOK = {"url": "http://127.0.0.1:9/", "view": "topics"}
BELOW = {"": {}, "/secret": {}, "/replay": {"since": "start"}}
"""What takes a body below `/webhooks/{id}`."""


async def leave_webhooks(edge: Edge) -> None:
    made = await edge.expect(201, "POST", "/webhooks", HOOK)
    await edge.expect(400, "POST", "/webhooks", {"url": "x"})
    await edge.expect(404, "POST", "/webhooks", HOOK | {"view": "nothing"})
    await edge.expect(413, "POST", "/webhooks", b" " * 1_048_577)
    await edge.expect(507, "POST", "/webhooks", HOOK | {"view": "elsewhere"})
    await edge.stall("/webhooks")
    with patch.object(webhook_registry, "MOST", 0):
        await edge.expect(409, "POST", "/webhooks", HOOK)
    await edge.expect(200, "GET", "/webhooks")
    path, gone = f"/webhooks/{made['id']}", "/webhooks/wh_gone"
    for below, body in BELOW.items():
        method = "POST" if below else "PATCH"
        await edge.expect(202 if below == "/replay" else 200, method, path + below, body)
        await edge.expect(404, method, gone + below, body)
        await edge.expect(400, method, path + below, b"[")
        await edge.expect(413, method, path + below, b" " * 1_048_577)
        await edge.stall(path + below, method)
    for method, below in (("GET", ""), ("DELETE", ""), ("GET", "/deliveries"), ("POST", "/test")):
        await edge.expect(404, method, gone + below)
    for method, below in (("GET", ""), ("GET", "/deliveries"), ("POST", "/test")):
        await edge.expect(200, method, path + below)
    await edge.expect(200, "PATCH", path, {"enabled": False})
    with patch.object(Rights, "still", side_effect=UnauthorizedError("over")):
        reply = await edge.http.patch(path, json={"enabled": True})
        edge.seen["patch", path].add(reply.status)
    await edge.expect(204, "DELETE", path)


async def when_the_log_fails(edge: Edge) -> None:
    hook = f"/webhooks/{(await edge.expect(201, 'POST', '/webhooks', HOOK))['id']}"
    hooks: list[tuple[str, str, Any]] = [("POST", "/webhooks", HOOK), ("DELETE", hook, None)]
    hooks += [("POST" if below else "PATCH", hook + below, body) for below, body in BELOW.items()]
    rebuilds = ("/views/topics/rebuild", "/flows/yes/rebuild")
    for path in rebuilds:
        await edge.expect(202, "POST", path)
    with BACKENDS["sqlite"].starved(edge.log):
        while 507 not in edge.seen["post", "/streams/rsvps"]:
            await edge.ask("POST", "/streams/rsvps", {"topic": "a" * 50_000})
        while 507 not in edge.seen["get", "/streams/rsvps/pixel.gif"]:
            await edge.ask("GET", "/streams/rsvps/pixel.gif", params={"topic": "a" * 5_000})
        await edge.expect(507, "POST", "/dead/replay", MENDED)
        while 507 not in edge.seen["post", "/tickets"]:
            edge.log.memory().apply({SECRETS: None})  # the next ticket needs a new one, which must be in the log first
            await edge.ask("POST", "/tickets", {"channel": "jazz"})
        for path in rebuilds:
            async with asyncio.timeout(60):
                while 507 not in edge.seen["post", path]:
                    await edge.ask("POST", path)
        await edge.expect(507, "DELETE", "/subscribers/kept")
        for method, path, body in hooks:
            await edge.expect(507, method, path, body)
    await asyncio.to_thread(edge.group.close)
    await edge.expect(503, "POST", "/streams/rsvps", {"topic": "a"})
    await edge.expect(503, "GET", "/streams/rsvps/pixel.gif", params={"topic": "a"})
    await edge.expect(503, "POST", "/dead/replay", MENDED)
    edge.log.memory().apply({SECRETS: None})
    await edge.expect(503, "POST", "/tickets", {"channel": "jazz"})
    for path in rebuilds:
        await edge.expect(503, "POST", path)
    await edge.expect(503, "DELETE", "/subscribers/kept")
    for method, path, body in hooks:
        await edge.expect(503, method, path, body)
