"""Computes views that take too long for a step beside the steps, in threads of their own, on snapshots of `held.db`.

1. A job belongs to the state that its snapshot shows, and its views are committed with the frontier of that state.
   Nobody else changes the rows of these views meanwhile: what differs from the snapshot differs from what they show.
2. What the steps change meanwhile is dirty in `held.db`, and noted in the job: such units are computed once more.
3. A job writes nothing. If it is lost, by a restart, a rebuild or damage, the units that it had are dirty still.
4. A view that reads a straggler beside something that the two have in common is computed in the same job: the steps
   are ahead of the snapshot, so that nowhere else would both stand at one place. Each is handed back when it is done.
   Builds of views that read each other are handed back together, and so go live in one commit.
5. Whole views are computed at most half of the time.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa
from pyspark import SparkContext
from pyspark.util import InheritableThread

from penstock.clock import Clock
from penstock.flows.hang import HUNG_S
from penstock.flows.regroup.held import HeldSnapshot
from penstock.flows.regroup.input_follower import Reached
from penstock.flows.regroup.kept_view import Computed, Kept, TimeLimit
from penstock.flows.regroup.meetings import Inputs, Place, roots_of
from penstock.flows.regroup.regrouping import Delta
from penstock.flows.regroup.sums import UnitSet

_log = logging.getLogger(__name__)

AT_ONCE = 2
"""Jobs beside the steps. `session.py` has room for one more task than there are cores, so that some is left for the
steps, also where both jobs hang."""
_POOL = "stragglers"
"""Spark shares its cores evenly between this pool of jobs and all others."""


def company_of(leader: str, inputs: Inputs, order: Sequence[str], along: Collection[str]) -> list[str]:
    """The views that are computed together with one that goes alone, in the order of the graph: those below it that
    otherwise would never be level, and those of `along`."""
    below, company = {leader}, {leader}
    for name in order[order.index(leader) + 1 :]:
        reads = set(inputs[name])
        if not reads & below:
            continue
        beside = frozenset().union(*(roots_of(i, inputs) for i in reads - below))
        common = frozenset().union(*(roots_of(member, inputs) for member in company))
        below.add(name)
        if name in along or beside & common:
            company |= {name} | _between(name, inputs, below)
    return [name for name in order if name in company]


def _between(name: str, inputs: Inputs, below: Collection[str]) -> set[str]:
    """What a view reads of those below the leader, at any depth."""
    found = {i for i in inputs[name] if i in below}
    return found.union(*(_between(i, inputs, below) for i in found if i in inputs))


def companies_of(
    leaders: Iterable[str], inputs: Inputs, order: Sequence[str], along: Collection[str]
) -> list[list[str]]:
    """The same for several; those that have a view in common are one."""
    found: list[set[str]] = []
    for leader in leaders:
        one = set(company_of(leader, inputs, order, along))
        met = [company for company in found if company & one]
        found = [company for company in found if company not in met] + [one.union(*met)]
    return [[name for name in order if name in company] for company in found]


@dataclass
class Straggler:
    """A view in a job: which units it is about to compute, and where its inputs stand in the snapshot."""

    view: Kept
    dirty: set[bytes]
    newest_us: int | None
    places: Mapping[str, Place]
    building: bool
    touched: set[bytes] = field(default_factory=set)
    """Units that the steps have changed since; belongs to their thread."""
    lost: UnitSet = None
    """Of a view that is kept by adding: units whose sums are computed from rows; None: all."""
    moved: list[pa.Table] = field(default_factory=list)
    """What the steps have added to its sums since; belongs to their thread."""
    unmoved: set[bytes] = field(default_factory=set)
    """Units for which that failed."""


@dataclass(frozen=True)
class CaughtUp:
    """What became of a member."""

    units: set[bytes]
    made: Computed
    took_s: float


class Job:
    """Some views, one snapshot, one thread."""

    def __init__(
        self,
        members: Sequence[Straggler],
        snapshot: HeldSnapshot,
        reached: Mapping[str, Reached],
        accepted_us: int | None,
        context: SparkContext,
        clock: Clock,
    ) -> None:
        self.members = {member.view.name: member for member in members}
        self.reached = dict(reached)
        """How far each table was followed in the snapshot; of members, from when they are handed back."""
        self.accepted_us = accepted_us
        self.outcomes: dict[str, CaughtUp | Exception] = {}
        self.delivered: set[str] = set()
        self._pending = set(self.members)
        self._snapshot = snapshot
        self._context = context
        self._clock = clock
        self._limit = TimeLimit(context, f"penstock-alone-{secrets.token_hex(4)}")

    def start(self) -> None:
        InheritableThread(target=self._work, name="straggler", daemon=True).start()

    def cut(self) -> None:
        self._limit.cut()

    def has(self, name: str) -> bool:
        """Whether a view is being computed here, or was and is not handed back yet."""
        return name in self._pending or (name in self.outcomes and name not in self.delivered)

    @property
    def done(self) -> bool:
        return not any(self.has(name) for name in self.members)

    def arrived(self) -> list[str]:
        """Views that can be handed back. New builds wait for each other."""
        building = {name for name, member in self.members.items() if member.building}
        here = [name for name in self.members if name in self.outcomes and name not in self.delivered]
        return [name for name in here if name not in building or not building & self._pending]

    # Its thread

    def _work(self) -> None:
        try:
            self._limit.begin()
            self._context.setLocalProperty("spark.scheduler.pool", _POOL)
            self._lay_over()
            for name, member in self.members.items():
                self._compute(name, member)
        except Exception as error:
            _log.exception("views beside the steps could not be computed")
            self.outcomes |= dict.fromkeys(self._pending, error)
        finally:
            self._pending.clear()
            self._snapshot.close()

    def _lay_over(self) -> None:
        """Members that read members see what these were computed to."""
        for name in {table for member in self.members.values() for table in member.view.tables} & self.members.keys():
            self._snapshot.lay_over(name)

    def _compute(self, name: str, member: Straggler) -> None:
        below = [table for table in member.view.tables if table in self.members]
        done = {table: got for table in below if isinstance(got := self.outcomes.get(table), CaughtUp)}
        if len(done) == len(below):
            self.outcomes[name] = self._outcome(member, {table: outcome.made.delta for table, outcome in done.items()})
            if name in {table for other in self.members.values() for table in other.view.tables}:
                self._show(name)
        self._pending.discard(name)  # one whose inputs failed is left to the steps, which let it wait

    def _show(self, name: str) -> None:
        outcome = self.outcomes[name]
        if isinstance(outcome, CaughtUp):
            self._snapshot.tables[name].apply(outcome.made.delta.old, outcome.made.delta.new)

    def _outcome(self, member: Straggler, deltas: Mapping[str, Delta]) -> CaughtUp | Exception:
        view, tables, began = member.view, self._snapshot.tables, self._clock.monotonic()
        patience_s = HUNG_S * 2**view.failures
        try:
            touched = view.regrouping.touched(deltas, tables)
            units = member.dirty | touched
            if member.building:
                units |= view.all_units(tables)
            query = partial(self._limit.query, patience_s)
            lost = None if member.lost is None else member.lost | touched
            made = view.computed(units, member.newest_us, tables, query, lost=lost)
        except Exception as error:
            return error
        return CaughtUp(units, made, self._clock.monotonic() - began)


class Stragglers:
    """The jobs beside the steps. Belongs to their thread."""

    def __init__(self, order: Sequence[str], inputs: Inputs, context: SparkContext, clock: Clock) -> None:
        self._order = order
        self._inputs = inputs
        self._context = context
        self._clock = clock
        self._jobs: list[Job] = []
        self._not_before: dict[str, float] = {}
        self._waiting: list[list[str]] = []
        """Companies that want to go, as of the last step."""

    def job_of(self, name: str) -> Job | None:
        return next((job for job in self._jobs if job.has(name)), None)

    def waits(self, name: str) -> bool:
        """Whether a view is with a job, or waits for its turn: no step need look after it."""
        return self.job_of(name) is not None or any(name in company for company in self._waiting)

    def due(self) -> bool:
        """Whether a view can be handed back, or can go."""
        return any(job.arrived() for job in self._jobs) or any(map(self._may_go, self._waiting))

    def _may_go(self, company: Sequence[str]) -> bool:
        now = self._clock.monotonic()
        return len(self._jobs) < AT_ONCE and all(now >= self._not_before.get(name, 0.0) for name in company)

    def arrived(self) -> dict[str, Job]:
        """The views that can be handed back, and the job of each."""
        return {name: job for job in self._jobs for name in job.arrived()}

    def settle(self, arrived: Mapping[str, Job]) -> None:
        """These were handed back, and that is written down."""
        for name, job in arrived.items():
            job.delivered.add(name)
            outcome, view = job.outcomes[name], job.members[name].view
            if view.is_whole and isinstance(outcome, CaughtUp):
                self._not_before[name] = self._clock.monotonic() + outcome.took_s
        self._jobs = [job for job in self._jobs if not job.done]

    def ready(self, leaders: Collection[str], along: Collection[str]) -> list[list[str]]:
        """The companies of those that want to go now and may; the others wait."""
        free = {name for name in self._order if self.job_of(name) is None}
        wanted = [
            [name for name in company if name in free]
            for company in companies_of(leaders, self._inputs, self._order, along)
        ]
        may = [company for company in wanted if self._may_go(company)][: AT_ONCE - len(self._jobs)]
        self._waiting = [company for company in wanted if company not in may]
        return may

    def send(
        self,
        members: Sequence[Straggler],
        snapshot: HeldSnapshot,
        reached: Mapping[str, Reached],
        accepted_us: int | None,
    ) -> None:
        """Let a company go. `accepted_us` is when the newest event was taken that it will have absorbed."""
        job = Job(members, snapshot, reached, accepted_us, self._context, self._clock)
        self._jobs.append(job)
        job.start()

    def drop(self) -> None:
        """Forget all of them; what they have not handed back is dirty."""
        for job in self._jobs:
            job.cut()
        self._jobs, self._waiting = [], []
