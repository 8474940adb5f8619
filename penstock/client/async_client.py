"""Reads views and streams from asyncio: rows once, changes as they come, a dict that keeps itself current."""

from __future__ import annotations

import asyncio
import ssl
import uuid
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from os import PathLike
from random import Random
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack
from weakref import WeakSet

from penstock.client.assembly import NewestPositions, StreamAssembly, ViewAssembly
from penstock.client.backoff import Backoff
from penstock.client.batch import Receipt
from penstock.client.conditions import Condition
from penstock.client.live_rows import AsyncLive, KeyColumns, OnChange
from penstock.client.processing.change_feed import ClientFeed
from penstock.client.processing.handler_run import in_thread
from penstock.client.processing.processor import Handler, Options, ProcessOptions, Processor
from penstock.client.processing.work import Progress
from penstock.client.processing.work_store import LEASE_S, WorkStore, open_store
from penstock.client.producer import AsyncProducer, ProducerOptions
from penstock.client.read_request import DEFAULT, Channel, Limit, Names, ReadRequest, read_request
from penstock.client.row_calls import AsyncCalling, Calls, RowChange, in_order
from penstock.client.subscription import Following, Means, Notify, logged
from penstock.client.transport import IDLE_S, FromEnd, Way, transport
from penstock.client.verdict import TransientFailure
from penstock.client.view_rows import Changes, Row, Rows, ViewFacts, facts_in, key_parameter, key_path
from penstock.clock import Clock, SystemClock
from penstock.errors import CertificateError, PositionGoneError, UnknownViewError, UnreachableError
from penstock.protocol import encode

if TYPE_CHECKING:
    from penstock.client.http_calls import HttpCalls

Key = str | Callable[[], str] | None
Reply = TypeVar("Reply")
TRIES = 3
"""How often a single read is tried when the connection fails."""
_WAIT_S = 5.0
"""How long a server waits for `after` and `at_least` unless told otherwise."""


class ReadOptions(TypedDict, total=False):
    """The options of both faces; docs/reference/client.md says what each means."""

    key: Key
    ca: str | PathLike[str] | None
    tls: ssl.SSLContext | None
    transport: Way
    monotonic: bool
    timeout_s: float
    idle_s: float
    backoff_most_s: float
    patience_s: float | None
    compress: bool
    notify: Notify
    clock: Clock
    random: Random


class RowOptions(TypedDict, total=False):
    """The options of `get` that make sense for one row."""

    where: str | Condition | None
    params: Mapping[str, Any] | None
    select: Names
    after: str | Receipt | None
    at_least: str | None
    wait: float | None


class AsyncClient:
    """Reads from one server.

        async with AsyncClient("http://localhost:8080") as client:
            async for changes in client.watch("topics", where="rsvps > 3"):
                print(changes.upserts, changes.deletes)

    It connects when it is first asked for something, and belongs to the loop that asked.
    """

    def __init__(
        self,
        url: str,
        *,
        key: Key = None,
        ca: str | PathLike[str] | None = None,
        tls: ssl.SSLContext | None = None,
        transport: Way = "websocket",
        monotonic: bool = True,
        timeout_s: float = 30.0,
        idle_s: float = IDLE_S,
        backoff_most_s: float = 10.0,
        patience_s: float | None = None,
        compress: bool = False,
        notify: Notify = logged,
        clock: Clock | None = None,
        random: Random | None = None,
    ) -> None:
        self.url = url
        self._key, self._tls = key, tls if tls is not None or ca is None else _trusting(ca)
        self._way, self._monotonic = transport, monotonic
        self._timeout_s, self._idle_s, self._compress = timeout_s, idle_s, compress
        self._backoff_most_s, self._patience_s, self._notify = backoff_most_s, patience_s, notify
        self._clock, self._random = clock or SystemClock(), random or Random()
        self._newest = NewestPositions()
        self._open: HttpCalls | None = None
        self._following: WeakSet[Following[Any]] = WeakSet()

    # Once

    async def get(
        self,
        view: str,
        *,
        where: str | Condition | None = None,
        params: Mapping[str, Any] | None = None,
        select: Names = None,
        order_by: Names = None,
        limit: Limit = DEFAULT,
        key: Any = None,
        after: str | Receipt | None = None,
        at_least: str | None = None,
        wait: float | None = None,
    ) -> Rows:
        """The rows of one moment.

        `after` (an ack, or a producer's receipt) waits until that event is absorbed; `at_least` until the view has
        reached a position. Without it, rows are never older than what this client has seen of the view before. Both
        wait for `wait` seconds and then raise `NotYetError`.
        """
        request = read_request("view", view, where, params, select, order_by, limit)
        parameters = request.parameters()
        if key is not None:
            parameters["key"] = key_parameter(key, await self.view(view) if isinstance(key, dict | tuple) else None)
        if after is not None:
            parameters["after"] = after.ack if isinstance(after, Receipt) else after
        if wait is not None:
            parameters["wait"] = f"{wait:g}"
        return await self._rows(request, parameters, at_least, _WAIT_S if wait is None else wait)

    async def get_row(self, view: str, key: Any, **options: Unpack[RowOptions]) -> Row | None:
        """The row of a key (a value, a tuple in the order of the key's columns, or a dict of them), or None."""
        rows = await self.get(view, key=key, **options)
        return rows[0] if rows else None

    async def views(self) -> list[ViewFacts]:
        """What this client may read."""
        body = await self._get("/views", {})
        return [facts_in(one) for one in body["views"]]

    async def view(self, name: str) -> ViewFacts:
        """What the server says of one view, or of a channel of one."""
        try:
            return await self._facts(name)
        except TransientFailure as failure:
            raise failure.why from None

    # Rows of tables

    async def put_row(self, table: str, key: Any, row: Any) -> str:
        """Set a row of a table, and give its ack, for `after=`. A key as for `get_row`; the row may leave it out."""
        return await self._change("PUT", table, key, encode(row))

    async def patch_row(self, table: str, key: Any, fields: Mapping[str, Any]) -> str:
        """Change these fields of a row; None takes one out, so that it has its default."""
        return await self._change("PATCH", table, key, encode(dict(fields)))

    async def delete_row(self, table: str, key: Any) -> str:
        """Delete a row; one that is not there stays away."""
        return await self._change("DELETE", table, key, None)

    # For ever

    def watch(
        self,
        view: str,
        *,
        where: str | Condition | None = None,
        params: Mapping[str, Any] | None = None,
        select: Names = None,
        order_by: Names = None,
        limit: Limit = DEFAULT,
        since: str | None = None,
        transport: Way | None = None,
    ) -> Following[Changes]:
        """A snapshot, then every batch that changes something, across breaks; behind the position `since`, the batches
        alone. What the caller does not ask for is not read: a slow reader is conflated or cut by the server, and
        resumes.
        """
        request = read_request("view", view, where, params, select, order_by, limit)
        return self._watch(request, since, transport)

    def live(
        self,
        view: str,
        *,
        where: str | Condition | None = None,
        params: Mapping[str, Any] | None = None,
        select: Names = None,
        order_by: Names = None,
        limit: Limit = DEFAULT,
        on_change: OnChange | None = None,
        transport: Way | None = None,
    ) -> AsyncLive:
        """The view as a dict that is kept current within `async with` (of a `Client`: `with`).

        `on_change` is called after each batch, by the client's loop.
        """
        request = read_request("view", view, where, params, select, order_by, limit)
        return AsyncLive(self._watch(request, None, transport), self.key_columns(view), on_change)

    def stream(
        self,
        name: str,
        *,
        where: str | Condition | None = None,
        params: Mapping[str, Any] | None = None,
        select: Names = None,
        since: str = "start",
        transport: Way | None = None,
    ) -> Following[dict[str, Any]]:
        """The events of a stream behind `since` (a position, `start` or `end`), each once and in order, for ever.

        Raises `PositionGoneError` where retention has removed events that were not read.
        """
        request = read_request("stream", name, where, params, select)
        return self._follow(request, since, lambda position: StreamAssembly(name, position), transport)

    def on(
        self,
        view: str,
        where: str | Condition | None,
        handler: Callable[[RowChange], Awaitable[None] | None],
        *,
        params: Mapping[str, Any] | None = None,
        select: Names = None,
        existing: bool = False,
        transport: Way | None = None,
    ) -> AsyncCalling:
        """Call `handler` for each row that comes to meet `where` or changes while it does, one after the other.

        `existing`: also for the rows that meet it at the beginning. A handler that fails ends it. At least once for
        each connection, and nothing is kept over a restart: `process` handles each change exactly once.
        """
        request = read_request("view", view, where, params, select, limit=None)
        watch = self._watch(request, None, transport)
        calls = Calls(watch, self.key_columns(view), in_order(handler, in_thread=False), existing)
        return AsyncCalling(calls, lambda: watch.position)

    async def process(
        self,
        view: str,
        handler: Handler,
        *,
        store: str | PathLike[str] | WorkStore,
        name: str | None = None,
        where: str | Condition | None = None,
        params: Mapping[str, Any] | None = None,
        select: Names = None,
        lease_s: float = LEASE_S,
        **options: Unpack[ProcessOptions],
    ) -> Progress:
        """Call `handler(change, ctx)` for each change, once, over crashes of this process and of whom it calls.

        `store` (a file, `postgresql://...`, or a store) holds what was received and what was sent under `name`
        (default: the view's). A handler that fails is tried again; what it calls with `ctx.call` is logged and not
        repeated.
        Goes on until it is cancelled, `stop` is set, or all is done (`once`); then says how far it is.
        """
        request = read_request("view", view, where, params, select, limit=None)
        feed = ClientFeed(
            request, lambda: self._key_of(view), lambda since: self._watch(request, since, None), self._get
        )

        opening = partial(open_store, lease_s=lease_s)
        work = await in_thread(opening, store, name or view) if isinstance(store, str | PathLike) else store
        try:
            processor = Processor(feed, handler, work, Options(**options))
            return await processor.run(request.where, request.params, request.select)
        finally:
            if work is not store:
                await in_thread(work.close)

    def producer(self, stream: str, **options: Unpack[ProducerOptions]) -> AsyncProducer:
        """A producer to the same server, with the same key."""
        return AsyncProducer(self.url, stream, **self.producing(options))

    # Beginning and end

    async def close(self) -> None:
        """End what is still followed, and the connections."""
        for following in list(self._following):
            await following.aclose()
        calls, self._open = self._open, None
        if calls is not None:
            await calls.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # Parts

    def _calls(self) -> HttpCalls:
        if self._open is None:
            from penstock.client.http_calls import HttpCalls

            self._open = HttpCalls(self.url, self._key, self._tls, self._timeout_s)
        return self._open

    async def _rows(
        self, request: ReadRequest, parameters: dict[str, str], at_least: str | None, wait_s: float
    ) -> Rows:
        newest = self._newest.at(request.name) if self._monotonic and at_least is None else None
        position = at_least or newest
        try:
            body = await self._get(request.path, parameters | ({"at_least": position} if position else {}), wait_s)
        except PositionGoneError:
            if newest is None:
                raise
            self._newest.forget(request.name)  # of a build that was replaced: there is nothing to go back to
            body = await self._get(request.path, parameters, wait_s)
        self._newest.note(request.name, body["position"])
        return Rows(
            request.name, tuple(body["rows"]), body["position"], body.get("frontier") or {}, body.get("complete")
        )

    async def _get(self, path: str, parameters: Mapping[str, str], wait_s: float = 0.0) -> Mapping[str, Any]:
        try:
            return await self._tried(path, parameters, wait_s)
        except TransientFailure as failure:
            raise failure.why from None

    async def _change(self, method: str, table: str, key: Any, body: bytes | None) -> str:
        """Once, however often it is tried: the server knows each try by its key."""
        path, once = f"/tables/{table}/{key_path(key, await self.view(table))}", uuid.uuid4().hex
        try:
            reply = await self._again(lambda: self._calls().send(method, path, body, once))
        except TransientFailure as failure:
            raise failure.why from None
        return str(reply["ack"])

    async def _tried(self, path: str, parameters: Mapping[str, str], wait_s: float = 0.0) -> Mapping[str, Any]:
        return await self._again(lambda: self._calls().get(path, parameters, wait_s)) or {}

    async def _again(self, ask: Callable[[], Awaitable[Reply]]) -> Reply:
        """What may be repeated: a broken connection is tried again, a few times. Raises `TransientFailure`."""
        backoff = Backoff(self._backoff_most_s, self._random)
        for left in range(TRIES - 1, -1, -1):
            try:
                return await ask()
            except TransientFailure as failure:
                if not left or type(failure.why) is not UnreachableError:
                    raise
                await asyncio.sleep(backoff.pause_s(failure.why.retry_after_s))
        raise AssertionError

    async def _facts(self, name: str) -> ViewFacts:
        if isinstance(name, Channel):
            body = await self._tried("/channels", {})
            facts = {one["channel"]: facts_in(one | {"view": one["channel"]}) for one in body["channels"]}
        else:
            body = await self._tried("/views", {})
            facts = {one["view"]: facts_in(one) for one in body["views"]}
        if name not in facts:
            raise UnknownViewError(f"there is no view '{name}'", hint=f"there are: {', '.join(facts) or 'none'}")
        return facts[name]

    def _watch(self, request: ReadRequest, since: str | None, way: Way | None) -> Following[Changes]:
        return self._follow(
            request,
            since,
            lambda position: ViewAssembly(request.name, position),
            way,
            lambda position: self._newest.note(request.name, position),
        )

    def _follow(
        self, request: ReadRequest, since: str | None, assembly: Any, way: Way | None, *seen: Any
    ) -> Following[Any]:
        calls = self._calls()
        means = Means(
            FromEnd(calls, transport(way or self._way, calls, self._idle_s, self._compress)),
            self._notify,
            self._clock,
            self._random,
            asyncio.sleep,
            self._backoff_most_s,
            self._patience_s,
            calls.is_new_key,
        )
        following: Following[Any] = Following(request, since, means, assembly, *seen)
        self._following.add(following)
        return following

    def key_columns(self, view: str) -> KeyColumns:
        """Asks for the names of the key's columns, each time anew, until somebody answers or patience ends."""

        async def columns() -> tuple[str, ...]:
            backoff, began = Backoff(self._backoff_most_s, self._random), self._clock.monotonic()
            while True:
                try:
                    return await self._key_of(view)
                except TransientFailure as failure:
                    if self._patience_s is not None and self._clock.monotonic() - began >= self._patience_s:
                        raise failure.why from None
                    await asyncio.sleep(backoff.pause_s(failure.why.retry_after_s))

        return columns

    async def _key_of(self, view: str) -> tuple[str, ...]:
        """Raises `TransientFailure`."""
        try:
            return (await self._facts(view)).key
        except UnreachableError as garbled:
            raise TransientFailure(garbled) from None

    def producing(self, options: ProducerOptions) -> ProducerOptions:
        """The options of a producer that uses this client's key."""
        ours: ProducerOptions = {"key": self._key, "tls": self._tls, "clock": self._clock}
        return ours | options


def _trusting(ca: str | PathLike[str]) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise CertificateError(
            f"'{ca}' is not a certificate", detail=error.strerror, hint="pass a PEM file with ca="
        ) from None
