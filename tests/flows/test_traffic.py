"""The traffic example: four planted jams are found at their times, and raised and cleared once each."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from tests.flows.test_table_examples import example
from tests.flows.world import World


def test_planted_jams_are_found_raised_and_cleared_once(world: Callable[[Any], World]) -> None:
    with example("traffic", "app", "vehicles") as (app, vehicles):
        story, played = vehicles.Vehicles(seed=2), world(app.app)
        rows, dice = [app.Report(**row) for row in story.reports], Random(1)
        commits = []
        while rows:
            commit, rows = rows[:40], rows[40:]
            dice.shuffle(commit)  # within a commit nothing is late, and the order of time is kept all the same
            commits.append(commit)
        for cut in (commits[: len(commits) // 2], commits[len(commits) // 2 :]):
            played.send("reports", cut)
            played.run(max_rows=40)  # a batch a commit: each row is published, so that the alert sees it
        found = {match["road"]: match["third"]["at"] for match in played.events("jam")}
        assert found == {road: third for road, (third, _) in story.jams.items()}
        told = [(event["road"], event["alert"]) for event in played.events("jammed_events")]
        assert sorted(told) == sorted((road, what) for road in story.jams for what in ("cleared", "raised"))
        assert all(told.index((road, "raised")) < told.index((road, "cleared")) for road in story.jams)
        assert played.rows("jammed") == []
        results = {name: report.result for name, report in played.verify().items()}
        assert results == dict.fromkeys(("jam", "roads", "roads_state", "jammed_events", "jammed"), "equal")
