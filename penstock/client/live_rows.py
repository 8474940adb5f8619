"""A view as a dict that keeps itself current in the background: `AsyncLive` for asyncio, `Live` for threads.

1. A batch is applied all or none: whoever reads sees the rows of one position, never half of a batch.
2. Any thread may read; the client's loop applies.
3. An error that ends it is raised by whoever waits for news; the rows stay as they were, and `lag_s` grows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from threading import Condition
from typing import TypeVar

from penstock.client.loop_thread import LoopThread
from penstock.client.subscription import Following
from penstock.client.view_rows import Changes, Hashable, Row, frozen, key_of
from penstock.errors import ClientClosedError

_log = logging.getLogger("penstock.client")

OnChange = Callable[[Changes], None]
KeyColumns = Callable[[], Awaitable[Sequence[str]]]
T = TypeVar("T")


class LiveRows(Mapping[Hashable, Row]):
    """Rows by key: the value of the key's column, or a tuple of them. Whoever reads rows must not change them."""

    def __init__(self, watch: Following[Changes], key_columns: KeyColumns, on_change: OnChange | None) -> None:
        self.view = watch.request.name
        self._watch, self._key_columns, self._on_change = watch, key_columns, on_change
        self._key: Sequence[str] = ()
        self._rows: dict[Hashable, Row] = {}
        self._position: str | None = None
        self._failure: BaseException | None = None
        self._ended = False
        self._news = Condition()
        self._listeners: set[Callable[[], None]] = set()

    # Reading, from any thread

    def __getitem__(self, key: Hashable) -> Row:
        """The row of a key; a window or another struct may be given as a dict."""
        with self._news:
            return self._rows[frozen(key)]

    def __contains__(self, key: object) -> bool:
        with self._news:
            return frozen(key) in self._rows

    def __iter__(self) -> Iterator[Hashable]:
        """The keys of one moment."""
        with self._news:
            return iter(list(self._rows))

    def __len__(self) -> int:
        with self._news:
            return len(self._rows)

    def snapshot(self) -> tuple[dict[Hashable, Row], str | None]:
        """All rows, and the position of the batch that was applied last: of one moment."""
        with self._news:
            return dict(self._rows), self._position

    @property
    def position(self) -> str | None:
        """Up to where the rows are current: also behind batches that changed nothing here."""
        with self._news:
            return self._watch.position if self._watch.given == self._position else self._position

    @property
    def lag_s(self) -> float | None:
        """How old the newest event was when it came here; it grows while stalled or cut off. None: not known."""
        return self._watch.lag_s

    @property
    def connected(self) -> bool:
        """Whether messages come."""
        return self._watch.connected

    # In the client's loop

    async def _follow(self) -> None:
        try:
            async for changes in self._watch:
                if changes.snapshot:  # of another build, maybe, with another key
                    self._key = await self._key_columns()
                self._apply(changes)
        except asyncio.CancelledError:
            self._end(None)
            raise
        except BaseException as failure:
            self._end(failure)
        finally:
            await self._watch.aclose()

    def _apply(self, changes: Changes) -> None:
        upserts = {key_of(row, self._key): row for row in changes.upserts}
        deletes = [key_of(row, self._key) for row in changes.deletes]
        with self._news:
            if changes.snapshot:
                self._rows = {}
            for key in deletes:
                self._rows.pop(key, None)
            self._rows.update(upserts)
            self._position = changes.position
            self._news.notify_all()
        self._tell(changes)
        for listener in list(self._listeners):
            listener()

    def _tell(self, changes: Changes) -> None:
        if self._on_change is not None:
            try:
                self._on_change(changes)
            except Exception:
                _log.exception("on_change failed")

    def _end(self, failure: BaseException | None) -> None:
        with self._news:
            self._ended, self._failure = True, failure
            self._news.notify_all()
        for listener in list(self._listeners):
            listener()

    def _moved(self, than: str | None) -> bool:
        """Whether a batch was applied behind `than`. Raises what ended it."""
        if self._position != than:
            return True
        if self._failure is not None:
            raise self._failure
        if self._ended:
            raise ClientClosedError(f"the copy of '{self.view}' is closed", hint="use it within its with statement")
        return False


class AsyncLive(LiveRows):
    """For asyncio: `async with client.live("topics") as topics: topics["jazz"]["rsvps"]`."""

    _task: asyncio.Task[None] | None = None

    async def changed(self, than: str | None = None) -> str:
        """Wait for the next batch, or for one behind the position `than`; gives the position of the newest.

        Raises what ended the copy: a right that was taken away, a view that is gone.
        """
        return await self._until(self._position if than is None else than)

    async def _until(self, than: str | None) -> str:
        news = asyncio.Event()
        self._listeners.add(news.set)
        try:
            while not self._moved(than):
                await news.wait()
                news.clear()
        finally:
            self._listeners.discard(news.set)
        assert self._position is not None
        return self._position

    async def __aenter__(self) -> AsyncLive:
        """Wait until the rows are there."""
        self._task = asyncio.create_task(self._follow(), name=f"live {self.view}")
        try:
            await self._until(None)
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop following; the rows stay as they are."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


class Live(LiveRows):
    """For threads: `with client.live("topics") as topics: topics["jazz"]["rsvps"]`."""

    def __init__(self, same: AsyncLive, loop_thread: LoopThread) -> None:
        """`same` has not begun; it is followed on the loop of that thread."""
        super().__init__(same._watch, same._key_columns, same._on_change)
        self._loop_thread = loop_thread
        self._stop: Callable[[], None] | None = None

    def changed(self, than: str | None = None, timeout_s: float | None = None) -> str:
        """Wait for the next batch, or for one behind the position `than`; gives the position of the newest.

        Raises `TimeoutError`, or what ended the copy. It must not be called from `on_change`.
        """
        return self._until(self._position if than is None else than, timeout_s)

    def _until(self, than: str | None, timeout_s: float | None = None) -> str:
        with self._news:
            if not self._news.wait_for(lambda: self._moved(than), timeout_s):
                raise TimeoutError(f"nothing changed in '{self.view}' for {timeout_s:g} s")
            assert self._position is not None
            return self._position

    def __enter__(self) -> Live:
        """Wait until the rows are there."""
        self._stop = self._loop_thread.begin(self._follow())
        try:
            self._until(None)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop following; the rows stay as they are."""
        if self._stop is not None:
            self._stop()
