"""Makes the door's streams in the log as they are declared, and says what to do when a class changed too much."""

from __future__ import annotations

from penstock.declaration import StreamDef
from penstock.errors import SchemaChangeError
from penstock.log.evolving import WAY_OUT, judged, versioned
from penstock.log.folder import DEAD
from penstock.log.group import GroupCommit
from penstock.log.log import Log, Stream, StreamSpec


def stream_spec(declared: StreamDef) -> StreamSpec:
    """How the log makes a declared stream."""
    return StreamSpec(
        declared.name, versioned(declared), declared.partitions, unique=bool(declared.id), horizon=declared.horizon
    )


def make_dead(log: Log, group: GroupCommit) -> Stream:
    """The ledger of what was rejected; its letters are unique by their id, where they have one."""
    return group.run(lambda: log.create(StreamSpec("dead", DEAD, unique=True))).result()


def make_stream(log: Log, group: GroupCommit, declared: StreamDef) -> Stream:
    """Make it or find it; a class that cannot read the events already stored is refused with the user's line."""
    there = log.find(declared.name)
    refused = () if there is None else judged(declared, log.versions(there)).refused
    if refused:
        raise _refusal(declared, "; ".join(refused))
    try:
        return group.run(lambda: log.create(stream_spec(declared))).result()
    except SchemaChangeError as error:
        raise _refusal(declared, error.detail or error.message) from error


def _refusal(declared: StreamDef, why: str) -> SchemaChangeError:
    kind = declared.events.kind.__name__
    return SchemaChangeError(
        f"{declared.place}: the class {kind} no longer fits the events that '{declared.name}' holds",
        detail=why,
        hint=WAY_OUT,
    )
