"""The fraud example: decisions equal a plain loop one by one, and one who does not speak is named."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.flows.test_table_examples import example
from tests.flows.world import World

Make = Callable[[Any], World]


def test_decisions_equal_a_plain_loop_and_a_stalled_analyser_is_missing(
    world: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    with example("fraud", "app", "cards") as (app, cards):
        story = cards.Cards(seed=3, cards=30, each=40, planted=4)
        monkeypatch.setattr(app, "DEADLINE", "10 minutes")  # all three speak, on the busiest machine
        played, rows = world(app.app), story.transactions
        for cut in (rows[:500], rows[500:1190]):
            played.send(
                "transactions", [[app.Transaction(**row) for row in cut[at : at + 50]] for at in range(0, 690, 50)]
            )
            played.run()
        expected = cards.reference(rows[:1190])
        told = {d["id"]: d for d in played.events("decisions")}
        assert {n: d["reasons"] for n, d in told.items()} == expected
        assert {d["decision"] for n, d in told.items() if expected[n]} == {"block"}
        assert all(d["missing"] == [] for d in told.values())
        blocked = {n for n, d in told.items() if d["decision"] == "block"}
        assert cards.quality(blocked, {n: k for n, k in story.labels.items() if n < 1190}) == (1.0, 1.0)
        assert {name: report.result for name, report in played.verify().items()} == dict.fromkeys(
            ("ticket", "travel", "velocity", "decisions", "decisions_state", "reasons"), "equal"
        )

        released = threading.Event()

        def stalled(state: Any, event: Any, out: Any) -> None:
            released.wait(60)
            out.emit(id=event.id, bad=False)

        monkeypatch.setattr(app, "DEADLINE", "2 seconds")
        travel = next(flow for flow in played.app.flows if flow.name == "travel")
        assert travel.ordered is not None
        monkeypatch.setattr(travel.ordered.script.script, "on_event", stalled, raising=False)
        played.send("transactions", [[app.Transaction(**row) for row in rows[1190:1200]]])

        def decided() -> bool:
            return len(played.events("decisions")) == 1200

        try:
            played.run(until=lambda: decided() and (released.set() or played.level()))  # type: ignore[func-returns-value]
        finally:
            released.set()
        told = {d["id"]: d for d in played.events("decisions") if d["id"] >= 1190}
        assert len(told) == 10
        assert all("travel" in d["missing"] for d in told.values())  # others, too, where the machine is busy
        assert played.verify()["decisions"].result == "equal"
