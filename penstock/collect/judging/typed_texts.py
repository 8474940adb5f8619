"""Reads events out of texts by name, as CSV and query strings have them: the stream's class says what each text means.

A name with dots is a field inside a field (`group.country`). Numbers, booleans, times, decimals and enums are read from
their text. An empty text is a field that is not there, where the field may be left out; a required `str` is then empty.
A number is no time, as in JSON: it could be seconds or milliseconds, and msgspec would take it for seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import msgspec.inspect as mi

from penstock.collect.judging.rejection import Refused, completed

_encode = msgspec.json.Encoder(enc_hook=str).encode


class TypedTexts:
    """What the fields of one class are called in texts, and how they are read."""

    def __init__(self, kind: type[msgspec.Struct]) -> None:
        self._kind = kind
        self._leaves = dict(_leaves(mi.type_info(kind), ""))
        self._times = [name for name, leaf in self._leaves.items() if leaf.time]

    def event(self, texts: Mapping[str, str | list[str]]) -> Any:
        """Raises `msgspec.ValidationError`, which names the field."""
        self._refuse_numbers(texts)
        return msgspec.convert(self.nested(texts), self._kind, strict=False)

    def events(self, rows: Sequence[Mapping[str, str | list[str]]], *, plain: bool = False) -> list[Any]:
        """All of them, or the error of the first that cannot be read. `plain`: no text is empty, and no name has dots
        or stands for a list, so that the rows can be taken as they are."""
        for row in rows if self._times else ():
            self._refuse_numbers(row)
        given = rows if plain else [self.nested(row) for row in rows]
        return msgspec.convert(given, list[self._kind], strict=False)  # type: ignore[name-defined]

    def _refuse_numbers(self, texts: Mapping[str, str | list[str]]) -> None:
        for name in self._times:
            if _is_number(texts.get(name)):
                raise msgspec.ValidationError(f"Invalid RFC3339 encoded datetime - at `$.{name}`")

    def are_plain(self, names: Iterable[str]) -> bool:
        return not any("." in name or (name in self._leaves and self._leaves[name].many) for name in names)

    def declared(self, name: str) -> bool:
        return name in self._leaves

    def nested(self, texts: Mapping[str, str | list[str]]) -> dict[str, Any]:
        """The texts as an object; those that are not declared are left out."""
        whole: dict[str, Any] = {}
        for name, text in texts.items():
            leaf = self._leaves.get(name)
            if leaf is None or (text == "" and leaf.empty_is_missing):
                continue
            *path, last = name.split(".")
            at = whole
            for part in path:
                at = at.setdefault(part, {})
            at[last] = [text] if leaf.many and isinstance(text, str) else text
        return whole

    def blamed(self, why: Refused, texts: Mapping[str, str | list[str]]) -> Refused:
        """The reason, with the text that was found."""
        return completed(why, self._kind, self.nested(texts), texts=True)

    def raw(self, texts: Mapping[str, str | list[str]]) -> bytes:
        """As JSON, for `dead`: what can be read is typed, so that only what is wrong has to be mended."""
        whole: dict[str, Any] = {}
        for name, text in texts.items():
            *path, last = name.split(".")
            at = whole
            for part in path:
                inner = at.setdefault(part, {})
                at = inner if isinstance(inner, dict) else {}
            at[last] = self._typed(name, text)
        return _encode(whole)

    def _typed(self, name: str, text: str | list[str]) -> Any:
        leaf = self._leaves.get(name)
        if leaf is None or (text == "" and leaf.empty_is_missing):
            return text or None
        if leaf.time and _is_number(text):
            return text
        given = [text] if leaf.many and isinstance(text, str) else text
        try:
            return msgspec.to_builtins(msgspec.convert(given, leaf.kind, strict=False))
        except (msgspec.ValidationError, ValueError, OverflowError):
            return text


class _Leaf(msgspec.Struct, frozen=True):
    """A field that has a text of its own."""

    kind: Any
    many: bool
    empty_is_missing: bool
    time: bool


def _leaves(info: mi.Type, path: str, optional: bool = False) -> Iterable[tuple[str, _Leaf]]:
    """`optional`: a part of the event that may be left out as a whole, which it is when all of its texts are empty."""
    assert isinstance(info, mi.StructType)
    hints = {field.name: field for field in msgspec.structs.fields(info.cls)}
    for field in info.fields:
        name, plain, nullable = f"{path}{field.encode_name}", _plain(field.type), _nullable(field.type)
        if isinstance(plain, mi.StructType):
            yield from _leaves(plain, f"{name}.", optional or nullable or not field.required)
        else:
            many = isinstance(plain, mi.CollectionType)
            missing = optional or nullable or not field.required or not isinstance(plain, mi.StrType)
            one = _plain(plain.item_type) if isinstance(plain, mi.CollectionType) else plain
            yield name, _Leaf(hints[field.name].type, many, missing, isinstance(one, mi.DateTimeType))


def _is_number(text: str | list[str] | None) -> bool:
    """Or one of several is."""
    if not isinstance(text, str):
        return any(map(_is_number, text or ()))
    try:
        float(text)
    except ValueError:
        return False
    return True


def _plain(info: mi.Type) -> mi.Type:
    """The type itself, without bounds and without None."""
    if isinstance(info, mi.Metadata):
        return _plain(info.type)
    if isinstance(info, mi.UnionType):
        return _plain(next((kind for kind in info.types if not isinstance(kind, mi.NoneType)), info.types[0]))
    return info


def _nullable(info: mi.Type) -> bool:
    if isinstance(info, mi.Metadata):
        return _nullable(info.type)
    return isinstance(info, mi.UnionType) and info.includes_none
