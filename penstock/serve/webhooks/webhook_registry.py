"""All webhooks of an edge: made, found, changed, replayed and forgotten here, each durable before its owner is told.

1. A webhook reads with the rights of its maker. A key can be revoked, and then its webhooks are disabled; a token or a
   ticket just runs out, so it cannot make one.
2. Each owner sees its own, an administrator all; to others a webhook is not there.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from penstock.clock import Clock, rfc3339
from penstock.config import Limits
from penstock.errors import (
    EndedRightError,
    ForbiddenError,
    PenstockError,
    TooManyWebhooksError,
    UnknownWebhookError,
)
from penstock.log import control_keys
from penstock.log.control import Changes, ControlMap
from penstock.log.folder_log import FolderLog
from penstock.observe.metrics import Observer
from penstock.observe.signals import LimitReached, WebhookDisabled
from penstock.protocol import encode
from penstock.rights.credential import Credential
from penstock.rights.keys import PREFIX as KEY
from penstock.rights.rights import Ended, Rights
from penstock.serve.catalogue import Catalogue
from penstock.serve.fanout.hub import Hub
from penstock.serve.question import WAIT_S, Question
from penstock.serve.stream_reads import StreamReads
from penstock.serve.webhooks.address_rules import AddressRules
from penstock.serve.webhooks.delivery import Delivery
from penstock.serve.webhooks.endpoint import STATES, Endpoint, Lanes, Works
from penstock.serve.webhooks.poster import TIMEOUT_S, Poster, PostOutcome
from penstock.serve.webhooks.progress_keeper import ProgressKeeper
from penstock.serve.webhooks.schedule import Pace, Schedule, Sleep
from penstock.serve.webhooks.snapshot_spool import SnapshotSpool
from penstock.serve.webhooks.stream_source import StreamNews, StreamSource
from penstock.serve.webhooks.view_source import ViewSource, begun
from penstock.serve.webhooks.webhook import (
    ChangedWebhook,
    Disabled,
    Kind,
    NewWebhook,
    Owner,
    Reason,
    Webhook,
    WebhookPlace,
    WebhookProgress,
    checked_digest,
    defined,
    forgotten,
    new_secret,
    restored,
    rotated,
    signed_headers,
    stored,
    stored_progress,
)
from penstock.views.views import Views

MOST = 10_000
"""Webhooks of one edge."""
MOST_OF_ONE = 1_000
"""Webhooks of one key, so that it cannot take the place of all others; an administrator's may."""
TESTS = 8
"""Test deliveries that are under way at one time."""
AT_ONCE = 50
"""Webhooks that are looked at between two steps of the loop."""
LAZY_S = 60.0
"""How often the place of webhooks is written down that batches have passed by: far less than the history keeps."""

_QUERY = {"where", "params", "select"}


@dataclass(frozen=True)
class WebhookOptions:
    """What one edge is told of webhooks. `ca` is a PEM file of authorities to trust besides the system's."""

    rules: AddressRules = field(default_factory=AddressRules)
    ca: Path | None = None
    timeout_s: float = TIMEOUT_S
    sleep: Sleep = asyncio.sleep
    random: Random | None = None


class Webhooks:
    """Lives on the edge's loop between `start` and `stop`."""

    def __init__(
        self,
        memory: ControlMap,
        remember: Callable[[Mapping[str, Any]], Awaitable[Any]],
        *,
        views: Views,
        hub: Hub,
        reads: StreamReads,
        log: FolderLog,
        rights: Rights,
        clock: Clock,
        limits: Limits,
        observer: Observer,
        catalogue: Catalogue,
        spool: Path | None = None,
        options: WebhookOptions | None = None,
    ) -> None:
        """`spool` is a folder for large snapshots while they are delivered."""
        options = options or WebhookOptions()
        self.rules = options.rules
        self._views, self._reads, self._rights, self._catalogue = views, reads, rights, catalogue
        self._pace = Pace(clock, options.sleep)
        self._news = StreamNews(reads)
        self._view_source = ViewSource(views, hub, limits, self._pace, SnapshotSpool(spool, clock))
        self._stream_source = StreamSource(reads, log, self._news, self._pace)
        self._memory, self._remember = memory, remember
        self._own: dict[str, Any] = {}
        """What this edge has written of each webhook: it need not hear of that."""
        self._keeper = ProgressKeeper(self._write, self._stored, observer.emit)
        self._poster = Poster(options.rules, clock, ca=options.ca, timeout_s=options.timeout_s)
        self._works = Works(
            sources={"view": self._view_source, "stream": self._stream_source},
            poster=self._poster,
            lanes=Lanes(),
            keeper=self._keeper,
            schedule=Schedule(options.random),
            pace=self._pace,
            rights=rights,
            signals=observer.emit,
            question=self._question,
            disable=self._disable,
        )
        self._endpoints: dict[str, Endpoint] = {}
        for id in defined(memory.family(control_keys.webhook)):
            if (known := restored(memory, id)) is not None:
                self._endpoints[id] = Endpoint(*known, self._works)
        self._ended: dict[str, Ended] = {}
        self._starting: asyncio.Task[None] | None = None
        self._lazy: asyncio.Task[None] | None = None
        self._changing = asyncio.Lock()
        self._making: list[str] = []
        """The owners of those that are being written down for the first time."""
        self._tests = asyncio.Semaphore(TESTS)
        self._writing: set[asyncio.Task[None]] = set()
        self._stopping = False
        observer.gauge("penstock_serve_webhooks", "Webhooks, by what they do.", ("state",), self._by_state)
        observer.gauge(
            "penstock_serve_webhook_lag_seconds",
            "The longest that a webhook has not had everything.",
            ("state",),
            self._lag_by_state,
        )

    async def start(self) -> None:
        self._memory.watch(control_keys.webhook, partial(self._heard, asyncio.get_running_loop()))
        await self._poster.start()
        self._keeper.start()
        self._lazy = asyncio.create_task(self._note_moved(), name="webhook places")
        self._starting = asyncio.create_task(self._start_all(), name="webhooks start")

    async def stop(self) -> None:
        self._stopping = True
        for task in (self._starting, self._lazy):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        for ended in self._ended.values():
            ended.cancel()
        moved = [id for id, endpoint in self._endpoints.items() if endpoint.moved]
        await asyncio.gather(*(endpoint.stop() for endpoint in self._endpoints.values()))
        for id in moved:
            self._keeper.note(id)
        await asyncio.gather(*self._writing, return_exceptions=True)
        await self._keeper.close()
        await self._news.close()
        await self._poster.close()

    async def _start_all(self) -> None:
        for number, id in enumerate(list(self._endpoints)):
            if (endpoint := self._endpoints.get(id)) is not None:
                self._begin(endpoint)
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)

    # For owners

    def of(self, credential: Credential) -> list[Endpoint]:
        mine = [e for e in self._endpoints.values() if _may_see(credential, e.webhook)]
        return sorted(mine, key=lambda endpoint: endpoint.webhook.created_us)

    def find(self, id: str, credential: Credential) -> Endpoint:
        endpoint = self._endpoints.get(id)
        if endpoint is None or not _may_see(credential, endpoint.webhook):
            raise UnknownWebhookError(f"there is no webhook '{id[:80]}'", hint="GET /webhooks lists yours")
        return endpoint

    async def create(self, new: NewWebhook, credential: Credential) -> tuple[Endpoint, str]:
        """A new webhook, durable, and its secret, which is told this once."""
        credential.require("read", new.target())
        _check_owner(credential)
        kind, name = self._target(new)
        self._check_room(credential)
        secret = new_secret()
        webhook = Webhook(
            id=f"wh_{secrets.token_hex(8)}",
            url=self.rules.check(new.url),
            kind=kind,
            name=name,
            channel=new.channel,
            where=new.where,
            params=new.params,
            select=new.select,
            shape=new.shape,
            digest_s=checked_digest(new.shape, new.digest_s),
            owner=Owner.of(credential),
            secrets=(secret,),
            created_us=self._pace.now_us(),
        )
        position = await self._position(webhook, new.since)
        self._check_room(credential)  # others were made meanwhile
        progress = WebhookProgress(WebhookPlace(position, digest_us=self._pace.now_us()))
        self._making.append(credential.id)
        try:
            await self._keeper.write(stored(webhook) | stored_progress(webhook.id, progress))
        finally:
            self._making.remove(credential.id)
        endpoint = self._endpoints[webhook.id] = Endpoint(webhook, progress, self._works, proven=False)
        self._begin(endpoint)
        return endpoint, secret.text

    def _check_room(self, credential: Credential) -> None:
        owners = [endpoint.webhook.owner.id for endpoint in self._endpoints.values()] + self._making
        if owners.count(credential.id) >= MOST_OF_ONE and not credential.may("admin"):
            self._works.signals(LimitReached("webhooks"))
            raise TooManyWebhooksError(
                f"'{credential.name}' has {MOST_OF_ONE} webhooks", hint="delete some that nobody needs"
            )
        if len(owners) >= MOST:
            raise TooManyWebhooksError(f"this server has {MOST} webhooks", hint="delete some that nobody needs")

    async def change(self, id: str, credential: Credential, change: ChangedWebhook) -> Endpoint:
        """With other fields, or enabled, or disabled; its place stays."""
        async with self._changing:
            endpoint, fields = self.find(id, credential), change.fields()
            webhook = msgspec.structs.replace(endpoint.webhook, **fields)
            webhook = msgspec.structs.replace(webhook, digest_s=checked_digest(webhook.shape, webhook.digest_s))
            self.rules.check(webhook.url)
            if fields.keys() & _QUERY:
                await self._position(webhook, None)
            webhook = self._switched(webhook, change.enabled)
            place = endpoint.progress().place
            if fields.keys() & (_QUERY | {"shape"}):  # what was begun has another content now
                place = WebhookPlace(place.position, digest_us=place.digest_us or self._pace.now_us())
            return await self._put(endpoint, webhook, place)

    async def rotate(self, id: str, credential: Credential, overlap_s: float) -> tuple[str, str | None]:
        """A new secret, told this once, and until when the old ones sign along."""
        async with self._changing:
            endpoint = self.find(id, credential)
            new, now_us = new_secret(), self._pace.now_us()
            held = rotated(endpoint.webhook.secrets, new, now_us, overlap_s)
            async with self._keeper.alone:
                await self._keeper.write(stored(msgspec.structs.replace(endpoint.webhook, secrets=held)))
                endpoint.webhook = msgspec.structs.replace(endpoint.webhook, secrets=held)
        return new.text, rfc3339(now_us + round(overlap_s * 1e6)) if overlap_s > 0 else None

    async def replay(self, id: str, credential: Credential, since: str) -> Endpoint:
        """Deliver again from a position on, beginning at once."""
        async with self._changing:
            endpoint = self.find(id, credential)
            position = await self._position(endpoint.webhook, since)
            return await self._put(endpoint, endpoint.webhook, WebhookPlace(position, digest_us=self._pace.now_us()))

    async def test(self, endpoint: Endpoint) -> PostOutcome:
        """One delivery that says it is a test, at once and once, beside whatever waits."""
        webhook = endpoint.webhook
        id = f"msg_{secrets.token_hex(16)}"
        now_us = self._pace.now_us()
        payload = encode({"type": "test", "webhook": webhook.id, **webhook.target(), "at": rfc3339(now_us)})
        headers = signed_headers(id, payload, webhook.secrets, now_us)
        async with self._tests:
            outcome = await self._poster.post(webhook.url, headers, payload)
        endpoint.attempts.note(Delivery(id, "test", "", payload), now_us, outcome)
        return outcome

    async def delete(self, id: str, credential: Credential) -> None:
        async with self._changing:
            endpoint = self.find(id, credential)
            await endpoint.stop()
            async with self._keeper.alone:
                try:
                    await self._keeper.write(forgotten(id))
                except BaseException:
                    endpoint.start()
                    raise
                self._endpoints.pop(id, None)
            self._unwatch(id)

    # Following what the log says, if it was not written here, or nobody knew whether it would be

    def _heard(self, loop: asyncio.AbstractEventLoop, changed: Changes) -> None:
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(self._learn, changed)

    def _learn(self, changed: Changes) -> None:
        news = [id for id in defined(changed) if self._own.get(id, UNSET) != changed[control_keys.webhook(id)]]
        if news:
            self._spawn(self._follow(news))

    async def _follow(self, ids: Sequence[str]) -> None:
        async with self._changing:
            for id in ids if not self._stopping else ():
                known, endpoint = restored(self._memory, id), self._endpoints.get(id)
                if endpoint is not None and known is not None and known[0] == endpoint.webhook:
                    continue
                if endpoint is not None:
                    await endpoint.stop()
                    del self._endpoints[id]
                    self._unwatch(id)
                if known is not None:
                    fresh = self._endpoints[id] = Endpoint(*known, self._works)
                    self._begin(fresh)

    # Keeping

    async def _write(self, values: Mapping[str, Any]) -> None:
        own = {id: values[control_keys.webhook(id)] for id in defined(values)}
        self._own |= own
        try:
            await self._remember(values)
        except BaseException:
            for id in own:
                self._own.pop(id, None)
            raise
        for id in (id for id, value in own.items() if value is None):
            self._own.pop(id, None)

    async def _put(self, endpoint: Endpoint, webhook: Webhook, place: WebhookPlace) -> Endpoint:
        """Replace what is known of a webhook, durable on return, and go on from there with a first attempt."""
        await endpoint.stop()
        proven = endpoint.proven and webhook.url == endpoint.webhook.url
        fresh = Endpoint(webhook, WebhookProgress(place), self._works, endpoint.attempts, proven=proven)
        async with self._keeper.alone:
            try:
                await self._keeper.write(stored(webhook) | fresh.stored())
            except BaseException:
                endpoint.start()
                raise
            self._endpoints[webhook.id] = fresh
        self._begin(fresh)
        return fresh

    def _switched(self, webhook: Webhook, enabled: bool | UnsetType) -> Webhook:
        if enabled is True and webhook.disabled is not None:
            self._check_right(webhook)
            return msgspec.structs.replace(webhook, disabled=None)
        if enabled is False and webhook.disabled is None:
            return self._disabled(webhook, "owner", "disabled by request")
        return webhook

    def _begin(self, endpoint: Endpoint) -> None:
        webhook = endpoint.webhook
        self._unwatch(webhook.id)
        endpoint.start()
        if webhook.disabled is None:
            ended = self._ended[webhook.id] = self._rights.watch(webhook.owner.credential())
            ended.add_done_callback(lambda done: self._right_ended(webhook.id, done))

    def _unwatch(self, id: str) -> None:
        ended = self._ended.pop(id, None)
        if ended is not None:
            ended.cancel()

    def _right_ended(self, id: str, done: Ended) -> None:
        if not done.cancelled():
            why = done.result()
            self._disable(id, "rights", why.detail or why.message)

    def _disable(self, id: str, reason: Reason, detail: str) -> None:
        """Holds at once; the log knows a moment later."""
        endpoint = self._endpoints.get(id)
        if endpoint is None or endpoint.webhook.disabled is not None:
            return
        endpoint.webhook = self._disabled(endpoint.webhook, reason, detail)
        self._spawn(self._write_disabled(endpoint))

    def _disabled(self, webhook: Webhook, reason: Reason, detail: str) -> Webhook:
        self._works.signals(WebhookDisabled(webhook.id, reason, detail))
        return msgspec.structs.replace(webhook, disabled=Disabled(reason, detail, self._pace.now_us()))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def _write_disabled(self, endpoint: Endpoint) -> None:
        await endpoint.stop()
        endpoint.state = "disabled"
        if self._endpoints.get(endpoint.webhook.id) is endpoint:
            self._keeper.note(endpoint.webhook.id)

    def _stored(self, id: str) -> Mapping[str, Any]:
        """What the keeper writes of a webhook: the definition too, which changes when one is disabled."""
        endpoint = self._endpoints.get(id)
        if endpoint is None:
            return {}
        return endpoint.stored() | (stored(endpoint.webhook) if endpoint.webhook.disabled else {})

    async def _note_moved(self) -> None:
        while True:
            await asyncio.sleep(LAZY_S)
            for number, endpoint in enumerate(list(self._endpoints.values())):
                if endpoint.moved:
                    self._keeper.note(endpoint.webhook.id)
                if number % AT_ONCE == 0:
                    await asyncio.sleep(0)

    # What is asked for

    def _target(self, new: NewWebhook) -> tuple[Kind, str]:
        """What is read in the end. Raises `UnknownChannelError`."""
        if new.channel is None:
            return ("view", new.view) if new.view is not None else ("stream", str(new.stream))
        channel = self._catalogue.channel(new.channel)
        return ("view" if self._catalogue.is_view(channel) else "stream"), channel.target

    def _question(self, webhook: Webhook) -> Question:
        return self._catalogue.question(webhook.query(), webhook.owner.credential(), webhook.reads)

    async def _position(self, webhook: Webhook, since: str | None) -> str | None:
        """Where to begin. Raises what is wrong with the name, the query or the position."""
        question = self._question(webhook)
        if webhook.kind == "stream":
            self._reads.known(webhook.name)
            return await self._stream_source.begun(webhook.name, question, since)
        view = self._views.view(webhook.name)
        content = await view.loaded(WAIT_S)
        question.query(view, content)
        return begun(content, since, view.name)

    def _check_right(self, webhook: Webhook) -> None:
        """Whether there is anybody left in whose name it could read."""
        owner = webhook.owner.credential()
        ended = owner.is_anonymous and not self._rights.is_open
        try:
            self._rights.still(owner)
        except PenstockError:
            ended = True
        if ended:
            raise EndedRightError(
                f"the right of '{webhook.owner.name}', who made this webhook, has ended",
                hint="make a new webhook with a key that is valid, with 'since' set to this one's position",
            )

    # Metrics

    def _by_state(self) -> dict[tuple[str, ...], float]:
        counts: dict[tuple[str, ...], float] = {(state,): 0.0 for state in STATES}
        for endpoint in self._endpoints.values():
            counts[endpoint.state,] += 1
        return counts

    def _lag_by_state(self) -> dict[tuple[str, ...], float]:
        lags: dict[tuple[str, ...], float] = {(state,): 0.0 for state in STATES}
        for endpoint in self._endpoints.values():
            lags[endpoint.state,] = max(lags[endpoint.state,], endpoint.lag_s())
        return lags


def _may_see(credential: Credential, webhook: Webhook) -> bool:
    return credential.may("admin") or credential.id == webhook.owner.id


def _check_owner(credential: Credential) -> None:
    if not (credential.is_anonymous or credential.id.startswith(KEY)):
        raise ForbiddenError(
            f"'{credential.name}' cannot own a webhook",
            detail="a token runs out; a webhook goes on, in the name of a key that can be revoked",
            hint="make it with a key: penstock keys create APP --scope read:<name>",
        )
