"""What flows tell the edge through the log: which build of a view or stream is served, what each commit absorbed.

A *build* is one run of a flow's function over its input from the beginning, under one fingerprint; its epoch is the
epoch of the changelog or stream that it writes. While a new build catches up, the old one is still the live one.

The control stream of `flows.db` holds, by key:

- `build/<name>`: the newest `Build` of a flow or view
- `live/<name>`: the epoch that is served
- `flow/<name>`: its `FlowState`
- `skip/<name>/<epoch>`: events that the build leaves out, because they alone make it fail
- `rebuilt/<name>`: the newest request of `penstock rebuild` that was followed
- `leftover/<name>`: since when something is not used any more, until it is removed
- `count/<stream>/<flow>`: how many events of a stream were late for a flow, and how many died in it
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from penstock.change import Column
from penstock.declaration import How
from penstock.position import Frontier, frontier_from_json, frontier_json

State = Literal["starting", "running", "rebuilding", "retrying", "stopped"]
Proof = Literal["exact", "tolerance", "bounded", "unverifiable"]


class Build(msgspec.Struct, frozen=True, kw_only=True):
    """A build of a view or flow stream, as it stands in the control stream."""

    epoch: str
    fingerprint: str
    kind: Literal["view", "flow"]
    inputs: dict[str, str] = {}
    """The epoch of each input that it reads: when one begins anew, so must this."""
    starts: dict[str, Any] = {}
    """Where each input began when the build did: commit number and offsets, above 0 when retention had cut it."""
    columns: tuple[Column, ...]
    proof: Proof
    proof_reasons: tuple[str, ...] = ()
    how: How = "folded"
    unit: tuple[str, ...] = ()
    """The columns of a unit, where it is computed unit by unit."""
    mode: Literal["update", "append"] = "update"
    version: int = 1
    """Of a class with state: which version of it made the states."""
    migrated_from: int | None = None
    """The version whose states it took over: what was emitted before was made by other code."""
    started_us: int


class FlowState(msgspec.Struct, frozen=True, kw_only=True):
    """How a flow is. `error` is an error body (code, message, detail, hint) while it is retrying or stopped."""

    state: State
    error: dict[str, Any] | None = None
    restarts: int = 0
    run: str = ""
    """Which run of the supervisor this was said in: a state from an earlier run says nothing of now."""


class OrderedMeta(msgspec.Struct, frozen=True, kw_only=True):
    """What one commit of an ordered flow's stream says beside its positions."""

    commits: dict[str, int]
    """By input the number of the first commit that it has not read."""
    complete_us: int | None = None
    """What was complete at its last commit: timers up to it have fired, and in the order of time events before it
    were handed over."""
    waiting: dict[str, int] = {}
    """In the order of time: by input the first commit with an event that still waits."""
    fired: list[Any] = []
    """Timers by the clock that fired before the batch: keys and names. A clock is not repeatable; this is."""


class BatchMeta(msgspec.Struct, frozen=True, kw_only=True):
    """What one commit of a changelog or flow stream absorbed: stored as the commit's `meta`."""

    batch: int
    start: dict[str, Any]
    """Direct input positions before the batch, by stream: `{"rsvps": [epoch, [offsets]]}`."""
    end: dict[str, Any]
    """Direct input positions behind the batch."""
    even: bool = True
    """False when a stream that the function uses twice was read up to two different ends; `verify` passes over it."""
    max_us: int | None = None
    """The input's largest event time at `end` (several inputs: the smallest of theirs); `keep` is measured by it."""
    complete_us: int | None = None
    """Up to when all of its inputs are complete at `end`; None: one of them never is, or it was not noted."""
    waits_us: int | None = None
    """Up to when something that groups or joins by event time may be open at `end`; None: nothing is."""
    watermark_us: int | None = None
    """An aggregation in append mode: windows that end at or before it are closed."""
    accepted_us: int | None = None
    """When the newest event of the batch was taken at the door."""
    planned_us: int | None = None
    """When Spark fixed the batch's end."""
    done_us: int | None = None
    """When Spark had computed the batch."""
    corrected: list[Any] | None = None
    """A view with `correct=`: the keys, as objects, of what it changed in windows that had closed before the batch."""
    ordered: OrderedMeta | None = None
    """Of an ordered flow."""
    step: dict[str, tuple[str, int]] | None = None
    """Views that this commit of the log has moved together: where each stands behind it. None: it moved no other."""

    @property
    def frontier(self) -> Frontier:
        return frontier_from_json(self.end)


for _kind in (Build, FlowState, OrderedMeta, BatchMeta):
    # msgspec looks at a class when it first meets it, and crashes the process (0.22) if a second thread meets a class
    # within a class meanwhile. Views are loaded in threads, so that this must have happened before.
    msgspec.json.Decoder(_kind)


def batch_meta(meta: Mapping[str, Any]) -> BatchMeta:
    return msgspec.convert(meta, BatchMeta)


def build_of(value: Any) -> Build:
    return msgspec.convert(value, Build)


def state_of(value: Any) -> FlowState:
    return msgspec.convert(value, FlowState)


__all__ = ["BatchMeta", "Build", "FlowState", "batch_meta", "build_of", "frontier_json", "state_of"]
