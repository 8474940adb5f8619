"""Reads views and streams from threads: the same as `AsyncClient`, which it runs on a loop of its own."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import CancelledError, Future, wait
from contextlib import suppress
from functools import partial, wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, Unpack

from penstock.client.async_client import AsyncClient, ReadOptions
from penstock.client.conditions import Condition
from penstock.client.live_rows import AsyncLive, Live
from penstock.client.loop_thread import LoopThread
from penstock.client.producer import Producer, ProducerOptions
from penstock.client.read_request import Names
from penstock.client.row_calls import Calling, Calls, RowChange, in_order
from penstock.client.subscription import Following
from penstock.client.transport import Way
from penstock.errors import ClientClosedError

Item = TypeVar("Item")
P = ParamSpec("P")


class Watch(Iterator[Item], Generic[Item]):
    """An iterator that waits for what comes next; one thread at a time."""

    def __init__(self, following: Following[Item], loop_thread: LoopThread) -> None:
        self._following, self._loop_thread = following, loop_thread
        self._waiting: Future[Item] | None = None
        self._given: str | None = None
        """The position of the item that the caller got last: the reader may be one ahead, after a wait given up."""
        self._open = True

    def __del__(self) -> None:
        """Dropping a reader ends it, on the loop that it runs on.

        Python would finalise its generators one by one, in whichever thread that happens, while that loop closes them.
        """
        if self._open:
            with suppress(ClientClosedError):
                self._loop_thread.submit(self._following.aclose())

    def __next__(self) -> Item:
        return self.next()

    def next(self, timeout_s: float | None = None) -> Item:
        """The next item. Raises `TimeoutError` when time is up: nothing is lost by that.

        A wait that is given up goes on in the background. To cancel it could throw away what came in that moment.
        """
        waiting = self._waiting
        if waiting is None:
            waiting = self._waiting = self._loop_thread.submit(self._following.__anext__())
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
        """How old the newest event was when it came here; it grows while stalled or cut off. None: not known."""
        return self._following.lag_s

    @property
    def connected(self) -> bool:
        """Whether messages come."""
        return self._following.connected

    def close(self) -> None:
        """End it; `position` stays."""
        self._waiting, self._open = None, False
        self._loop_thread.run(self._following.aclose())

    def __enter__(self) -> Watch[Item]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# A method of `AsyncClient` says once what it takes and does; these make it one of `Client`, for editors and help too.


def _waited(
    method: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, Item]],
) -> Callable[Concatenate[Client, P], Item]:
    """The caller waits until it is done. A handler that is a plain function runs in a thread."""

    @wraps(method)
    def wait_for(self: Client, /, *args: P.args, **options: P.kwargs) -> Item:
        return self._loop_thread.run(method(self._client, *args, **options))

    return wait_for


def _iterated(
    method: Callable[Concatenate[AsyncClient, P], Following[Item]],
) -> Callable[Concatenate[Client, P], Watch[Item]]:
    """What an asynchronous iterator gives comes from a plain one."""

    @wraps(method)
    def iterate(self: Client, /, *args: P.args, **options: P.kwargs) -> Watch[Item]:
        return Watch(method(self._client, *args, **options), self._loop_thread)

    return iterate


def _lived(method: Callable[Concatenate[AsyncClient, P], AsyncLive]) -> Callable[Concatenate[Client, P], Live]:
    """It is kept current within `with`; `on_change` is called in the client's own thread."""

    @wraps(method)
    def live(self: Client, /, *args: P.args, **options: P.kwargs) -> Live:
        return Live(method(self._client, *args, **options), self._loop_thread)

    return live


class Client:
    """Reads from one server, from any number of threads.

    with Client("http://localhost:8080") as client:
        for changes in client.watch("topics", where="rsvps > 3"):
            print(changes.upserts, changes.deletes)
    """

    def __init__(self, url: str, **options: Unpack[ReadOptions]) -> None:
        self.url = url
        self._client = AsyncClient(url, **options)
        self._loop_thread = LoopThread()
        self._at_exit = partial(_end, self._loop_thread, self._client)
        atexit.register(self._at_exit)

    # Once

    get = _waited(AsyncClient.get)
    get_row = _waited(AsyncClient.get_row)
    views = _waited(AsyncClient.views)
    view = _waited(AsyncClient.view)

    # Rows of tables

    put_row = _waited(AsyncClient.put_row)
    patch_row = _waited(AsyncClient.patch_row)
    delete_row = _waited(AsyncClient.delete_row)

    # For ever

    watch = _iterated(AsyncClient.watch)
    live = _lived(AsyncClient.live)
    stream = _iterated(AsyncClient.stream)
    process = _waited(AsyncClient.process)

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
        return Calling(calls, lambda: watch.position, self._loop_thread)

    def producer(self, stream: str, **options: Unpack[ProducerOptions]) -> Producer:
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


def _end(loop_thread: LoopThread, client: AsyncClient) -> None:
    loop_thread.close(client.close())
