"""Turns signals into Prometheus metrics and log lines, in one registry per process, because counts belong to a process.

`/metrics` counts since the process started, as Prometheus expects; totals that survive a restart come from the log.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from penstock.observe.signals import Counts, Observes, Signal

Reading = Callable[[], Mapping[tuple[str, ...], float]]
"""Asked at each scrape: a value for each combination of labels."""


class Observer:
    """Whom every part of the process tells what happened; safe to call from any thread.

    >>> from penstock.observe.signals import SubscriberCut
    >>> observer = Observer()
    >>> observer.emit(SubscriberCut("sse", 2_000_000))
    >>> observer.value("penstock_serve_subscribers_cut_total", transport="sse", policy="conflate")
    1.0
    """

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self.registry = CollectorRegistry()
        self._logger = logger or logging.getLogger("penstock")
        self._metrics: dict[str, Counter | Histogram] = {}
        self._lock = threading.Lock()
        for signal in Signal.__subclasses__():  # metrics without labels show as 0 before anything happened
            for move in signal.moves:
                self._metric(move)

    def emit(self, signal: Signal) -> None:
        """Count it, and write its line if anybody listens at its level."""
        for move in signal.moves:
            self._move(move, signal)
        if self._logger.isEnabledFor(signal.level):
            facts = " ".join(f"{name}={value}" for name, value in signal.facts().items())
            self._logger.log(signal.level, "%s %s", type(signal).__name__, facts)

    def gauge(self, name: str, help: str, labels: tuple[str, ...], reading: Reading) -> None:
        """A value that is asked for at each scrape instead of being kept."""
        self.registry.register(_Gathered(GaugeMetricFamily, name, help, labels, reading))

    def counter(self, name: str, help: str, labels: tuple[str, ...], reading: Reading) -> None:
        """A count that others keep, where telling each by a signal would cost too much."""
        self.registry.register(_Gathered(CounterMetricFamily, name, help, labels, reading))

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def value(self, name: str, **labels: str) -> float:
        """One sample, 0 when it never moved."""
        return self.registry.get_sample_value(name, labels) or 0.0

    def _move(self, move: Counts | Observes, signal: Signal) -> None:
        metric = self._metric(move)
        amount = 1 if move.by is None else getattr(signal, move.by)
        if amount is None:
            return
        child: Any = metric.labels(*(getattr(signal, label) for label in move.labels)) if move.labels else metric
        if isinstance(move, Counts):
            child.inc(amount)
        else:
            child.observe(amount)

    def _metric(self, move: Counts | Observes) -> Counter | Histogram:
        metric = self._metrics.get(move.name)
        if metric is not None:
            return metric
        with self._lock:
            return self._metrics.get(move.name) or self._metrics.setdefault(move.name, self._make(move))

    def _make(self, move: Counts | Observes) -> Counter | Histogram:
        if isinstance(move, Counts):
            return Counter(move.name, move.help, move.labels, registry=self.registry)
        return Histogram(move.name, move.help, move.labels, buckets=move.buckets, registry=self.registry)


Family = type[GaugeMetricFamily] | type[CounterMetricFamily]


class _Gathered(Collector):
    def __init__(self, family: Family, name: str, help: str, labels: tuple[str, ...], reading: Reading) -> None:
        self._family, self._name, self._help, self._labels, self._reading = family, name, help, labels, reading

    def collect(self) -> Iterable[GaugeMetricFamily | CounterMetricFamily]:
        family = self._family(self._name, self._help, labels=self._labels)
        for labels, value in self._reading().items():
            family.add_metric(labels, value)
        return [family]
