"""Everything that can happen has a name here, so that one `emit` gives its log line and its metric.

A signal is a frozen dataclass: its fields are the facts of the log line, and `moves` says which metrics it moves and
by which field. To add one, write the class; nothing else has to know of it.

    class EventsAppended(Signal):
        \"\"\"Events of one request became durable.\"\"\"
        moves = (Counts("penstock_collect_events_accepted_total", "Events taken.", by="accepted", labels=("stream",)),)
        stream: str
        accepted: int

Labels come from closed sets (names of streams, views, flows, transports, reasons), never from what a client sent.
No signal of a webhook holds its address: that may be a secret of its owner's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, ClassVar, dataclass_transform

LATENCY_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Bucket bounds for the time from an event's acceptance to its effect: batches take 0.1 to 1 s."""


@dataclass(frozen=True, slots=True)
class Counts:
    """A counter that a signal raises: by one, or by the field `by`."""

    name: str
    help: str
    labels: tuple[str, ...] = ()
    by: str | None = None


@dataclass(frozen=True, slots=True)
class Observes:
    """A histogram into which a signal puts its field `by`; None is left out."""

    name: str
    help: str
    by: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = LATENCY_S


@dataclass_transform(frozen_default=True)
class Signal:
    """Something that happened. Subclasses are frozen dataclasses."""

    level: ClassVar[int] = logging.DEBUG
    moves: ClassVar[tuple[Counts | Observes, ...]] = ()

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)

    def facts(self) -> dict[str, Any]:
        """The fields by name, as they stand in the log line."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}  # type: ignore[attr-defined]


Signals = Callable[[Signal], None]
"""Who is told: `Observer.emit`."""


# Collecting: received = accepted + duplicates + dead + shed, by stream and way in, and each of the five is a counter. A
# request that was turned away whole (no right, too large, too many, no room) is refused, and was never received.

_RECEIVED = "penstock_collect_events_received_total"
_RECEIVED_HELP = "Events that arrived: accepted, duplicates, dead and shed together."
_SHED = "penstock_collect_events_shed_total"
_SHED_HELP = "Events dropped by a declared rule, or lost where the sender waits for no answer."


class EventsTaken(Signal):
    """Events of one or more requests were judged, and are durable or known to be."""

    moves = (
        Counts(_RECEIVED, _RECEIVED_HELP, ("stream", "way"), by="received"),
        Counts("penstock_collect_events_accepted_total", "Events taken.", ("stream", "way"), by="accepted"),
        Counts("penstock_collect_events_duplicate_total", "Events known already.", ("stream", "way"), by="duplicates"),
        Counts("penstock_collect_events_dead_total", "Events rejected into dead.", ("stream", "way"), by="dead"),
        Counts(_SHED, _SHED_HELP, ("stream", "way"), by="shed"),
    )
    stream: str
    way: str
    accepted: int
    duplicates: int
    dead: int
    shed: int = 0

    @property
    def received(self) -> int:
        return self.accepted + self.duplicates + self.dead + self.shed


class StreamTicked(Signal):
    """No events came, and something waited for time to go on."""

    moves = (Counts("penstock_collect_ticks_total", "Commits that only moved time.", ("stream",)),)
    stream: str


class EventsSkewed(Signal):
    """Events were taken whose sender's clock is too wrong to be corrected."""

    moves = (Counts("penstock_collect_events_skewed_total", "Events beyond max_skew.", ("stream",), by="skewed"),)
    stream: str
    skewed: int


class RequestRefused(Signal):
    """A request was turned away whole: nothing of it was received. `stream` is empty when there is none of its name."""

    moves = (Counts("penstock_collect_requests_refused_total", "Requests turned away.", ("stream", "reason")),)
    stream: str
    reason: str


class PublisherClosed(Signal):
    """A client broke the rules of a publishing socket, or of WebSockets, and was sent away with this code."""

    moves = (
        Counts(
            "penstock_collect_sockets_closed_total", "Publishing sockets closed for a fault of the client.", ("code",)
        ),
    )
    code: int


class LagSwitched(Signal):
    """A view fell further behind than its `max_lag`, or came back: senders of its streams wait, or no longer do."""

    level = logging.WARNING
    moves = (
        Counts("penstock_collect_lag_switches_total", "Times that a view's lag closed or opened.", ("view", "stream")),
    )
    view: str
    stream: str
    over: bool
    events: int
    seconds: float


class ConnectionClosed(Signal):
    """A connection was closed because of its peer: too slow a head or body, or one too many."""

    level = logging.INFO
    moves = (Counts("penstock_collect_connections_closed_total", "Connections closed by a limit.", ("reason",)),)
    reason: str
    address: str


class PullStateChanged(Signal):
    """A pull connected, lost its source, or waits to try again."""

    level = logging.INFO
    moves = (Counts("penstock_collect_pull_states_total", "Changes of a pull's state.", ("stream", "state")),)
    stream: str
    url: str
    state: str
    error: str | None


class PullReset(Signal):
    """A source no longer has what follows the stored position, so that events may be missing or come again."""

    level = logging.ERROR
    moves = (Counts("penstock_collect_pull_resets_total", "Pulls that lost their place in the source.", ("stream",)),)
    stream: str
    url: str
    reason: str


class ReceiptLost(Signal):
    """Events whose sender waits for no answer (ack=none, UDP) could not be written after they were received."""

    level = logging.ERROR
    moves = (
        Counts(_RECEIVED, _RECEIVED_HELP, ("stream", "way"), by="events"),
        Counts(_SHED, _SHED_HELP, ("stream", "way"), by="events"),
    )
    stream: str
    way: str
    error: BaseException
    events: int
    """Those that not even the log could count as shed."""

    def facts(self) -> dict[str, Any]:
        return {"stream": self.stream, "way": self.way, "error": _type_and_place(self.error), "events": self.events}


class CollectFailed(Signal):
    """A request at the door met an error of ours, not of the sender's.

    What an unexpected error says may quote an event, private fields and all: the log line has its type and place only.
    """

    level = logging.ERROR
    moves = (Counts("penstock_collect_request_failures_total", "Requests that ended in an unexpected error."),)
    path: str
    error: BaseException

    def facts(self) -> dict[str, Any]:
        return {"path": self.path, "error": _type_and_place(self.error)}


def _type_and_place(error: BaseException) -> str:
    name, trace = type(error).__name__, error.__traceback__
    if trace is None:
        return name
    while trace.tb_next is not None:
        trace = trace.tb_next
    file = trace.tb_frame.f_code.co_filename
    return f"{name} at {'/'.join(PurePath(file).parts[-3:])}:{trace.tb_lineno}"


# Views


class ViewLoaded(Signal):
    """A build of a view is in memory and served."""

    level = logging.INFO
    moves = (
        Counts("penstock_views_builds_loaded_total", "Builds of views that were loaded into memory.", ("view",)),
        Observes("penstock_views_load_seconds", "Time to load a build into memory.", "seconds", ("view",)),
    )
    view: str
    epoch: str
    rows: int
    seconds: float


class BatchApplied(Signal):
    """A batch became visible in a view; `freshness_s` is how long after its newest event was taken at the door."""

    moves = (
        Counts("penstock_views_batches_applied_total", "Batches that became visible.", ("view",)),
        Counts("penstock_views_changes_applied_total", "Changed rows.", ("view",), by="changes"),
        Observes("penstock_views_freshness_seconds", "From acceptance to visible.", "freshness_s", ("view",)),
    )
    view: str
    changes: int
    freshness_s: float | None


class ViewOverBudget(Signal):
    """A view needs more memory than it may have; its rows were let go."""

    level = logging.ERROR
    moves = (Counts("penstock_views_over_budget_total", "Times that a view outgrew its memory budget.", ("view",)),)
    view: str
    rows: int
    bytes: int
    budget_bytes: int


class FollowFailed(Signal):
    """Reading a view's changelog failed; it is tried again."""

    level = logging.ERROR
    moves = (Counts("penstock_views_follow_failures_total", "Failed reads of a changelog.", ("view",)),)
    view: str
    error: str


# Serving


class SubscriberJoined(Signal):
    """A subscription began; `start` is `snapshot` or `resume`."""

    moves = (Counts("penstock_serve_subscriptions_total", "Subscriptions begun.", ("view", "transport", "start")),)
    view: str
    transport: str
    start: str


class SubscriberCut(Signal):
    """A subscriber was too slow and its connection was closed; it can resume."""

    level = logging.WARNING
    moves = (Counts("penstock_serve_subscribers_cut_total", "Connections cut as too slow.", ("transport", "policy")),)
    transport: str
    bytes: int
    policy: str = "conflate"


class SubscriberStalled(Signal):
    """A subscriber has not read what waits for it for a while; it is told so once it reads."""

    moves = (Counts("penstock_serve_stalls_total", "Subscriptions that were told to be behind.", ("view", "policy")),)
    view: str
    transport: str
    policy: str
    bytes: int


class BatchesConflated(Signal):
    """Several batches went to a subscriber as one, because it is slow or asked for a pace."""

    moves = (
        Counts("penstock_serve_batches_conflated_total", "Batches merged.", ("view", "policy"), by="batches"),
        Counts("penstock_serve_messages_conflated_total", "Messages that merge batches.", ("view", "policy")),
    )
    view: str
    policy: str
    batches: int


class SubscriberReset(Signal):
    """A subscriber could not be brought up to date by changes and got a new snapshot."""

    moves = (Counts("penstock_serve_resets_total", "Subscriptions that were reset.", ("view", "policy")),)
    view: str
    reason: str
    policy: str = "conflate"


class SocketClosed(Signal):
    """A client was slow, silent or broke the protocol, and its WebSocket was closed with this code."""

    moves = (Counts("penstock_serve_sockets_closed_total", "WebSockets closed for a fault of the client.", ("code",)),)
    code: int


class AckRemembered(Signal):
    """The position of a named subscription became durable."""

    moves = (Counts("penstock_serve_acks_total", "Positions remembered for named subscriptions."),)
    name: str


class NamesForgotten(Signal):
    """Named subscriptions were forgotten because nobody had used them for long."""

    level = logging.INFO
    moves = (Counts("penstock_serve_names_forgotten_total", "Named subscriptions forgotten.", by="names"),)
    names: int


class GroupFailed(Signal):
    """Evaluating a query for its subscribers failed; they are reset."""

    level = logging.ERROR
    moves = (Counts("penstock_serve_group_failures_total", "Evaluations that failed.", ("view",)),)
    view: str
    error: str


class MessagesSent(Signal):
    """Messages, each encoded once, went to this many subscribers."""

    moves = (
        Counts("penstock_serve_messages_total", "Messages handed to connections.", ("view",), by="subscribers"),
        Counts("penstock_serve_messages_encoded_total", "Messages encoded.", ("view",), by="encoded"),
    )
    view: str
    subscribers: int
    encoded: int = 1


class RequestFailed(Signal):
    """A request met an error of ours, not of the caller's."""

    level = logging.ERROR
    moves = (Counts("penstock_serve_request_failures_total", "Requests that ended in an unexpected error."),)
    path: str
    error: str


# Webhooks


class WebhookDelivered(Signal):
    """An endpoint took a delivery; `kind` is that of its source, `seconds` how long it took to answer."""

    moves = (
        Counts("penstock_serve_webhook_deliveries_total", "Deliveries that were taken.", ("kind", "shape")),
        Observes("penstock_serve_webhook_seconds", "From sending to the answer.", "seconds", ("shape",)),
    )
    webhook: str
    kind: str
    shape: str
    seconds: float


class WebhookFailed(Signal):
    """An attempt was not taken; it is tried again, and nothing goes past it."""

    level = logging.WARNING
    moves = (Counts("penstock_serve_webhook_failures_total", "Attempts that were not taken.", ("reason",)),)
    webhook: str
    reason: str
    attempts: int
    detail: str


class WebhookRetried(Signal):
    """A delivery that was not taken is tried again: the breaker is half-open."""

    moves = (Counts("penstock_serve_webhook_retries_total", "Attempts after a failure."),)
    webhook: str
    attempts: int


class WebhookReset(Signal):
    """A webhook could not be brought up to date by changes; its endpoint is told the position to begin anew from."""

    level = logging.WARNING
    moves = (Counts("penstock_serve_webhook_resets_total", "Webhooks that fell behind what is kept."),)
    webhook: str
    reason: str


class WebhookDisabled(Signal):
    """Nothing more is delivered until its owner enables it; the position is kept."""

    level = logging.WARNING
    moves = (Counts("penstock_serve_webhooks_disabled_total", "Webhooks that were disabled.", ("reason",)),)
    webhook: str
    reason: str
    detail: str


class WebhookBlocked(Signal):
    """What a webhook reads cannot be read now (a view that is gone or too large, a `where` that no longer fits)."""

    level = logging.ERROR
    moves = (Counts("penstock_serve_webhook_blocks_total", "Failed readings for webhooks."),)
    webhook: str
    error: str


class WebhookProgressUnwritten(Signal):
    """The log did not take the progress of webhooks; it is tried again, and a crash now would repeat deliveries."""

    level = logging.ERROR
    moves = (Counts("penstock_serve_webhook_unwritten_total", "Failed writings of progress."),)
    error: str


# Rights


class AccessRefused(Signal):
    """A request was turned away before anything was done for it; `reason` is one of a closed set."""

    moves = (Counts("penstock_rights_refused_total", "Requests turned away by the guard.", ("reason",)),)
    reason: str


class LimitReached(Signal):
    """A credential asked more often, or for more, than it may; `limit` is `rate`, `connections` or `webhooks`."""

    moves = (Counts("penstock_rights_limited_total", "Requests above a credential's limits.", ("limit",)),)
    limit: str


class TicketIssued(Signal):
    """A ticket was given out; `kind` is what it opens."""

    moves = (Counts("penstock_rights_tickets_issued_total", "Tickets given out.", ("kind",)),)
    kind: str


class SignatureRefused(Signal):
    """A webhook's signature was missing, wrong or too old."""

    level = logging.WARNING
    moves = (Counts("penstock_rights_signatures_refused_total", "Webhooks with no good signature.", ("stream",)),)
    stream: str
    reason: str


class KeyCreated(Signal):
    """A key was taken over from `penstock keys create`."""

    level = logging.INFO
    moves = (Counts("penstock_rights_keys_created_total", "Keys created while this process ran."),)
    id: str
    name: str


class KeyRevoked(Signal):
    """A key was revoked; subscriptions under it are ended."""

    level = logging.INFO
    moves = (Counts("penstock_rights_keys_revoked_total", "Keys revoked while this process ran."),)
    id: str
    name: str


class InstructionRefused(Signal):
    """A file in the inbox cannot be read as an instruction; it is set aside."""

    level = logging.WARNING
    moves = (Counts("penstock_rights_instructions_refused_total", "Files of the inbox that were set aside."),)
    file: str
    error: str


class JwksUnreadable(Signal):
    """The JWKS file changed into something that cannot be read; the keys from before stay in use."""

    level = logging.ERROR
    moves = (Counts("penstock_rights_jwks_failures_total", "Failed readings of the JWKS file."),)
    error: str
