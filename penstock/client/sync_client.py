"""Reads views and streams from threads: the same as `AsyncClient`, which it runs on a loop of its own."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, Future, wait
from contextlib import suppress
from functools import partial
from os import PathLike
from typing import Any, Generic, TypeVar, Unpack

from penstock.client.asking import DEFAULT, Limit, Names
from penstock.client.async_client import AsyncClient, ReadOptions
from penstock.client.background import Background
from penstock.client.batch import Receipt
from penstock.client.calling import Calling, Calls, RowChange, in_order
from penstock.client.changes import Changes, Row
from penstock.client.conditions import Condition
from penstock.client.following import Following
from penstock.client.live import Live, OnChange
from penstock.client.parts import Options
from penstock.client.processing.processor import Handler, ProcessOptions
from penstock.client.processing.stores.choice import LEASE_S
from penstock.client.processing.work import Progress
from penstock.client.processing.work_store import WorkStore
from penstock.client.producer import Producer
from penstock.client.rows import Rows, ViewFacts
from penstock.client.transport import Way
from penstock.errors import ClientClosedError

Item = TypeVar("Item")


class Watch(Iterator[Item], Generic[Item]):
    """An iterator that waits for what comes next; one thread at a time."""

    def __init__(self, following: Following[Item], background: Background) -> None:
        self._following, self._background = following, background
        self._waiting: Future[Item] | None = None
        self._given: str | None = None
        """The position of the item that the caller got last: the reader may be one ahead, after a wait given up."""
        self._open = True

    def __del__(self) -> None:
        """Who drops a reader ends it, on the loop that it runs on.

        Python would finalise its generators one by one, in whichever thread that happens, while that loop closes them.
        """
        if self._open:
            with suppress(ClientClosedError):
                self._background.submit(self._following.aclose())

    def __next__(self) -> Item:
        return self.next()

    def next(self, timeout_s: float | None = None) -> Item:
        """The next item. Raises `TimeoutError` when time is up: nothing is lost by that.

        A wait that is given up goes on in the background. To cancel it could throw away what came in that moment.
        """
        waiting = self._waiting
        if waiting is None:
            waiting = self._waiting = self._background.submit(self._following.__anext__())
        if not wait([waiting], timeout_s).done:
            raise TimeoutError(f"nothing came for {timeout_s:g} s")
        self._waiting = None
        try:
            item = waiting.result()
            self._given = self._following.given
            return item
        except (StopAsyncIteration, CancelledError):
            raise StopIteration from None

    @property
    def position(self) -> str | None:
        """Where to go on from once the item that was given last is dealt with."""
        position = self._following.position  # read first: the reader moves it last
        return position if self._following.given == self._given else self._following.before

    @property
    def lag_s(self) -> float | None:
        """How old the newest event was when it came here; while stalled or cut off, growing. None: nobody said."""
        return self._following.lag_s

    @property
    def connected(self) -> bool:
        """Whether messages come."""
        return self._following.connected

    def close(self) -> None:
        """End it; `position` stays."""
        self._waiting, self._open = None, False
        self._background.run(self._following.aclose())

    def __enter__(self) -> Watch[Item]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Client:
    """Reads from one server, from any number of threads.

    with Client("http://localhost:8080") as client:
        for changes in client.watch("topics", where="rsvps > 3"):
            print(changes.upserts, changes.deletes)
    """

    def __init__(self, url: str, **options: Unpack[ReadOptions]) -> None:
        self.url = url
        self._client = AsyncClient(url, **options)
        self._background = Background()
        self._at_exit = partial(_end, self._background, self._client)
        atexit.register(self._at_exit)

    # Once

    def get(
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
        """As `AsyncClient.get`."""
        return self._background.run(
            self._client.get(
                view,
                where=where,
                params=params,
                select=select,
                order_by=order_by,
                limit=limit,
                key=key,
                after=after,
                at_least=at_least,
                wait=wait,
            )
        )

    def get_row(self, view: str, key: Any, **options: Any) -> Row | None:
        """As `AsyncClient.get_row`."""
        return self._background.run(self._client.get_row(view, key, **options))

    def views(self) -> list[ViewFacts]:
        """As `AsyncClient.views`."""
        return self._background.run(self._client.views())

    def view(self, name: str) -> ViewFacts:
        """As `AsyncClient.view`."""
        return self._background.run(self._client.view(name))

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
    ) -> Watch[Changes]:
        """As `AsyncClient.watch`, as a plain iterator."""
        following = self._client.watch(
            view,
            where=where,
            params=params,
            select=select,
            order_by=order_by,
            limit=limit,
            since=since,
            transport=transport,
        )
        return Watch(following, self._background)

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
    ) -> Live:
        """As `AsyncClient.live`, within `with`. `on_change` is called in the client's own thread."""
        following = self._client.watch(
            view, where=where, params=params, select=select, order_by=order_by, limit=limit, transport=transport
        )
        return Live(following, self._client.key_columns(view), on_change, self._background)

    def stream(
        self,
        name: str,
        *,
        where: str | Condition | None = None,
        params: Mapping[str, Any] | None = None,
        select: Names = None,
        since: str = "start",
        transport: Way | None = None,
    ) -> Watch[dict[str, Any]]:
        """As `AsyncClient.stream`, as a plain iterator."""
        following = self._client.stream(
            name, where=where, params=params, select=select, since=since, transport=transport
        )
        return Watch(following, self._background)

    def on(
        self,
        view: str,
        where: str | Condition | None,
        handler: Callable[[RowChange], None],
        *,
        params: Mapping[str, Any] | None = None,
        select: Names = None,
        existing: bool = False,
        transport: Way | None = None,
    ) -> Calling:
        """As `AsyncClient.on`; the handler is called in a thread, one change after the other, and may block."""
        watch = self._client.watch(view, where=where, params=params, select=select, limit=None, transport=transport)
        calls = Calls(watch, self._client.key_columns(view), in_order(handler, in_thread=True), existing)
        return Calling(calls, lambda: watch.position, self._background)

    def process(
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
        """As `AsyncClient.process`, waiting here until it ends; a handler that is a plain function runs in a thread."""
        return self._background.run(
            self._client.process(
                view,
                handler,
                store=store,
                name=name,
                where=where,
                params=params,
                select=select,
                lease_s=lease_s,
                **options,
            )
        )

    def producer(self, stream: str, **options: Unpack[Options]) -> Producer:
        """A producer to the same server, with the same key."""
        return Producer(self.url, stream, **self._client.producing(options))

    # End

    def close(self) -> None:
        """End what is still followed, and the connections. A program that forgets it does so at its end."""
        atexit.unregister(self._at_exit)
        self._at_exit()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _end(background: Background, client: AsyncClient) -> None:
    background.close(client.close())
