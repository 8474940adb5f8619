"""One signal gives its log line and its metric."""

from __future__ import annotations

import dataclasses
import logging
import re

import pytest

from penstock.observe import signals
from penstock.observe.metrics import Observer
from penstock.observe.signals import BatchApplied, Counts, Signal, SubscriberCut

ALL = [
    kind
    for kind in vars(signals).values()
    if isinstance(kind, type) and issubclass(kind, Signal) and kind is not Signal
]


def test_a_signal_is_counted_and_logged_at_its_level(caplog: pytest.LogCaptureFixture) -> None:
    observer = Observer()
    with caplog.at_level(logging.INFO, "penstock"):
        observer.emit(SubscriberCut("sse", 7))
        observer.emit(BatchApplied("topics", 3, None))
    assert caplog.messages == ["SubscriberCut transport=sse bytes=7 policy=conflate"]
    assert observer.value("penstock_serve_subscribers_cut_total", transport="sse", policy="conflate") == 1
    assert observer.value("penstock_views_changes_applied_total", view="topics") == 3
    assert observer.value("penstock_views_freshness_seconds_count", view="topics") == 0


def test_gauges_are_asked_at_each_scrape() -> None:
    observer, rows = Observer(), {("topics",): 1.0}
    observer.gauge("penstock_views_rows", "Rows.", ("view",), lambda: rows)
    assert 'penstock_views_rows{view="topics"} 1.0' in observer.text().decode()
    rows["topics",] = 2.0
    assert 'penstock_views_rows{view="topics"} 2.0' in observer.text().decode()


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_every_signal_is_a_frozen_dataclass_whose_metrics_follow_the_naming_law(kind: type[Signal]) -> None:
    fields = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert kind.__doc__
    for move in kind.moves:
        assert re.fullmatch(r"penstock_[a-z]+_[a-z_]+_(total|seconds|bytes)", move.name)
        assert move.name.endswith("_total") == isinstance(move, Counts)
        assert set(move.labels) <= fields
        assert move.by is None or move.by in fields or isinstance(getattr(kind, move.by), property)


def test_a_metric_without_labels_is_there_before_anything_happened() -> None:
    assert b"penstock_serve_acks_total 0.0" in Observer().text()
