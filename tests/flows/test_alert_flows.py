"""An alert through restarts and a rebuild of its view: raised once and cleared once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock import App, Event, Struct
from penstock.patterns import begin
from penstock.testing import run
from tests.flows.world import World


class Sample(Event):
    server: str
    cpu: float
    at: int = 1_700_000_000_000


def servers(factor: float = 1.0) -> App:
    app = App("servers")
    app.stream("samples", Sample, key="server", time="at")

    @app.view(key="server")
    def load(samples: Any) -> Any:
        return samples.selectExpr("server", f"cpu * {factor} AS cpu")

    app.alert("hot", load, when="cpu > 90", until="cpu < 80")
    return app


def told(there: World) -> list[tuple[str, str, float]]:
    return [(e["server"], e["alert"], e["row"]["cpu"]) for e in there.events("hot_events")]


def test_an_alert_is_raised_and_cleared_once_through_restarts_and_a_rebuild(world: Callable[[App], World]) -> None:
    there = world(servers())
    there.send("samples", [[Sample(server="a", cpu=95.0), Sample(server="b", cpu=50.0)]])
    there.run()
    there.send("samples", [[Sample(server="a", cpu=85.0)], [Sample(server="b", cpu=93.0)]])
    there.run()
    assert sorted(told(there)) == [("a", "raised", 95.0), ("b", "raised", 93.0)]
    there.use(servers(factor=0.9))  # the view is rebuilt: b's row is then 83.7, between both; a's 76.5 clears
    there.run()
    assert told(there)[2:] == [("a", "cleared", 76.5)]
    assert [row["server"] for row in there.rows("hot")] == ["b"]
    there.send("samples", [[Sample(server="b", cpu=50.0)]])
    there.run()
    assert told(there)[3:] == [("b", "cleared", 45.0)]
    assert there.rows("hot") == []
    reports = there.verify()
    assert {name: reports[name].result for name in ("hot", "hot_events", "load")} == dict.fromkeys(
        ("hot", "hot_events", "load"), "equal"
    )


def test_a_trial_plays_classes_with_state_patterns_and_alerts() -> None:
    app = servers()

    @app.stateful(reads="samples", key="server", state=True)
    class peaks:
        class State(Struct):
            peak: float = 0.0

        class Output(Struct):
            server: str
            peak: float

        def on_event(self, state: Any, event: Any, out: Any) -> None:
            if event.cpu > state.peak:
                state.peak = event.cpu
                out.emit(peak=event.cpu)

    @app.pattern(key="server", order="log")
    def rising(samples: Any) -> Any:
        return begin("a", "cpu > 0").next("b", "cpu > a.cpu")

    with run(app) as t:
        for cpu in (50.0, 95.0, 85.0):
            t.send("samples", Sample(server="a", cpu=cpu))
            assert [alert["alert"] for alert in t.alerts()] == ["hot"] * (cpu != 50.0)
        assert t.rows("peaks_state")[0]["peak"] == 95.0
        assert [event["peak"] for event in t.rows("peaks")] == [50.0, 95.0]
        assert [event["b"]["cpu"] for event in t.rows("rising")] == [95.0]
        assert [event["alert"] for event in t.rows("hot_events")] == ["raised"]
