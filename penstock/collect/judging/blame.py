"""Completes the reason of a rejection from the event itself: what the class expects of a field, and what is there.

The decoder says where something is wrong, but not always what it expected (the values of an enum) or what it found (a
number out of bounds). Only rejected events pay for it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import msgspec.inspect as mi

from penstock.collect.judging.rejection import Refused, field_name, short

_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
_NOWHERE = object()


def completed(why: Refused, kind: type[msgspec.Struct], event: Any, *, texts: bool = False) -> Refused:
    """The same reason with what is missing in it. `event` is what was sent, in JSON's types, or its JSON; `texts`: all
    of it is text, so that what was found is told instead of its type."""
    if why.expected is None or (why.found is not None and not texts):
        return why
    found = _value_at(_read(event) if isinstance(event, bytes) else event, why.path)
    expected = _values_at(kind, why.path) if why.expected == "one of its values" else why.expected
    told = why.found or "something else" if found is _NOWHERE else short(_text(found))
    return Refused(why.reason, f"{field_name(why.path)}: expected {expected}, found {told}", path=why.path)


def _read(raw: bytes) -> Any:
    """Python's own reader takes numbers of any size."""
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return None


def _text(found: Any) -> str:
    return str(found) if isinstance(found, int | float) and not isinstance(found, bool) else _json(found)


def _json(found: Any) -> str:
    return repr(found) if isinstance(found, str) else json.dumps(found)


def _steps(path: str) -> Iterator[str | int]:
    for name, index in _STEP.findall(path):
        yield name if name else int(index)


def _value_at(event: Any, path: str) -> Any:
    at = event
    for step in _steps(path):
        try:
            at = at[step]
        except (KeyError, IndexError, TypeError):
            return _NOWHERE
    return at


def _values_at(kind: type[msgspec.Struct], path: str) -> str:
    info = _type_at(mi.type_info(kind), list(_steps(path)))
    if isinstance(info, mi.EnumType):
        return "one of " + ", ".join(str(member.value) for member in info.cls)
    return "one of " + ", ".join(map(str, info.values)) if isinstance(info, mi.LiteralType) else "one of its values"


def _type_at(info: mi.Type | None, steps: list[str | int]) -> mi.Type | None:
    if isinstance(info, mi.Metadata):
        return _type_at(info.type, steps)
    if isinstance(info, mi.UnionType):
        return _type_at(next((each for each in info.types if not isinstance(each, mi.NoneType)), None), steps)
    if not steps:
        return info
    if isinstance(info, mi.StructType):
        inner = next((field.type for field in info.fields if field.encode_name == steps[0]), None)
        return _type_at(inner, steps[1:])
    if isinstance(info, mi.CollectionType):
        return _type_at(info.item_type, steps[1:])
    return _type_at(info.value_type, steps[1:]) if isinstance(info, mi.DictType) else None
