"""What `status` and `verify` print for people holds what their JSON says."""

import io
from typing import Any

from rich.console import Console

from penstock.cli import reports
from penstock.cli.file_sender import Sent
from penstock.flows.verify import Report

STATUS: dict[str, Any] = {
    "app": "shop",
    "version": "0.1.0",
    "uptime_s": 7384.0,
    "processes": {"edge": {"state": "running", "pid": 77, "restarts": 2, "hung": 1}},
    "streams": [
        {
            "stream": "orders",
            "kind": "stream",
            "totals": {"accepted": 1234567, "duplicates": 5, "dead": 1, "shed": 8, "late": 0},
            "rates": {"accepted": 49.66},
        }
    ],
    "views": [{"view": "totals", "rows": 4321, "class": "exact", "how": "regrouped", "flow": {"state": "retrying"}}],
    "flows": [
        {
            "flow": "totals",
            "state": "retrying",
            "error": {"code": "flow_failed", "message": "bad [cast]", "detail": "batch 3", "hint": None},
            "rate": 3.0,
            "lag_events": 12,
        }
    ],
    "freshness": {"p50_ms": 180.0, "p99_ms": 12_400.0},
}


def printed(thing: Any) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(thing)
    return console.file.getvalue()  # type: ignore[attr-defined]


def words(text: str, first: str) -> list[str]:
    return next(line.split() for line in text.splitlines() if line.split()[:1] == [first])


def test_status_shows_processes_streams_and_flows():
    text = printed(reports.status(STATUS))
    assert "shop  penstock 0.1.0, up 2 h 3 min, fresh within 180 ms (p99 12.4 s)" in text
    assert words(text, "edge") == ["edge", "running", "77", "2", "1"]
    assert words(text, "orders") == ["orders", "1,234,567", "49.7", "5", "1", "8", "0"]
    assert words(text, "totals") == ["totals", "retrying", "4,321", "3.0", "12", "regrouped", "exact"]
    assert "flow_failed: bad [cast]\n  batch 3" in text


def test_status_shows_the_parts_that_are_off_where_there_are_any():
    edge = STATUS["processes"]["edge"]
    flows = edge | {"plain": ["nursery", "sink"]}
    text = printed(reports.status(STATUS | {"processes": {"edge": edge, "flows": flows}}))
    assert words(text, "flows") == ["flows", "running", "77", "2", "1", "nursery,", "sink"]
    assert words(text, "edge") == ["edge", "running", "77", "2", "1"]


def test_status_shows_what_is_odd_about_a_stream():
    stream = STATUS["streams"][0] | {"hint": "'at' looks like seconds"}
    assert "! 'orders': 'at' looks like seconds" in printed(reports.status(STATUS | {"streams": [stream]}))


def test_status_shows_poisoned_events_apart_from_dead_ones_where_there_are_any():
    stream = STATUS["streams"][0]
    text = printed(reports.status(STATUS | {"streams": [stream | {"totals": stream["totals"] | {"poisoned": 3}}]}))
    assert words(text, "stream")[-2:] == ["late", "poisoned"]
    assert words(text, "orders") == ["orders", "1,234,567", "49.7", "5", "1", "8", "0", "3"]


def test_status_says_who_waits_because_of_whom_and_what_to_do():
    lag = {
        "stream": "orders",
        "view": "totals",
        "lag_events": 12_000,
        "lag_s": 42.5,
        "max_lag": "30 s",
        "since": "noon",
    }
    because = [lag, {"stream": "clicks", "shed": "sample", "part": 0.25}, {"room": "full"}]
    text = printed(
        reports.status(STATUS | {"pressure": {"state": "lagging", "because": because, "hint": "more cores"}})
    )
    text = " ".join(text.split())
    assert "'totals' is 12,000 events (42.5 s) behind 'orders', max_lag 30 s, since noon" in text
    assert "'clicks' keeps 25.0% (sample) as much waits for the log as may What to do: more cores" in text
    assert "What to do: nothing" not in printed(reports.status(STATUS | {"pressure": {"state": "ok", "because": []}}))


def test_status_of_an_app_without_anything_is_a_heading():
    assert printed(reports.status({"app": "empty", "version": "0.1.0"})).strip() == "empty  penstock 0.1.0, up 0 s"


def test_a_report_names_what_differs():
    report = Report("totals", "view", "different", 10, 1000, 1.25, ["de: 3 in the view, 4 in the log"], [])
    assert printed(reports.report_text(report)) == (
        "✗ totals view different  10 rows from 1,000 events in 1.2 s\n    de: 3 in the view, 4 in the log\n"
    )
    assert reports.report_body(report)["differences"] == ["de: 3 in the view, 4 in the log"]


def test_what_was_sent_is_one_line():
    assert reports.sent("s", Sent(accepted=1500)) == "'s': 1,500 accepted"
    line = reports.sent("s", Sent(accepted=1, duplicates=2, rejected=3, skipped_chunks=4))
    assert line == "'s': 1 accepted, 2 already known, 4 chunks sent by an earlier run, 3 rejected (penstock dead list)"
