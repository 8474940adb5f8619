"""Which build of a flow is continued and which begins anew, and when a new one takes over from the one that is served.

A build is continued when its fingerprint and the epochs of its inputs are still what they were. Otherwise a new one
begins under a new epoch with its own checkpoint, the old rows are served until it is level, and then it is live.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from penstock.change import Column
from penstock.clock import Clock
from penstock.config import Folder
from penstock.declaration import FlowDef
from penstock.flows.plan import Planned, flow_late_after, flow_schema
from penstock.flows.sink import Ends, changelog_schema
from penstock.flows.source import Skips
from penstock.log import control_keys
from penstock.log.builds import Build, batch_meta, build_of
from penstock.log.log import LogReader, StreamSpec

Memory = Mapping[str, Any]


def continued(memory: Memory, made: Planned, inputs: Mapping[str, str], checkpoints: Path) -> Build | None:
    """The build to go on with, or None: a new one must begin."""
    stored = memory.get(control_keys.build(made.node.name))
    if stored is None:
        return None
    build = build_of(stored)
    same = build.fingerprint == made.fingerprint and build.inputs == dict(inputs)
    return build if same and not _set_aside(checkpoints, made.node.name, build.epoch) else None


def why_rebuilt(memory: Memory, made: Planned, inputs: Mapping[str, str]) -> str | None:
    """What `check` says of a build that will not be continued; None: it will, or there is none yet."""
    stored = memory.get(control_keys.build(made.node.name))
    if stored is None:
        return None
    build = build_of(stored)
    anew = [f"'{name}'" for name, epoch in inputs.items() if build.inputs.get(name, epoch) != epoch]
    if anew:  # whose columns may be others, so that the fingerprint differs too
        return f"{' and '.join(anew)}, which it reads, begins anew"
    same = build.fingerprint == made.fingerprint and build.inputs == dict(inputs)
    return None if same else "its code or schema changed"


def new_build(made: Planned, inputs: Mapping[str, str], starts: Mapping[str, Any], clock: Clock) -> Build:
    kind = "flow" if isinstance(made.node, FlowDef) else "view"
    return Build(
        epoch=secrets.token_hex(6),
        fingerprint=made.fingerprint,
        kind=kind,  # type: ignore[arg-type]
        inputs=dict(inputs),
        starts=dict(starts),
        columns=tuple(Column(f.name, f.dataType.simpleString()) for f in made.frame_schema.fields),
        proof=made.proof,
        proof_reasons=made.proof_reasons,
        how=made.how,
        unit=made.units.columns if made.units else (),
        mode=made.mode,
        version=made.fold.script.version if made.fold else 1,
        started_us=clock.now_us(),
    )


def stream_spec(made: Planned, build: Build) -> StreamSpec:
    """The stream that a build writes: a flow's events, or a view's changelog."""
    node = made.node
    if isinstance(node, FlowDef):
        own_us = None if made.hands_on else flow_late_after(made)
        return StreamSpec(node.name, flow_schema(made), node.partitions, epoch=build.epoch, late_after_us=own_us)
    return StreamSpec(node.name, changelog_schema(made), counts="commits", compact_by=node.key, epoch=build.epoch)


def remembered(name: str, build: Build, memory: Memory) -> dict[str, Any]:
    """What the control stream learns of a new build; the first one of a name is live at once."""
    learned: dict[str, Any] = {control_keys.build(name): msgspec.to_builtins(build)}
    if control_keys.live(name) not in memory:
        learned[control_keys.live(name)] = build.epoch
    return learned


def checkpoint_of(folder: Folder, name: str, epoch: str) -> Path:
    return folder.checkpoints / name / epoch


def set_aside(folder: Folder, name: str, epoch: str) -> None:
    """Mark a checkpoint that cannot be used, and keep it for whoever wants to know why."""
    path = checkpoint_of(folder, name, epoch)
    if path.exists():
        path.rename(path.with_name(f"{epoch}.lost"))


def _set_aside(checkpoints: Path, name: str, epoch: str) -> bool:
    return (checkpoints / name / f"{epoch}.lost").exists()


def skips_of(memory: Memory, name: str, epoch: str) -> dict[str, Skips]:
    """The events that a build leaves out, by stream."""
    found: dict[str, set[tuple[int, int]]] = {}
    for stream, partition, offset in memory.get(control_keys.skip(name, epoch), []):
        found.setdefault(stream, set()).add((partition, offset))
    return {stream: frozenset(events) for stream, events in found.items()}


class Takeover:
    """Watches a new build catch up with the one that is served; `__call__` is the sink's `switch`."""

    def __init__(self, made: Planned, build: Build, log: LogReader, logs: Mapping[str, LogReader]) -> None:
        self.made = made
        self.build = build
        self.log = log
        self.logs = logs
        self._targets: dict[str, tuple[int, ...]] = {}
        self.after: Callable[[str], None] = lambda old: None
        """Called with the epoch that is no longer served."""

    def __call__(self, end: Ends) -> Mapping[str, Any]:
        """What makes the build live, until a commit has said so: one that fails is no takeover."""
        name = self.made.node.name
        served = self.log.memory()[control_keys.live(name)]
        if served == self.build.epoch or not self._level(end):
            return {}
        self.after(served)
        return {control_keys.live(name): self.build.epoch}

    def _level(self, end: Ends) -> bool:
        name = self.made.node.name
        old = self.log.find(name, self.log.memory()[control_keys.live(name)])
        last = self.log.last_commit(old) if old else None
        if last is None or last.meta is None:  # nothing is served that this would replace
            return True
        reached = batch_meta(last.meta).end
        return all(self._input_level(i, end[i], reached.get(i)) for i in self.made.inputs)

    def _input_level(self, name: str, now: list[Any], before: list[Any] | None) -> bool:
        """Level with the old build on an input both read; on one that began anew, level with where that input stood
        when it was first seen to be live."""
        if before is not None and before[0] == now[0]:
            return all(n >= b for n, b in zip(now[1], before[1], strict=True))
        if name not in self._targets:
            stream = self.logs[name].find(name, now[0])
            if stream is None or self.log.memory().get(control_keys.live(name), now[0]) != now[0]:
                return False
            self._targets[name] = self.logs[name].bounds(stream).ends
        return all(n >= e for n, e in zip(now[1], self._targets[name], strict=True))
