"""Everything that can happen has a name here, so that one `emit` gives its log line and its metric.

A signal is a frozen dataclass: its fields are the facts of the log line, and `moves` says which metrics it moves and
by which field. To add one, write the dataclass; nothing else has to know of it.

    @dataclass(frozen=True, slots=True)
    class EventsAppended(Signal):
        \"\"\"Events of one request became durable.\"\"\"
        moves = (Counts("penstock_collect_events_accepted_total", "Events taken.", by="accepted", labels=("stream",)),)
        stream: str
        accepted: int

Labels come from closed sets (names of streams, views, flows, transports, reasons), never from what a client sent.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, ClassVar

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


class Signal:
    """Something that happened. Subclasses are frozen dataclasses."""

    __slots__ = ()
    level: ClassVar[int] = logging.DEBUG
    moves: ClassVar[tuple[Counts | Observes, ...]] = ()

    def facts(self) -> dict[str, Any]:
        """The fields by name, as they stand in the log line."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}  # type: ignore[attr-defined]


# Views


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class ViewOverBudget(Signal):
    """A view needs more memory than it may have; its rows were let go."""

    level = logging.ERROR
    moves = (Counts("penstock_views_over_budget_total", "Times that a view outgrew its memory budget.", ("view",)),)
    view: str
    rows: int
    bytes: int
    budget_bytes: int


@dataclass(frozen=True, slots=True)
class FollowFailed(Signal):
    """Reading a view's changelog failed; it is tried again."""

    level = logging.ERROR
    moves = (Counts("penstock_views_follow_failures_total", "Failed reads of a changelog.", ("view",)),)
    view: str
    error: str


# Serving


@dataclass(frozen=True, slots=True)
class SubscriberJoined(Signal):
    """A subscription began; `start` is `snapshot` or `resume`."""

    moves = (Counts("penstock_serve_subscriptions_total", "Subscriptions begun.", ("view", "transport", "start")),)
    view: str
    transport: str
    start: str


@dataclass(frozen=True, slots=True)
class SubscriberCut(Signal):
    """A subscriber was too slow and its connection was closed; it can resume."""

    level = logging.WARNING
    moves = (Counts("penstock_serve_subscribers_cut_total", "Connections cut as too slow.", ("transport", "policy")),)
    transport: str
    bytes: int
    policy: str = "conflate"


@dataclass(frozen=True, slots=True)
class SubscriberStalled(Signal):
    """A subscriber has not read what waits for it for a while; it is told so once it reads."""

    moves = (Counts("penstock_serve_stalls_total", "Subscriptions that were told to be behind.", ("view", "policy")),)
    view: str
    transport: str
    policy: str
    bytes: int


@dataclass(frozen=True, slots=True)
class BatchesConflated(Signal):
    """Several batches went to a subscriber as one, because it is slow or asked for a pace."""

    moves = (
        Counts("penstock_serve_batches_conflated_total", "Batches merged.", ("view", "policy"), by="batches"),
        Counts("penstock_serve_messages_conflated_total", "Messages that merge batches.", ("view", "policy")),
    )
    view: str
    policy: str
    batches: int


@dataclass(frozen=True, slots=True)
class SubscriberReset(Signal):
    """A subscriber could not be brought up to date by changes and got a new snapshot."""

    moves = (Counts("penstock_serve_resets_total", "Subscriptions that were reset.", ("view", "policy")),)
    view: str
    reason: str
    policy: str = "conflate"


@dataclass(frozen=True, slots=True)
class SocketClosed(Signal):
    """A WebSocket was ended by us, with this close code."""

    moves = (Counts("penstock_serve_sockets_closed_total", "WebSockets that the server closed.", ("code",)),)
    code: int


@dataclass(frozen=True, slots=True)
class AckRemembered(Signal):
    """The position of a named subscription became durable."""

    moves = (Counts("penstock_serve_acks_total", "Positions remembered for named subscriptions."),)
    name: str


@dataclass(frozen=True, slots=True)
class NamesForgotten(Signal):
    """Named subscriptions were forgotten because nobody had used them for long."""

    level = logging.INFO
    moves = (Counts("penstock_serve_names_forgotten_total", "Named subscriptions forgotten.", by="names"),)
    names: int


@dataclass(frozen=True, slots=True)
class GroupFailed(Signal):
    """Evaluating a query for its subscribers failed; they are reset."""

    level = logging.ERROR
    moves = (Counts("penstock_serve_group_failures_total", "Evaluations that failed.", ("view",)),)
    view: str
    error: str


@dataclass(frozen=True, slots=True)
class MessagesSent(Signal):
    """Messages, each encoded once, went to this many subscribers."""

    moves = (
        Counts("penstock_serve_messages_total", "Messages handed to connections.", ("view",), by="subscribers"),
        Counts("penstock_serve_messages_encoded_total", "Messages encoded.", ("view",), by="encoded"),
    )
    view: str
    subscribers: int
    encoded: int = 1


@dataclass(frozen=True, slots=True)
class RequestFailed(Signal):
    """A request met an error of ours, not of the caller's."""

    level = logging.ERROR
    moves = (Counts("penstock_serve_request_failures_total", "Requests that ended in an unexpected error."),)
    path: str
    error: str
