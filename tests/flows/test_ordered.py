"""Flows that see the events of a key one after the other: what they emit is a function of the log."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import functions as F

from penstock import App, Event, Struct
from penstock.flows.ordered import spread
from penstock.ordinals import numbered
from penstock.patterns import begin
from tests.flows.world import World

BEGIN_MS = 1_700_000_000_000


class Payment(Event):
    card: str | None
    amount: float
    at: int


def bank(order: str = "log", number: int = 1, moves: Any = None, idle: str | None = None, **options: Any) -> App:
    app = App("bank")
    payments = app.stream("payments", Payment, key="card", time="at", late_after="10 seconds", idle_after=idle)

    @app.stateful(reads=payments, key="card", order=order, state=True, **options)
    class large:
        """Payments far above the mean of their card."""

        version = number
        migrate = moves

        class State(Struct):
            n: int = 0
            mean: float = 0.0

        class Output(Struct):
            card: str
            amount: float
            n: int

        def on_event(self, state: Any, event: Any, out: Any) -> None:
            if event.amount < 0:
                raise ValueError("a payment is never negative")
            if state.n >= 3 and event.amount > 5 * state.mean:
                out.emit(amount=event.amount, n=state.n)
            state.n += 1
            state.mean += (event.amount - state.mean) / state.n

    return app


def payments(seed: int, count: int = 400) -> list[list[Payment]]:
    """Commits of payments, some of them late, some for nobody's card."""
    dice, commits = random.Random(seed), []
    at = BEGIN_MS
    while count > 0:
        size = dice.randint(1, 20)
        commit = []
        for _ in range(size):
            at += dice.randint(0, 400)
            behind = dice.choice([0, 0, 0, 500, 30_000])
            card = dice.choice(["a", "b", "c", "d", "e", None] if dice.random() < 0.1 else ["a", "b", "c"])
            amount = dice.choice([1.0, 2.0, 3.0, 90.0]) if dice.random() > 0.02 else -1.0
            commit.append(Payment(card=card, amount=amount, at=at - behind))
        commits.append(commit)
        count -= size
    return commits


def reference(commits: list[list[Payment]]) -> tuple[list[tuple[Any, ...]], dict[str, tuple[int, float]]]:
    """The same as a plain loop over the log."""
    emitted, states = [], {}
    for commit in commits:
        for payment in commit:
            if payment.card is None or payment.amount < 0:
                continue
            n, mean = states.get(payment.card, (0, 0.0))
            if n >= 3 and payment.amount > 5 * mean:
                emitted.append((payment.card, payment.amount, n))
            states[payment.card] = (n + 1, mean + (payment.amount - mean) / (n + 1))
    return emitted, states


def emitted(world: World, flow: str = "large") -> list[tuple[Any, ...]]:
    return [(row["card"], row["amount"], row["n"]) for row in world.events(flow)]


def test_a_class_with_state_equals_a_plain_loop_over_the_log(world: Callable[[App], World]) -> None:
    there, commits = world(bank()), payments(1)
    for cut in (commits[:10], commits[10:11], commits[11:]):
        there.send("payments", cut)
        there.run()
    rows, states = reference(commits)
    assert emitted(there) == rows
    assert {row["card"]: (row["n"], row["mean"]) for row in there.rows("large_state")} == states
    poison = [p for commit in commits for p in commit if p.amount < 0 or p.card is None]
    assert len(there.events("dead")) == len(poison)
    assert_proved(there)


def assert_proved(there: World) -> None:
    assert {n: (r.result, r.differences, r.reasons) for n, r in there.verify().items()} == {
        name: ("equal", [], []) for name in ("large", "large_state")
    }


def test_in_the_order_of_time_it_does_not_matter_how_events_came(world: Callable[[App], World]) -> None:
    there, commits = world(bank(order="time")), payments(2)
    for cut in (commits[:15], commits[15:]):
        there.send("payments", cut)
        there.run()
    taken, newest = [], 0
    for commit in commits:
        taken += [p for p in commit if p.at >= newest - 10_000]
        complete, newest = newest - 10_000, max(newest, *(p.at for p in commit))
    in_order = sorted((p for p in taken if p.at < complete), key=lambda p: p.at)
    rows, states = reference([in_order])
    assert emitted(there) == rows
    assert {row["card"]: (row["n"], row["mean"]) for row in there.rows("large_state")} == states
    assert_proved(there)


def test_changed_code_rebuilds_and_executors_fold_the_same(
    world: Callable[[App], World], monkeypatch: pytest.MonkeyPatch
) -> None:
    there, commits = world(bank()), payments(3)
    there.send("payments", commits)
    there.run()
    before, epoch = emitted(there), there.memory()["live/large"]
    (there.folder.ordered / "large.db").write_bytes(b"no database")  # derived: it is filled again
    monkeypatch.setattr(spread, "FEW_EVENTS", 0)
    there.use(bank(keep="1000 days"))
    there.run()
    assert there.memory()["live/large"] != epoch
    assert emitted(there) == before == reference(commits)[0]
    assert_proved(there)
    there.use(bank(number=2))
    there.run(until=lambda: there.memory()["flow/large"]["state"] == "stopped")
    assert "has no migrate" in there.memory()["flow/large"]["error"]["message"]

    def migrate(self: Any, old: dict[str, Any], version: int) -> Any:
        assert version == 1
        return self.State(n=old["n"] + 1000, mean=old["mean"])

    there.use(bank(number=2, moves=migrate))
    epoch = there.memory()["live/large"]
    there.run()
    assert there.memory()["live/large"] == epoch
    assert emitted(there) == before
    states = {row["card"]: (row["n"] - 1000, row["mean"]) for row in there.rows("large_state")}
    assert states == reference(commits)[1]
    assert "version 1" in there.verify()["large"].reasons[0]


def test_a_pattern_finds_its_matches_once_through_restarts(world: Callable[[App], World]) -> None:
    app = App("bank")
    payments_ = app.stream("payments", Payment, key="card", time="at", late_after="10 seconds")

    @app.pattern(key="card", within="1 minute")
    def probing(payments: Any) -> Any:
        """A small payment, then a large one of the same card."""
        return begin("small", "amount < 1.5").followed_by("large", "amount > 20 * small.amount")

    assert payments_.name == "payments"
    there, commits = world(app), payments(4)
    for cut in (commits[:12], commits[12:30], commits[30:]):
        there.send("payments", cut)
        there.run()
    found = [(m["card"], m["small"]["at"], m["large"]["at"]) for m in there.events("probing")]
    assert found == pairs(commits)
    assert there.verify()["probing"].result == "equal"


def pairs(commits: list[list[Payment]]) -> list[tuple[str | None, int, int]]:
    """Small and then large, by hand: in the order of time, and after a match all begins anew."""
    taken, newest, complete = [], 0, 0
    for commit in commits:
        taken += [p for p in commit if p.at >= newest - 10_000]
        complete, newest = newest - 10_000, max(newest, *(p.at for p in commit))
    found, small = [], dict[str | None, list[Payment]]()
    for p in sorted((p for p in taken if p.at < complete and p.card is not None), key=lambda p: p.at):
        first = next((s for s in small.get(p.card, []) if p.at - s.at < 60_000 and p.amount > 20 * s.amount), None)
        if first is not None:
            found.append((p.card, first.at, p.at))
            small[p.card] = []
        elif p.amount < 1.5:
            small.setdefault(p.card, []).append(p)
    return found


def test_windows_of_counted_events_are_groups_of_numbers(world: Callable[[App], World]) -> None:
    app = App("bank")
    app.stream("payments", Payment, key="card", time="at", late_after="10 seconds")

    @app.view(key=["card", "five"])
    def fives(payments: Any) -> Any:
        """The sum of each five payments of a card."""
        counted = numbered(payments, by="card").withColumn("five", F.expr("_nth div 5"))
        return counted.groupBy("card", "five").agg(F.sum("amount").alias("amount"), F.count("*").alias("n"))

    there, commits = world(app), payments(5, 150)
    for cut in (commits[:5], commits[5:]):
        there.send("payments", cut)
        there.run()
    known: dict[Any, list[float]] = {}
    for payment in (payment for commit in commits for payment in commit):
        known.setdefault(payment.card, []).append(payment.amount)
    fives_of = {(c, at // 5): a[at : at + 5] for c, a in known.items() for at in range(0, len(a), 5)}
    found = {(row["card"], row["five"]): (row["amount"], row["n"]) for row in there.rows("fives")}
    assert found == {key: (sum(amounts), len(amounts)) for key, amounts in fives_of.items()}
    assert {name: r.result for name, r in there.verify().items()} == {"fives.1": "equal", "fives": "equal"}
