"""A key as Python has it, as the parameter `key` of a request."""

from __future__ import annotations

import re
from typing import Any

from penstock.client.rows import ViewFacts
from penstock.errors import BadQueryError
from penstock.protocol import encode, wire

_STRUCT = re.compile(r"struct<(.*)>")


def key_parameter(key: Any, facts: ViewFacts | None) -> str:
    """A value as text; a tuple in the order of the key's columns, or a dict of them (`facts` names them), as JSON.

    >>> key_parameter("jazz", None)
    'jazz'
    """
    if not isinstance(key, dict | tuple):
        return str(key).lower() if isinstance(key, bool) else str(wire(key))
    assert facts is not None
    types = dict(facts.columns)
    named = _named(key, facts)
    if len(named) == 1 and not types.get(facts.key[0], "").startswith("struct"):
        return key_parameter(named[facts.key[0]], None)
    return encode(wire({name: _thawed(value, types.get(name, "")) for name, value in named.items()})).decode()


def _named(key: dict[str, Any] | tuple[Any, ...], facts: ViewFacts) -> dict[str, Any]:
    """By the names of the key's columns. A struct alone may be meant by its fields."""
    alone = len(facts.key) == 1
    if isinstance(key, dict):
        named = {facts.key[0]: key} if alone and facts.key[0] not in key else key
    else:
        whole = alone and dict(facts.columns).get(facts.key[0], "").startswith("struct")
        named = dict(zip(facts.key, (key,) if whole else key, strict=False))
    if set(named) != set(facts.key) or (isinstance(key, tuple) and not alone and len(key) != len(facts.key)):
        raise BadQueryError(
            f"the key of '{facts.name}' is {', '.join(facts.key)}", hint="give a value for each of them"
        )
    return named


def _thawed(value: Any, kind: str) -> Any:
    """A struct as an object again: a live copy has it as a tuple, since that can be hashed."""
    match = _STRUCT.fullmatch(kind)
    if match is None or not isinstance(value, tuple):
        return value
    names = [name for name, _ in _fields(match[1])]
    kinds = [inner for _, inner in _fields(match[1])]
    return {name: _thawed(item, inner) for name, item, inner in zip(names, value, kinds, strict=True)}


def _fields(text: str) -> list[tuple[str, str]]:
    """`a:int,b:struct<c:int,d:int>` in parts."""
    parts, depth, start = [], 0, 0
    for index, letter in enumerate(text):
        depth += (letter in "<(") - (letter in ">)")
        if letter == "," and not depth:
            parts.append(text[start:index])
            start = index + 1
    parts.append(text[start:])
    return [(name, kind) for name, _, kind in (part.partition(":") for part in parts)]
