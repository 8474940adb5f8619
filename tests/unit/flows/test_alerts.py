"""What an alert makes of the rows of a view: raised and cleared once each, held by the clock."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock import App, Event
from penstock.errors import DeclarationError
from penstock.flows.ordered.alert_flow import AlertRule, Alerts

ROWS = pa.schema([("server", pa.string()), ("cpu", pa.float64())])
SECOND = 1_000_000


class Sample(Event):
    server: str
    cpu: float


def alerts(until: str | None = None, hold: str | None = None) -> Alerts:
    app = App("servers")
    app.stream("samples", Sample)

    @app.view(key="server")
    def load(samples: object) -> object:
        return samples

    flow = app.alert("hot", load, when="cpu > 90", until=until, hold=hold)
    assert flow.alert is not None
    return Alerts(AlertRule(flow.alert, ROWS), flow.alert.hold_us, {})


def played(made: Alerts, cpus: list[float | None], every_s: int = 10) -> list[tuple[int, str]]:
    told = []
    for at, cpu in enumerate(cpus):
        now_us = at * every_s * SECOND
        one = made.see(("a",), None if cpu is None else ("a", cpu), now_us)
        told += [(at, t.what) for t in ([one] if one else []) + list(made.due(now_us))]
    return told


def test_between_its_two_conditions_an_alert_stays_as_it_is() -> None:
    samples = [85.0, 95.0, 85.0, 92.0, 88.0, 91.0, 79.0, 85.0, None]
    assert played(alerts(until="cpu < 80"), samples) == [(1, "raised"), (6, "cleared")]
    assert played(alerts(), samples)[:4] == [(1, "raised"), (2, "cleared"), (3, "raised"), (4, "cleared")]


def test_a_row_that_goes_clears_and_what_is_held_is_raised_only_when_it_stays() -> None:
    assert played(alerts(), [95.0, None, None]) == [(0, "raised"), (1, "cleared")]
    held = alerts(until="cpu < 80", hold="25 seconds")
    assert played(held, [95.0, 50.0, 95.0, 96.0, 97.0, 98.0, 50.0]) == [(5, "raised"), (6, "cleared")]


def test_an_alert_watches_a_view_that_there_is() -> None:
    app = App("servers")
    with pytest.raises(DeclarationError, match="'load' is no view or table"):
        app.alert("hot", "load", when="cpu > 90")
