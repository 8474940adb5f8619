"""Puts stage 5 together and onto an aiohttp application: the one place that knows all paths of data access.

    views = Views(application, log.flows, limits=limits, clock=clock, observer=observer)
    serving = Serving(application, views, log, limits=limits, clock=clock, observer=observer, folder=folder)
    app = web.Application(middlewares=[errors_as_json(observer)])
    serving.add_routes(app)           # begins and ends with the application
    await views.start()

`checks` adds to readiness: `{"collect": lambda: group.problem or True}`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, get_args

import msgspec
from aiohttp import web

from penstock.clock import Clock, SystemClock, rfc3339
from penstock.config import Folder, Limits
from penstock.declaration import Application
from penstock.errors import BadRequestError, ForbiddenError, NotReadyError, PenstockError, UnknownViewError
from penstock.log import control_keys
from penstock.log.control import ControlMap
from penstock.log.folder_log import FolderLog
from penstock.observe.metrics import Observer
from penstock.observe.signals import AccessRefused, TicketIssued
from penstock.position import Position
from penstock.rights.credential import Credential, credential_of, heard_by
from penstock.rights.guard import bind, route_of, routes_of
from penstock.rights.rights import Ended, Rights
from penstock.rights.tickets import Kind
from penstock.route import only
from penstock.serve.catalogue import Catalogue
from penstock.serve.describe.asyncapi import asyncapi, servers_at
from penstock.serve.describe.audience import Audience
from penstock.serve.describe.message_schemas import SUBSCRIBE
from penstock.serve.describe.openapi import openapi
from penstock.serve.describe.serve_routes import ROUTES
from penstock.serve.describe.stream_versions import schema_body
from penstock.serve.fanout.hub import POSITION_S, Hub
from penstock.serve.fanout.messages import subscribed
from penstock.serve.health import Checks, alive, readiness
from penstock.serve.live_page import add_page
from penstock.serve.question import WAIT_S, Question, seconds, whole
from penstock.serve.replies import JSON, check_accept, json_reply, tagged_reply
from penstock.serve.sse import EVENTS, HEARTBEAT_S, SseReceiver, cut_events, last_event_id, serve_events
from penstock.serve.status import Status
from penstock.serve.status_filter import StatusFilter
from penstock.serve.stream_reads import Page, StreamReads, after_in
from penstock.serve.subscribers import Subscribers, nothing_is_remembered
from penstock.serve.view_reads import ViewReads
from penstock.serve.webhooks.webhook_registry import WebhookOptions, Webhooks
from penstock.serve.webhooks.webhook_routes import WebhookRoutes
from penstock.serve.websocket import RESTARTING, SocketReceiver, cut_socket, never_conflated, serve_socket
from penstock.sockets.pipe import Pipe
from penstock.views.store import View
from penstock.views.views import Views

_THINGS = ("view", "stream", "channel")
_NAMED = ("view", "stream", "channel", "where", "params", "select", "order_by", "limit")
"""What a named subscription is of: the same name with another of these is refused."""
_METRICS = "text/plain; version=0.0.4; charset=utf-8"


_TICKET = '{"view": "orders"}, or "stream" or "channel" with a name'

Subscribe = Callable[[SseReceiver], Awaitable[None]]


class Serving:
    """Data access over REST, long poll, SSE, WebSocket and webhooks."""

    def __init__(
        self,
        application: Application,
        views: Views,
        log: FolderLog,
        *,
        limits: Limits | None = None,
        clock: Clock | None = None,
        observer: Observer | None = None,
        folder: Folder | None = None,
        checks: Checks | None = None,
        remember: Callable[[Mapping[str, Any]], Awaitable[Any]] | None = None,
        memory: ControlMap | None = None,
        position_s: float = POSITION_S,
        heartbeat_s: float = HEARTBEAT_S,
        rights: Rights | None = None,
        webhooks: WebhookOptions | None = None,
        refusal: Callable[[], PenstockError] = nothing_is_remembered,
    ) -> None:
        """`memory` is that of the edge's log, to which `remember` writes. Without `remember` nothing is written: there
        are no webhooks, and who wants a subscription to be named gets `refusal`."""
        self.application, self.views = application, views
        self.limits, self.observer = limits or views.limits, observer or views.observer
        self.hub = Hub(self.limits, self.observer, position_s=position_s)
        self.status = Status(application, views, log, clock or SystemClock())
        self._streams, self._log = StreamReads(application, log, self.limits, self.observer), log
        self._subscribers = Subscribers(
            ControlMap() if memory is None else memory,
            remember,
            self.limits,
            clock or SystemClock(),
            self.observer,
            refusal,
        )
        self._checks: Checks = {"serve": lambda: views.ready, **(checks or {})}
        self._remember, self._clock = remember, clock or SystemClock()
        self._heartbeat_s, self._folder = heartbeat_s, folder
        self._rights = rights or Rights(clock=clock)
        self._reads = ViewReads(views, self.hub, self.limits, clock or SystemClock(), self._rights)
        self._catalogue = Catalogue(application)
        self._pipes: dict[Pipe, bytes] = {}
        self._webhooks = self._hooks(memory, webhooks)
        self.observer.gauge(
            "penstock_serve_unsent_bytes",
            "What waits in the edge's memory for subscribers to read it.",
            (),
            lambda: {(): float(sum(pipe.unsent_bytes for pipe in self._pipes))},
        )

        self._measure_times()

    def _measure_times(self) -> None:
        times = self.status.event_times
        self.observer.gauge(
            "penstock_serve_newest_seconds",
            "The newest event time of a stream, flow or view, in seconds since 1970.",
            ("name",),
            lambda: {(name,): t.newest_us / 1e6 for name, t in times().items() if t.newest_us is not None},
        )
        self.observer.gauge(
            "penstock_serve_complete_seconds",
            "The event time before which nothing is taken any more, in seconds since 1970.",
            ("name",),
            lambda: {(name,): t.complete_us / 1e6 for name, t in times().items() if t.complete_us is not None},
        )

    def _hooks(self, memory: ControlMap | None, options: WebhookOptions | None) -> Webhooks | None:
        if memory is None or self._remember is None:
            return None
        return Webhooks(
            memory,
            self._remember,
            views=self.views,
            hub=self.hub,
            reads=self._streams,
            log=self._log,
            rights=self._rights,
            clock=self._clock,
            limits=self.limits,
            observer=self.observer,
            catalogue=self._catalogue,
            spool=None if self._folder is None else self._folder.root,
            options=options,
        )

    def add_routes(self, app: web.Application) -> None:
        """All paths of data access; they begin and end with the application."""
        bind(
            app,
            ROUTES,
            views=self._list_views,
            channels=self._list_channels,
            ticket=self._ticket,
            socket=self._socket,
            subscribers=self._list_subscribers,
            streams=self._list_streams,
            schema_of=self._stream_schema,
            status=self._status,
            graph=self._graph,
            health=alive,
            readiness=readiness(self.views, self._checks),
            metrics=self._metrics,
            openapi=self._openapi,
            asyncapi=self._asyncapi,
            **{f"read_{kind}": self._read for kind in _THINGS},
            **{f"{kind}_events": self._events for kind in _THINGS},
            **{f"{kind}_socket": self._socket for kind in _THINGS},
        )
        if self._remember is not None:
            writing = {"rebuild_view": self._rebuild, "rebuild_flow": self._rebuild}
            bind(app, ROUTES, forget_subscriber=self._forget_subscriber, **writing)
        if self._webhooks is not None:
            WebhookRoutes(self._webhooks, self.limits.body_pause_s).add_routes(app)
        add_page(app)
        app.on_startup.append(self._start)
        app.on_shutdown.append(self._end_connections)
        app.on_cleanup.append(self._stop)

    # The state of things

    async def _list_views(self, request: web.Request) -> web.Response:
        return json_reply({"views": self._filter(request).views(self.status.views())})

    async def _list_streams(self, request: web.Request) -> web.Response:
        await self.status.refresh()
        return json_reply({"streams": self._filter(request).streams(self.status.streams())})

    async def _list_channels(self, request: web.Request) -> web.Response:
        return json_reply({"channels": self._filter(request).channels(self.status.channels())})

    def _filter(self, request: web.Request) -> StatusFilter:
        return StatusFilter(self.application, credential_of(request))

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=self.observer.text(), headers={"Content-Type": _METRICS})

    async def _status(self, request: web.Request) -> web.Response:
        await self.status.refresh()
        return json_reply(self._filter(request).status(self.status.body()))

    async def _graph(self, request: web.Request) -> web.Response:
        return json_reply(self._filter(request).graph(self.status.graph()))

    async def _openapi(self, request: web.Request) -> web.Response:
        return tagged_reply(request, openapi(routes_of(request.app), await self._audience(request)))

    async def _asyncapi(self, request: web.Request) -> web.Response:
        servers = servers_at(request.host, secure=request.secure, open=self._rights.is_open)
        return tagged_reply(request, asyncapi(routes_of(request.app), await self._audience(request), servers))

    async def _audience(self, request: web.Request) -> Audience:
        columns = await asyncio.to_thread(self._streams.columns)
        return Audience(self.application, self.views, self.limits, columns, credential_of(request))

    async def _rebuild(self, request: web.Request) -> web.Response:
        """Ask the flows to build a view or flow anew; the request itself lives in the log, so that it survives us. A
        view has a flow too: as a flow both may be named."""
        assert self._remember is not None
        kind = str(route_of(request).of)
        name, nodes = request.match_info[kind], [node.name for node in self.application.nodes]
        if kind == "view" and self.application.table(name) is None:
            self.views.view(name)
        elif name not in nodes:
            raise UnknownViewError(
                f"there is no flow or view '{name}'", hint=f"the app has: {', '.join(nodes) or 'none'}"
            )
        requested_us = self._clock.now_us()
        await self._remember({control_keys.rebuild(name): requested_us})
        return json_reply({kind: name, "rebuild": requested_us}, status=202)

    # Views, streams and channels

    def _named(self, kind: str, name: str) -> tuple[str, View | None]:
        """What a client means: the name of a view or stream, or of the one that a channel shows, and the view if it is
        one. Raises what the client is told when there is no such thing."""
        if kind == "channel":
            channel = self._catalogue.channel(name)
            kind, name = "view" if self._catalogue.is_view(channel) else "stream", channel.target
        if kind == "view":
            return name, self.views.view(name)
        self._streams.known(name)
        return name, None

    def _question_of(self, request: web.Request) -> tuple[str, View | None, Question]:
        """What a request is about, and what it asks."""
        route = route_of(request)
        name = request.match_info[str(route.of)]
        target, view = self._named(str(route.of), name)
        check_accept(request, EVENTS if request.path.endswith("/events") else JSON)
        question = self._catalogue.question(request.query, credential_of(request), name)
        if route.shown_as:
            route.shown_as["stream" if view is None else "view"].check(request.query)
        return target, view, question

    async def _read(self, request: web.Request) -> web.StreamResponse:
        name, view, question = self._question_of(request)
        if view is not None:
            return await self._reads.read(request, view, question)
        query = request.query
        limit = whole(query, "limit", self.limits.read_events, self.limits.read_events_most)
        wait_s = seconds(query, self.limits, default=0.0)
        page = await self._while_right(
            request, self._streams.page_within(name, after_in(query, name), question, limit, wait_s)
        )
        return json_reply({"stream": name, "events": page.events, "next": page.next.token()})

    async def _while_right(self, request: web.Request, work: Coroutine[Any, Any, Page]) -> Page:
        """What a request waits for, unless its right to it ends first."""
        ended, working = self._rights.watch(credential_of(request)), asyncio.ensure_future(work)
        either: list[asyncio.Future[Any]] = [working, ended]
        try:
            await asyncio.wait(either, return_when="FIRST_COMPLETED")
            if not working.done():
                raise ended.result()
            return working.result()
        finally:
            ended.cancel()
            working.cancel()

    async def _events(self, request: web.Request) -> web.StreamResponse:
        name, view, question = self._question_of(request)
        follow = self._stream_events if view is None else partial(self._view_events, view)
        subscribe = await follow(request, name, question)
        with self._open(b"", credential_of(request), cut_events) as opened:
            return await serve_events(
                request,
                subscribe,
                limits=self.limits,
                observer=self.observer,
                heartbeat_s=self._heartbeat_s,
                opened=opened,
            )

    async def _view_events(self, view: View, request: web.Request, name: str, question: Question) -> Subscribe:
        """What is wrong with the query is a 400, not an event; while the view is loading the subscription waits."""
        since = _since(last_event_id(request), name)
        with suppress(NotReadyError):
            question.query(view, await view.loaded(WAIT_S))
        if since is None:
            await self._reads.reached(view, request.query, seconds(request.query, self.limits))
        return lambda receiver: self.hub.subscribe(view, question, since, receiver)

    async def _stream_events(self, request: web.Request, name: str, question: Question) -> Subscribe:
        resumed = last_event_id(request)
        since = after_in({"after": resumed} if resumed else request.query, name)
        await self._streams.check(name, question)
        return lambda receiver: self._streams.follow(name, since, question, receiver)

    async def _socket(self, request: web.Request) -> web.StreamResponse:
        """For any number of things, or for the one that its path names."""
        kind = route_of(request).of
        if kind is None:
            return await self._talk(request, {})
        name = request.match_info[kind]
        self._named(kind, name)
        return await self._talk(request, {kind: name})

    async def _stream_schema(self, request: web.Request) -> web.Response:
        name = request.match_info["stream"]
        self._streams.known(name)
        if self._catalogue.rule(credential_of(request), name).columns is not None:
            raise ForbiddenError(
                f"the right to read '{name}' has a list of columns, and its schema names the others",
                hint="GET /streams names what may be read; a right without a list may see the schema",
            )
        number = whole(request.query, "version", 0, 2**31)
        return json_reply(await asyncio.to_thread(schema_body, self._log, name, number))

    async def _ticket(self, request: web.Request) -> web.Response:
        """For what a browser opens without being able to set a header."""
        kind, name = _ticketed(await request.read())
        credential = credential_of(request)
        credential.require("read", name)
        self._named(kind, name)
        self._catalogue.rule(credential, name)  # who may see nothing of it needs no ticket
        claims = self._catalogue.claims(credential, name)
        ticket, until_us = await self._rights.tickets.issue(credential, kind, name, claims)
        self.observer.emit(TicketIssued(kind))
        body = {"ticket": ticket, kind: name, "open_until": rfc3339(until_us)}
        return json_reply(body, 201, {"Cache-Control": "no-store"})

    # Subscriptions on sockets

    async def _subscribe(self, credential: Credential, fields: Mapping[str, Any], receiver: SocketReceiver) -> None:
        """What a `subscribe` message asks for."""
        try:
            await self._serve(credential, fields, receiver)
        except ForbiddenError:
            self.observer.emit(AccessRefused("scope"))
            raise
        except PenstockError as error:
            raise heard_by(credential, error) from None

    async def _serve(self, credential: Credential, fields: Mapping[str, Any], receiver: SocketReceiver) -> None:
        things = [(kind, str(fields[kind])) for kind in _THINGS if fields.get(kind)]
        if len(things) != 1:
            credential.require("read", "*")
            raise BadRequestError(
                "a subscription is of one view, stream or channel", hint='{"type": "subscribe", "view": ...}'
            )
        ((kind, name),) = things
        credential.require("read", name)
        target, view = self._named(kind, name)
        only(fields, SUBSCRIBE["stream" if view is None else "view"])
        question, since = self._catalogue.question(fields, credential, name), fields.get("since")
        if since is not None and not isinstance(since, str):
            raise BadRequestError("'since' must be a position or null", hint="pass a token as the server gave it")
        if view is None:
            receiver.of = "stream", target
            receiver.refuse_pace(never_conflated("a stream"))
            await self._name(credential, fields, receiver)
            await self._follow_stream(target, fields, question, receiver)
        else:
            receiver.of = "view", view.name
            if question.policy == "every_change":
                receiver.refuse_pace(never_conflated("every_change"))
            question.query(view, await view.loaded())
            await self._name(credential, fields, receiver)
            named = receiver.named.position if receiver.named else None
            resumed = since if since is not None else named
            if resumed is None:
                await self._reads.reached(view, fields, seconds(fields, self.limits))
            await self.hub.subscribe(view, question, _since(resumed, view.name), receiver)

    async def _follow_stream(
        self, name: str, fields: Mapping[str, Any], question: Question, receiver: SocketReceiver
    ) -> None:
        """From `since`, or where the name was acknowledged, or where the subscription that this one replaces was."""
        since, before = after_in(fields, name, "since"), receiver.before
        if fields.get("since") is None:
            if receiver.named is not None and receiver.named.position:
                since = Position.parse(receiver.named.position, "stream", name)
            elif before is not None and before[0] == receiver.of and before[1] is not None:
                since = before[1]
        receiver.reached = since
        if isinstance(since, Position) and before is not None:
            await receiver.send(subscribed(since.token()))

        def reached(position: Position | Callable[[], Position]) -> None:
            receiver.reached = position

        await self._streams.follow(name, since, question, receiver, reached)

    async def _name(self, credential: Credential, fields: Mapping[str, Any], receiver: SocketReceiver) -> None:
        if fields.get("name") is not None:
            of = {
                key: fields[key] for key in _NAMED if fields.get(key) is not None or (key == "limit" and key in fields)
            }
            receiver.name(await self._subscribers.open(credential, fields["name"], of))

    # Named subscriptions

    async def _list_subscribers(self, request: web.Request) -> web.Response:
        return json_reply({"subscribers": self._subscribers.listed(credential_of(request))})

    async def _forget_subscriber(self, request: web.Request) -> web.Response:
        credential, name = credential_of(request), request.match_info["name"]
        await self._subscribers.forget(credential, name, request.query.get("credential"))
        return json_reply({"forgotten": name})

    # Connections

    async def _talk(self, request: web.Request, defaults: Mapping[str, str]) -> web.StreamResponse:
        credential = credential_of(request)
        with self._open(RESTARTING, credential, cut_socket) as opened:
            return await serve_socket(
                request,
                partial(self._subscribe, credential),
                defaults,
                partial(self._rights.allowances.ask, credential),
                limits=self.limits,
                observer=self.observer,
                opened=opened,
            )

    @contextmanager
    def _open(
        self, goodbye: bytes, credential: Credential, cut: Callable[[PenstockError], bytes]
    ) -> Iterator[Callable[[Pipe], None]]:
        """Remember a connection while it is served, with what it is told when the edge stops or its right ends."""
        pipes: list[Pipe] = []
        ended = self._rights.watch(credential)

        def over(done: Ended) -> None:
            for pipe in pipes if not done.cancelled() else ():
                pipe.end(cut(done.result()))

        def opened(pipe: Pipe) -> None:
            pipes.append(pipe)
            self._pipes[pipe] = goodbye
            ended.add_done_callback(over)

        try:
            yield opened
        finally:
            ended.cancel()
            for pipe in pipes:
                del self._pipes[pipe]

    # Beginning and end

    async def _start(self, app: web.Application) -> None:
        await self.hub.start()
        await self._subscribers.start()
        await self._streams.start()
        await self.status.start()
        if self._webhooks is not None:
            await self._webhooks.start()

    async def _end_connections(self, app: web.Application) -> None:
        """Clients reconnect and resume: to another edge, or to this one when it is back."""
        for pipe, goodbye in self._pipes.items():
            pipe.end(goodbye)

    async def _stop(self, app: web.Application) -> None:
        if self._webhooks is not None:
            await self._webhooks.stop()
        await self.status.stop()
        await self._subscribers.stop()
        await self._streams.stop()
        await self.hub.stop()


def _since(token: str | None, view: str) -> Position | None:
    return None if token is None else Position.parse(token, "view", view)


def _ticketed(body: bytes) -> tuple[Kind, str]:
    try:
        fields = msgspec.json.decode(body, type=dict[str, str])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise BadRequestError("the body says not what the ticket is for", hint=f"send {_TICKET}") from None
    kinds: tuple[Kind, ...] = get_args(Kind)
    named = [(kind, fields[kind]) for kind in kinds if kind in fields]
    if len(named) != 1 or len(fields) != 1:
        raise BadRequestError("a ticket is for one view, stream or channel", hint=f"send {_TICKET}")
    return named[0]
