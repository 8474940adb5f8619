"""What `status` and the metrics say of the logs: their kind, who writes them, and whether they take anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from penstock.clock import rfc3339
from penstock.log.folder_log import FolderLog
from penstock.log.log import LogHealth, LogReader
from penstock.observe.metrics import Observer


class LogStatus:
    """Both logs of an app as one edge sees them."""

    def __init__(self, log: FolderLog, written: LogReader | None = None) -> None:
        """`written`: the edge's log in the hands of its writer, which knows more of it."""
        self._logs: Mapping[str, LogReader] = {"edge": written or log.edge, "flows": log.flows}

    def __call__(self) -> dict[str, Any]:
        each = {name: log.health() for name, log in self._logs.items()}
        edge = each["edge"]
        away = edge.away_us
        return {
            "kind": edge.kind,
            "addresses": list(edge.addresses),
            "state": "ok" if away is None else "away",
            "since": None if away is None else rfc3339(away),
            **{name: _body(health) for name, health in each.items()},
        }

    def measure(self, observer: Observer) -> None:
        lag, void, claims, doubt = (
            partial(self._values, value)
            for value in (
                lambda health: health.lag,
                lambda health: health.void,
                lambda health: health.claims,
                lambda health: health.doubt_s,
            )
        )
        log = ("log",)
        observer.gauge("penstock_log_lag_records", "Records of the journal that the index lacks.", log, lag)
        observer.gauge("penstock_log_void_records", "Records of the journal that do not count.", log, void)
        observer.gauge("penstock_log_claims", "How often the journal was claimed.", log, claims)
        observer.gauge("penstock_log_doubt_seconds", "How long commits were in doubt.", log, doubt)

    def _values(self, value: Callable[[LogHealth], float | None]) -> dict[tuple[str, ...], float]:
        found = {(name,): value(log.health()) for name, log in self._logs.items()}
        return {labels: float(number) for labels, number in found.items() if number is not None}


def _body(health: LogHealth) -> dict[str, Any]:
    writer = health.writer
    told = writer and {
        "by": writer.by.rstrip(","),
        "since": rfc3339(writer.since_us),
        "lives": writer.lives,
        "silent_s": None if writer.silent_s is None else round(writer.silent_s, 1),
    }
    facts = {"term": health.term, "writer": told, "lag": health.lag, "void": health.void, "claims": health.claims}
    return facts | {"doubt_s": round(health.doubt_s, 1)}
