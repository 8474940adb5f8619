"""Windows of a calendar and of what came before each event, and generated streams against a reference in Python."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock import App, Event
from penstock.config import Folder
from penstock.errors import DeclarationError
from penstock.flows.check import _notes
from penstock.flows.plan import Planner
from penstock.windows import around, calendar
from tests.flows.world import World

PARIS = ZoneInfo("Europe/Paris")
SEEDS = int(os.environ.get("WINDOW_SEEDS", "1"))
START_MS = 1_700_000_000_000 // 60_000 * 60_000
LATE_MS = 60_000


class Step(Event):
    n: int
    at: int
    who: str


def first_of(unit: str, moment: datetime) -> datetime:
    """Where a part of the calendar begins, on the clock of the wall."""
    day = moment.replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
    if unit == "week":
        return day - timedelta(days=day.weekday())
    return day if unit == "day" else day.replace(day=1) if unit == "month" else day.replace(day=1, month=1)


def part_of(unit: str, moment: datetime) -> tuple[datetime, datetime]:
    start = first_of(unit, moment.astimezone(PARIS))
    days = {"day": 1, "week": 7, "month": 32, "year": 367}[unit]
    end = start + timedelta(days=days)
    end = end if unit in ("day", "week") else first_of(unit, end)
    return start.replace(tzinfo=PARIS).astimezone(UTC), end.replace(tzinfo=PARIS).astimezone(UTC)


def test_days_weeks_months_and_years_are_those_of_the_zone(spark: SparkSession) -> None:
    hours = [datetime(2024, month, day, tzinfo=UTC) for month in (1, 3, 10, 12) for day in (1, 27, 30, 31)]
    moments = [hour + timedelta(minutes=minute) for hour in hours for minute in range(0, 1440, 30)]
    frame = spark.createDataFrame([(moment,) for moment in moments], "_time timestamp")
    units = ("day", "week", "month", "year")
    rows = frame.select("_time", *(calendar("_time", f"1 {u}", zone="Europe/Paris").alias(u) for u in units)).toArrow()
    for row in rows.to_pylist():
        for unit in units:
            assert (row[unit]["start"], row[unit]["end"]) == part_of(unit, row["_time"]), (unit, row["_time"])


def test_what_is_no_window_is_refused_where_it_is_declared(spark: SparkSession, tmp_path: Any) -> None:
    for length, zone in (("2 fortnights", "Europe/Paris"), ("0 days", "Europe/Paris"), ("1 day", "Mars/Olympus")):
        with pytest.raises(DeclarationError):
            calendar("_time", length, zone=zone)
    with pytest.raises(DeclarationError):
        around(None, by="who", within="5 minutes")  # type: ignore[arg-type]
    for said, option in (("without late_after", {"idle_after": "1 minute"}), ("complete=", {"complete": "clocks"})):
        with pytest.raises(DeclarationError, match=said):
            App("bad").stream("steps", Step, time="at", **option)  # type: ignore[arg-type]
    for length, slide in (("0 seconds", "0 seconds"), ("10 seconds", "1 minute")):
        planned, problems = Planner(spark, counting(length, slide).declared(), Folder(tmp_path)).plan_all()
        assert planned == {}
        assert [(problem.level, problem.place.file == __file__) for problem in problems] == [("error", True)]
    planned, _ = Planner(spark, counting("10 minutes", "5 seconds").declared(), Folder(tmp_path)).plan_all()
    assert (planned["windows"].windows, planned["windows"].reach_us) == (120, 600_000_000)
    notes = _notes(counting("1 day", "1 day").declared(), planned["windows"])
    assert next(note.code for note in notes) == "many_windows"


def counting(length: str, slide: str) -> App:
    made = App("bad")
    made.stream("steps", Step, time="at", late_after="1 minute")

    @made.view(key="window")
    def windows(steps: DataFrame) -> DataFrame:
        return steps.groupBy(F.window("_time", length, slide)).count()

    return made


def app() -> App:
    made = App("windows")
    made.stream("steps", Step, time="at", id="n", late_after="1 minute")

    @made.view(key=["window", "who"], final=True)
    def tumbling(steps: DataFrame) -> DataFrame:
        return steps.groupBy(F.window("_time", "20 seconds"), "who").agg(F.count("*").alias("c"), F.sum("n").alias("s"))

    @made.view(key=["window"])
    def hopping(steps: DataFrame) -> DataFrame:
        return steps.groupBy(F.window("_time", "10 seconds", "2 seconds")).agg(F.count("*").alias("c"))

    @made.view(key=["window"], final=True)
    def days(steps: DataFrame) -> DataFrame:
        return steps.groupBy(calendar("_time", "1 day", zone="Europe/Paris")).agg(F.count("*").alias("c"))

    @made.view(key=["who", "session_window"])
    def sessions(steps: DataFrame) -> DataFrame:
        return steps.groupBy("who", F.session_window("_time", "5 seconds")).agg(F.count("*").alias("c"))

    @made.view(key="n", within="1 day")
    def hasty(steps: DataFrame) -> DataFrame:
        return around(steps, by="who", within="5 seconds", c=F.count("*")).select("n", "c")

    return made


class Generated:
    """Commits and ticks of one seed: out of order, repeated, with gaps and bursts, some hours late, some silence."""

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        self.commits: list[list[Step] | int] = []
        now, n = START_MS, 0
        for _ in range(25):
            now += chance.choice([500, 5_000, 5_000, 40_000])
            steps = []
            for _ in range(chance.choice([1, 3, 20])):
                back = chance.choice([0, 0, 0, chance.randint(0, 90_000), 3 * 3_600_000])
                steps.append(Step(n=n, at=now - back, who=chance.choice("ab")))
                n += 1
            if steps and chance.random() < 0.3:
                steps.append(steps[0])
            self.commits.append(steps)
            if chance.random() < 0.2:
                now += 120_000
                self.commits.append(now - LATE_MS)
        self.last = now + 3_600_000
        self.commits.append(self.last)

    def taken(self) -> tuple[list[Step], set[int]]:
        """What counts, and what is late: by the one rule, in plain Python."""
        complete, counted, late, known = -(10**18), [], set(), set()
        for commit in self.commits:
            if isinstance(commit, int):
                complete = max(complete, commit)
                continue
            for step in commit:
                if step.n in known:
                    continue
                known.add(step.n)
                late |= {step.n} if step.at < complete else set()
                counted += [step] if step.at >= complete else []
            complete = max([complete, *(step.at - LATE_MS for step in commit)])
        return counted, late


def start_ms(row: Any, column: str = "window") -> int:
    return round(row[column]["start"].timestamp() * 1000)


def sessions_of(steps: list[Step]) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for who in "ab":
        begin = end = None
        for at in sorted(step.at for step in steps if step.who == who):
            begin = at if end is None or at > end else begin
            end = at + 5_000
            found[who, begin] += 1
    return found


def check(there: World, generated: Generated) -> None:
    steps, late = generated.taken()
    tumbling = Counter((step.at // 20_000 * 20_000, step.who) for step in steps)
    rows = there.rows("tumbling")
    assert {(start_ms(row), row["who"]): row["c"] for row in rows} == tumbling
    assert sum(row["s"] for row in rows) == sum(step.n for step in steps)
    assert all(row["is_final"] == (start_ms(row) + 20_000 <= generated.last) for row in rows)
    hops = Counter((step.at // 2_000 - k) * 2_000 for step in steps for k in range(5))
    assert {start_ms(row): row["c"] for row in there.rows("hopping")} == hops
    days = Counter(part_of("day", datetime.fromtimestamp(step.at / 1000, UTC))[0].timestamp() for step in steps)
    assert {start_ms(row) / 1000: row["c"] for row in there.rows("days")} == days
    sessions = {(row["who"], start_ms(row, "session_window")): row["c"] for row in there.rows("sessions")}
    assert sessions == sessions_of(steps)
    near = {step.n: sum(step.at - 5_000 <= o.at <= step.at and o.who == step.who for o in steps) for step in steps}
    assert {row["n"]: row["c"] for row in there.rows("hasty")} == near
    named = {int(e["event"].split('"n":')[1].split(",")[0]) for e in there.events("late") if e["flow"] == "tumbling"}
    assert named == late
    assert there.dropped == 0


@pytest.mark.parametrize("seed", range(SEEDS))
def test_windows_of_generated_streams_are_those_of_plain_python(world: Callable[[App], World], seed: int) -> None:
    generated = Generated(seed)
    there = world(app())
    third = len(generated.commits) // 3 if seed % 2 else len(generated.commits)
    closed = len(sessions_of(generated.taken()[0]))
    for at in range(0, len(generated.commits), third):
        part = generated.commits[at : at + third]
        for commit in part:
            if isinstance(commit, int):
                there.tick("steps", commit * 1000)
            else:
                there.send("steps", [commit])
        last = at + third >= len(generated.commits)
        done = (lambda: there.level() and len(there.rows("sessions")) == closed and is_told(there)) if last else None
        there.run(until=done, max_rows=30 if seed % 2 else 500_000)
    check(there, generated)
    assert {report.result for report in there.verify().values()} == {"equal"}


def is_told(there: World) -> bool:
    """The last tick has reached the views with final rows."""
    return all(row["is_final"] for row in there.rows("tumbling"))
