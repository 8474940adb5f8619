"""Everything that can happen at the door has a name here: one signal gives its log line and its metric.

Received = accepted + duplicates + dead + shed, by stream and way in, and each of the five is a counter. A request that
was turned away whole (no right, too large, too many, no room) is refused, and was never received.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from penstock.observe.signals import Counts, Signal

Signals = Callable[[Signal], None]
"""Who is told: `Observer.emit`."""

_RECEIVED = "penstock_collect_events_received_total"
_RECEIVED_HELP = "Events that arrived: accepted, duplicates, dead and shed together."
_SHED = "penstock_collect_events_shed_total"
_SHED_HELP = "Events dropped by a declared rule, or lost where the sender waits for no answer."


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class EventsSkewed(Signal):
    """Events were taken whose sender's clock is too wrong to be corrected."""

    moves = (Counts("penstock_collect_events_skewed_total", "Events beyond max_skew.", ("stream",), by="skewed"),)
    stream: str
    skewed: int


@dataclass(frozen=True, slots=True)
class RequestRefused(Signal):
    """A request was turned away whole: nothing of it was received. `stream` is empty when there is none of its name."""

    moves = (Counts("penstock_collect_requests_refused_total", "Requests turned away.", ("stream", "reason")),)
    stream: str
    reason: str


@dataclass(frozen=True, slots=True)
class PublisherClosed(Signal):
    """A client broke the rules of a publishing socket, or of WebSockets, and was sent away with this code."""

    moves = (
        Counts(
            "penstock_collect_sockets_closed_total", "Publishing sockets closed for a fault of the client.", ("code",)
        ),
    )
    code: int


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class ConnectionClosed(Signal):
    """A connection was closed because of its peer: too slow a head or body, or one too many."""

    level = logging.INFO
    moves = (Counts("penstock_collect_connections_closed_total", "Connections closed by a limit.", ("reason",)),)
    reason: str
    address: str


@dataclass(frozen=True, slots=True)
class PullStateChanged(Signal):
    """A pull connected, lost its source, or waits to try again."""

    level = logging.INFO
    moves = (Counts("penstock_collect_pull_states_total", "Changes of a pull's state.", ("stream", "state")),)
    stream: str
    url: str
    state: str
    error: str | None


@dataclass(frozen=True, slots=True)
class PullReset(Signal):
    """A source no longer has what follows the stored position, so that events may be missing or come again."""

    level = logging.ERROR
    moves = (Counts("penstock_collect_pull_resets_total", "Pulls that lost their place in the source.", ("stream",)),)
    stream: str
    url: str
    reason: str


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
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


SIGNALS: tuple[type[Signal], ...] = (
    EventsTaken,
    EventsSkewed,
    RequestRefused,
    LagSwitched,
    ConnectionClosed,
    PullStateChanged,
    PullReset,
    ReceiptLost,
    CollectFailed,
)
