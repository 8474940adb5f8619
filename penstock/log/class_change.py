"""Judges a stream's class against the versions that its log knows, for the start and for `penstock check` alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa

from penstock.declaration import StreamDef
from penstock.evolution import changes_refused, narrowed, removed_fields
from penstock.log.log import Stream, Version
from penstock.schema import simple_type

CLASS = b"penstock.class"
"""Metadata of a stream's schema: the JSON Schema of the class, as it was when this version was declared."""
TIME = b"penstock.time"
"""Metadata of a stream's schema: the field that was `time=`, empty where there was none."""
WAY_OUT = (
    "give new fields a default (field: int = 0) and keep those of old ones; give a field of another type another "
    "name; or declare another stream for the new class"
)


@dataclass(frozen=True)
class Judgement:
    """What a class would do to a stream. Refusals stop the start; warnings name producers that may be rejected."""

    refused: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def versioned(declared: StreamDef) -> pa.Schema:
    """The schema under which a declared stream is stored from now on."""
    shape = msgspec.json.encode(_without_prose(declared.events.json_schema()))
    return declared.stored.with_metadata({CLASS: shape, TIME: (declared.time or "").encode()})


def class_of(schema: pa.Schema) -> dict[str, Any] | None:
    """The JSON Schema of the class that a version was made for; None where there was none."""
    shape = (schema.metadata or {}).get(CLASS)
    return None if shape is None else msgspec.json.decode(shape)


def judged(declared: StreamDef, versions: Sequence[Version]) -> Judgement:
    """The class against every version that the stream still holds events of, and against the newest."""
    new = declared.stored
    refused: list[str] = []
    for version in versions:
        if version.held:
            refused += changes_refused(version.schema, new)
            refused += [*_identity_refused(declared, version.schema), *_time_refused(declared, version.schema)]
    warnings = _warnings(declared, versions[-1].schema) if versions else []
    return Judgement(tuple(dict.fromkeys(refused)), tuple(warnings))


def key_refused(stored: Stream, key: tuple[str, ...]) -> list[str]:
    """The key of a table, which is none for a stream, against that of the stream which holds its rows."""
    if stored.compact_by == key:
        return []
    was, now = (", ".join(names) or "none" for names in (stored.compact_by, key))
    return [f"its key was {was} and would be {now}"]


def _identity_refused(declared: StreamDef, old: pa.Schema) -> list[str]:
    """Ids and keys are texts: 1 and 1.0 are two events, and may go to two partitions."""
    problems = []
    for role, names in (("id", declared.id), ("key", declared.key)):
        for name in names:
            index = old.get_field_index(name)
            after = declared.stored.field(name).type if name in declared.stored.names else None
            if index >= 0 and after is not None and not old.field(index).type.equals(after):
                before = simple_type(old.field(index).type)
                problems.append(f"'{name}' is the {role} and was {before}: as {simple_type(after)} it would be another")
    return problems


def _time_refused(declared: StreamDef, old: pa.Schema) -> list[str]:
    """An event keeps the time that it was stored with: windows would hold two kinds, and new ones might be late."""
    before = (old.metadata or {}).get(TIME)
    if before is None or before.decode() == (declared.time or ""):
        return []
    was, now = (f"'{name}'" if name else "the time of arrival" for name in (before.decode(), declared.time))
    return [f"its time was {was} and would be {now}, and what is stored keeps the time that it was stored with"]


def _warnings(declared: StreamDef, old: pa.Schema) -> list[str]:
    warnings: list[str] = []
    before, after = class_of(old), class_of(versioned(declared))
    if before is not None and after is not None:
        warnings += narrowed(before, after)
    gone = removed_fields(old, declared.stored)
    if gone and declared.unknown == "reject":
        named = ", ".join(f"'{name}'" for name in gone)
        warnings.append(f"{named}: removed, and the stream rejects what is not declared")
    return warnings


def _without_prose(spec: Any) -> Any:
    """Without descriptions: other words are no other version."""
    if isinstance(spec, list):
        return [_without_prose(item) for item in spec]
    if not isinstance(spec, dict):
        return spec
    kept = {key: value for key, value in spec.items() if key != "description"}
    for key, value in kept.items():
        named = key in ("properties", "$defs")  # here keys are names, and a field may be called description
        kept[key] = {n: _without_prose(v) for n, v in value.items()} if named else _without_prose(value)
    return kept
