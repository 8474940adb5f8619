"""Says why an event was not taken: a stable code for programs; for people the field, what it should be, what it is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import msgspec.inspect as mi
import pyarrow as pa

from penstock.private import MASK, is_private

Reason = Literal[
    "malformed",
    "wrong_type",
    "missing_field",
    "unknown_field",
    "too_large",
    "too_deep",
    "out_of_range",
    "from_the_future",
    "bad_utf8",
    "bad_cloudevent",
    "bad_body",
    "map_failed",
]
"""`bad_body` is the reason of a body that cannot be read at all, `map_failed` of a pull's `map`."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """One event that was not taken. `raw` is what the sender sent, for the stream `dead`."""

    index: int
    reason: Reason
    detail: str
    raw: bytes

    def body(self) -> dict[str, Any]:
        """As it appears in replies."""
        return {"index": self.index, "reason": self.reason, "detail": self.detail}


class Refused(Exception):
    """Raised while one event is judged; it never leaves the stage."""

    def __init__(
        self, reason: Reason, detail: str, *, path: str = "", expected: str | None = None, found: str | None = None
    ) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.path = path
        """Of the field: `group.topics[2].name`; empty for the event itself."""
        self.expected, self.found = expected, found
        """As far as the decoder tells; `blame.py` looks for the rest in the event."""


_NAMED = re.compile(r"'([^']*)':")
_ONLY_TYPES = re.compile(r"[^:]*: expected [^,]*, found (?:str|int|float|bool|null|array|object|bytes)")
_AT = re.compile(r"(?P<what>.*?)(?: - at (?:the key in )?`\$?\.?(?P<path>.*)`)?", re.DOTALL)
_GOT = re.compile(r"Expected `(.+)`, got `(.+)`")
_MISSING = re.compile(r"Object missing required field `(.+)`")
_UNKNOWN = re.compile(r"Object contains unknown field `(.+)`")
_BOUND = re.compile(r"Expected `(.+)` (.+)")
_INVALID = re.compile(r"Invalid (.+)")


def refused(error: Exception) -> Refused:
    """What an error of decoding or of building columns says of the event that caused it.

    >>> refused(msgspec.ValidationError("Expected `int`, got `str` - at `$.group.id`")).detail
    "'group.id': expected int, found str"
    """
    if isinstance(error, Refused):
        return error
    if isinstance(error, RecursionError):
        return Refused("too_deep", "nested deeper than can be read")
    if isinstance(error, UnicodeError):
        return Refused("bad_utf8", str(error))
    if isinstance(error, msgspec.ValidationError):
        return _invalid(str(error))
    if isinstance(error, msgspec.DecodeError):
        return Refused("malformed", str(error))
    if isinstance(error, pa.ArrowInvalid | OverflowError):
        return Refused("out_of_range", str(error))
    return Refused("wrong_type", f"{type(error).__name__}: {error}")


def concealed(why: Refused, kind: type[msgspec.Struct]) -> Refused:
    """The same without the value, where the field is private, or where nothing says which field it is about."""
    if why.reason not in ("wrong_type", "out_of_range", "from_the_future") or _ONLY_TYPES.fullmatch(why.detail):
        return why
    named = _NAMED.match(why.detail)
    if named is None:
        return Refused(why.reason, "the event: does not fit its columns")
    if not is_private(kind, named[1]):
        return why
    expected = why.detail.partition(", found")[0] if ": expected " in why.detail else f"'{named[1]}': does not fit"
    return Refused(why.reason, f"{expected}, found {MASK}")


_EXPECTED = {
    "RFC3339 encoded datetime": "an RFC 3339 time",
    "RFC3339 encoded date": "a date (2024-05-01)",
    "RFC3339 encoded time": "an RFC 3339 time",
    "base64 encoded string": "base64",
    "decimal string": "a decimal number",
    "UUID": "a UUID",
}


def _invalid(text: str) -> Refused:
    match = _AT.fullmatch(text)
    what, path = (match["what"], match["path"] or "") if match else (text, "")
    if match := _GOT.fullmatch(what):
        return _refused("wrong_type", path, match[1], match[2])
    if match := _MISSING.fullmatch(what):
        return _refused("missing_field", _path(path, match[1]), "a value", "nothing")
    if match := _UNKNOWN.fullmatch(what):
        return Refused("unknown_field", unknown_detail([_path(path, match[1])]), path=_path(path, match[1]))
    if what.endswith("out of range"):
        return _refused("out_of_range", path, "a number that fits")
    if match := _BOUND.fullmatch(what):
        return _refused("out_of_range", path, f"{match[1]} {match[2]}")
    if what.startswith("Invalid enum value"):
        return _refused("wrong_type", path, "one of its values")
    if match := _INVALID.fullmatch(what):
        return _refused("wrong_type", path, _EXPECTED.get(match[1], f"a valid {match[1]}"))
    return Refused("wrong_type", f"{field_name(path)}: {short(what)}", path=path)


def _refused(reason: Reason, path: str, expected: str, found: str | None = None) -> Refused:
    detail = f"{field_name(path)}: expected {expected}" + (f", found {found}" if found else "")
    return Refused(reason, detail, path=path, expected=expected, found=found)


def short(text: str) -> str:
    """What was found, never more of it than helps."""
    return text if len(text) <= 80 else f"{text[:77]}..."


def unknown_detail(paths: list[str]) -> str:
    """Which fields are not declared; a hundred of them help nobody."""
    more = f" and {len(paths) - 5} more" if len(paths) > 5 else ""
    return f"{', '.join(map(field_name, paths[:5]))}{more}: not declared"


def _path(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def field_name(path: str) -> str:
    """A field as reasons name it."""
    return f"'{path}'" if path else "the event"


# What the decoder does not say. It says where something is wrong, but not always what it expected (the values of an
# enum) or what it found (a number out of bounds). Only rejected events pay for looking into the event.

_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
_NOWHERE = object()


def completed(why: Refused, kind: type[msgspec.Struct], event: Any, *, texts: bool = False) -> Refused:
    """The same reason, completed. `event` is what was sent, in JSON's types, or its JSON; `texts`: all
    of it is text, so that what was found is told instead of its type."""
    if why.expected is None or (why.found is not None and not texts):
        return why
    value = _value_at(_read(event) if isinstance(event, bytes) else event, why.path)
    expected = _values_at(kind, why.path) if why.expected == "one of its values" else why.expected
    found = why.found or "something else" if value is _NOWHERE else short(_text(value))
    return Refused(why.reason, f"{field_name(why.path)}: expected {expected}, found {found}", path=why.path)


def _read(raw: bytes) -> Any:
    """Python's own reader takes numbers of any size."""
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return None


def _text(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return repr(value) if isinstance(value, str) else json.dumps(value)


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
