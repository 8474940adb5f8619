"""One webhook at work: reads what is next, delivers it, waits when it is not taken, and never goes past it.

1. One delivery is under way at a time, in order. The next one is sent when the one before was taken (2xx).
2. While an endpoint is in trouble nothing is held for it but its place; what it missed is read again.
3. Before each attempt the owner's right is looked at; when it has ended nothing more is sent.
4. What goes wrong here is told and tried again. Nothing that one endpoint does reaches another.
5. Endpoints in trouble take no place of those that are well (`Lanes`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from penstock.clock import rfc3339
from penstock.errors import PenstockError
from penstock.observe.signals import (
    Signal,
    WebhookBlocked,
    WebhookDelivered,
    WebhookFailed,
    WebhookReset,
    WebhookRetried,
)
from penstock.rights.rights import Rights
from penstock.serve.question import Question
from penstock.serve.webhooks.delivery import Delivery, DeliveryStep, Level
from penstock.serve.webhooks.poster import Poster, PostOutcome
from penstock.serve.webhooks.progress_keeper import ProgressKeeper
from penstock.serve.webhooks.schedule import Pace, Schedule
from penstock.serve.webhooks.webhook import (
    Reason,
    Trouble,
    Webhook,
    WebhookPlace,
    WebhookProgress,
    signed_headers,
    stored_progress,
)

BLOCKED_S = 30.0
"""How long to wait before a view or stream that cannot be read is tried again."""
LARGE_BYTES = 256 * 1024
"""More is signed in a thread: on the loop it would take over 1 ms for each secret."""
HELD_TRIES = 3
"""Tries of a part of a snapshot before all of it begins anew."""

State = Literal["level", "delivering", "paused", "blocked", "disabled"]
STATES: tuple[State, ...] = ("level", "delivering", "paused", "blocked", "disabled")


KEPT = 20
"""Deliveries that are kept of each webhook."""
TRIES = 20
"""Attempts that are kept of each delivery: the newest."""


@dataclass(slots=True)
class _Record:
    id: str
    type: str
    position: str
    attempts: int = 0
    taken: bool = False
    newest: deque[tuple[int, PostOutcome]] = field(default_factory=lambda: deque(maxlen=TRIES))


class Attempts:
    """What became of the newest deliveries of a webhook, attempt by attempt, since the process started."""

    def __init__(self) -> None:
        self._records: deque[_Record] = deque(maxlen=KEPT)

    def note(self, delivery: Delivery, at_us: int, outcome: PostOutcome) -> None:
        record = self._records[-1] if self._records else None
        if record is None or record.id != delivery.id or record.taken:
            record = _Record(delivery.id, delivery.type, delivery.position)
            self._records.append(record)
        record.attempts += 1
        record.taken = outcome.taken
        record.newest.append((at_us, outcome))

    def body(self) -> list[dict[str, Any]]:
        """Newest first."""
        return [
            {
                "id": record.id,
                "type": record.type,
                "position": record.position,
                "delivered": record.taken,
                "attempts": record.attempts,
                "newest": [{"at": rfc3339(at_us)} | outcome.body() for at_us, outcome in reversed(record.newest)],
            }
            for record in reversed(self._records)
        ]


T = TypeVar("T")

FAST = 128
SLOW = 64
MOMENT_S = 2.0
"""How long an attempt may stay in the fast lane."""


class Crowded(Exception):
    """The attempt was slow, and there was no room left for slow ones."""


class Lanes:
    """Shares out how many deliveries of an edge may be under way; lives on its loop.

    Whoever failed last time, and whoever is new and has taken nothing yet, goes through the slow lane. In the fast lane
    an attempt has a moment; then it moves over into the slow lane, or is ended when that is full too: what a crowd of
    hanging endpoints uses up is their own room.
    """

    def __init__(self, fast: int = FAST, slow: int = SLOW, moment_s: float = MOMENT_S) -> None:
        self._fast, self._slow = asyncio.Semaphore(fast), asyncio.Semaphore(slow)
        self._moment_s = moment_s

    async def run(self, attempt: Callable[[], Awaitable[T]], *, troubled: bool) -> T:
        """The attempt's result; raises `Crowded`, or what it raises."""
        if troubled:
            async with self._slow:
                return await attempt()
        task = await self._begun(attempt)
        try:
            if not task.done():
                if self._slow.locked():
                    raise Crowded
                async with self._slow:
                    await asyncio.wait([task])
            return task.result()
        finally:
            await _ended(task)

    async def _begun(self, attempt: Callable[[], Awaitable[T]]) -> asyncio.Task[T]:
        """The attempt after its moment in the fast lane."""
        async with self._fast:
            task = asyncio.ensure_future(attempt())
            try:
                await asyncio.wait([task], timeout=self._moment_s)
            except BaseException:
                await _ended(task)
                raise
            return task


async def _ended(task: asyncio.Task[T]) -> None:
    if not task.done():
        task.cancel()
        await asyncio.wait([task])


class DeliverySource(Protocol):
    """Where deliveries come from: the views or the streams of an edge."""

    def steps(
        self, webhook: Webhook, question: Question, place: WebhookPlace, level: Level
    ) -> AsyncGenerator[DeliveryStep, None]: ...

    def passed(self, webhook: Webhook) -> str | None: ...


@dataclass(frozen=True)
class Works:
    """What all endpoints of an edge share."""

    sources: dict[str, DeliverySource]
    poster: Poster
    lanes: Lanes
    keeper: ProgressKeeper
    schedule: Schedule
    pace: Pace
    rights: Rights
    signals: Callable[[Signal], None]
    question: Callable[[Webhook], Question]
    disable: Callable[[str, Reason, str], None]


class Endpoint:
    """Of one webhook, between `start` and `stop`."""

    def __init__(
        self,
        webhook: Webhook,
        progress: WebhookProgress,
        works: Works,
        attempts: Attempts | None = None,
        *,
        proven: bool = True,
    ) -> None:
        """`proven`: this address has taken something before; until then it is treated as one in trouble."""
        self.webhook, self.place, self.trouble = webhook, progress.place, progress.trouble
        self.attempts = attempts or Attempts()
        self.state: State = "disabled" if webhook.disabled else "level"
        self.problem: str | None = None
        self.proven = proven
        self._behind_us: int | None = None
        self._written = progress
        self._works = works
        self._task: asyncio.Task[None] | None = None

    # For the registry

    def start(self) -> None:
        if self.webhook.disabled is None and self._task is None:
            self._task = asyncio.create_task(self._live(), name=f"webhook {self.webhook.id}")

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            self.place = self.progress().place
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def progress(self) -> WebhookProgress:
        """As it is written down. A webhook that has everything also has what has passed without concerning it."""
        passed = self._works.sources[self.webhook.kind].passed(self.webhook) if self.state == "level" else None
        place = self.place if passed is None else msgspec.structs.replace(self.place, position=passed)
        return WebhookProgress(place, self.trouble)

    def stored(self) -> dict[str, Any]:
        """What the log is about to know."""
        self._written = self.progress()
        return stored_progress(self.webhook.id, self._written)

    @property
    def moved(self) -> bool:
        """Whether the log knows less than is true."""
        return self.progress() != self._written

    def lag_s(self) -> float:
        """How long it has not had everything."""
        since_us = self.trouble.since_us if self.trouble else self._behind_us
        return 0.0 if since_us is None else max(0.0, (self._works.pace.now_us() - since_us) / 1e6)

    def body(self) -> dict[str, Any]:
        trouble = self.trouble
        return self.webhook.body() | {
            "state": self.state,
            "position": self.progress().place.position,
            "lag_s": round(self.lag_s(), 3),
            "problem": self.problem,
            "failing": trouble
            and {
                "since": rfc3339(trouble.since_us),
                "attempts": trouble.attempts,
                "retry": rfc3339(trouble.retry_us),
                "error": trouble.error,
            },
        }

    # At work

    async def _live(self) -> None:
        while self.webhook.disabled is None:
            try:
                await self._until_due()
                await self._round()
                self.problem = None
            except PenstockError as error:
                await self._blocked(f"{error.code}: {error.message}")
            except Exception as error:
                await self._blocked(f"{type(error).__name__}: {error}")
        self.state = "disabled"

    async def _round(self) -> None:
        """Deliver, until an attempt fails or the source wants to begin anew."""
        works, webhook = self._works, self.webhook
        source = works.sources[webhook.kind]
        async with aclosing(source.steps(webhook, works.question(webhook), self.place, self._level)) as steps:
            async for step in steps:
                if step.delivery is not None and not await self._delivered(step.delivery):
                    return
                await self._advance(step)

    async def _advance(self, step: DeliveryStep) -> None:
        if step.then.fell is not None and self.place.fell is None:
            self._works.signals(WebhookReset(self.webhook.id, step.then.fell))
        self.place = step.then
        if step.durable:
            await self._works.keeper.write(self.stored())
        elif step.delivery is not None:
            self._works.keeper.note(self.webhook.id)

    def _level(self) -> None:
        """The source has nothing more; a webhook in trouble has something, and has not read it again yet."""
        if self.trouble is None:
            self.state, self.problem, self._behind_us = "level", None, None

    async def _until_due(self) -> None:
        if self.trouble is not None:
            self.state = "paused"
            await self._works.pace.until(self.trouble.retry_us)

    async def _blocked(self, problem: str) -> None:
        if problem != self.problem:
            self._works.signals(WebhookBlocked(self.webhook.id, problem))
        self.state, self.problem = "blocked", problem
        await self._works.pace.sleep(BLOCKED_S)

    # One delivery

    async def _delivered(self, delivery: Delivery) -> bool:
        while not await self._attempt(delivery):
            tries = self.trouble.attempts if self.trouble else 0
            if not delivery.held or tries > HELD_TRIES or self.webhook.disabled is not None:
                return False
            await self._until_due()
        return True

    async def _attempt(self, delivery: Delivery) -> bool:
        works = self._works
        if not self._allowed():
            return False
        self.state = "delivering"
        at_us = works.pace.now_us()
        self._behind_us = self._behind_us or at_us
        if self.trouble is not None:
            works.signals(WebhookRetried(self.webhook.id, self.trouble.attempts))
        outcome = await self._posted(delivery)
        self.attempts.note(delivery, at_us, outcome)
        if outcome.taken:
            self.trouble, self.proven = None, True
            works.signals(WebhookDelivered(self.webhook.id, self.webhook.kind, self.webhook.shape, outcome.ms / 1e3))
        else:
            self._failed(outcome)
        return outcome.taken

    async def _posted(self, delivery: Delivery) -> PostOutcome:
        works, webhook = self._works, self.webhook

        async def attempt() -> PostOutcome:
            signed = partial(signed_headers, delivery.id, delivery.payload, webhook.secrets, works.pace.now_us())
            headers = signed() if len(delivery.payload) <= LARGE_BYTES else await asyncio.to_thread(signed)
            return await works.poster.post(webhook.url, headers, delivery.payload)

        try:
            return await works.lanes.run(attempt, troubled=self.trouble is not None or not self.proven)
        except Crowded:
            return PostOutcome(0, failure="crowded", detail="slow to answer, and too many others are too")

    def _allowed(self) -> bool:
        """Whether the owner's right still holds; if not, the webhook is disabled."""
        owner, rights = self.webhook.owner.credential(), self._works.rights
        try:
            rights.still(owner)
        except PenstockError as error:
            self._works.disable(self.webhook.id, "rights", error.detail or error.message)
            return False
        if owner.is_anonymous and not rights.is_open:
            self._works.disable(self.webhook.id, "rights", "it was made without a key, and the server has keys now")
            return False
        return True

    def _failed(self, outcome: PostOutcome) -> None:
        works, id = self._works, self.webhook.id
        attempts = self.trouble.attempts + 1 if self.trouble else 1
        works.signals(WebhookFailed(id, str(outcome.failure), attempts, outcome.text()))
        next = works.schedule.after(self.trouble, works.pace.now_us(), outcome.text(), outcome.retry_after_s)
        if outcome.gone:
            works.disable(id, "gone", "the endpoint answered 410")
        elif next is None:
            works.disable(id, "failing", f"nothing was taken for three days: {outcome.text()}")
        self.trouble = next or Trouble(works.pace.now_us(), attempts, works.pace.now_us(), outcome.text())
        self.state = "paused"
        works.keeper.note(id)
