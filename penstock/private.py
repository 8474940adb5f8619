"""Personal fields are declared in the event class, so that everything that shows an event can mask them.

`Private[str]` is checked, stored and computed with as a `str`. What differs is where it is shown: masked in logs, in
the details of rejections, in listings of dead letters and on the page. Whoever may read a stream or view sees it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any, TypeVar, overload

import msgspec
import msgspec.inspect as mi

T = TypeVar("T")

Private = Annotated[T, msgspec.Meta(extra={"private": True}, extra_json_schema={"x-private": True})]
"""A personal field: `email: Private[str]`."""

MASK = "***"
_LIST, _MAP = "[]", "{}"
_STEP = re.compile(r"\[[^\]]*\]|[^.\[\]]+")

Tree = dict[str, Any]
"""By field (or `[]`, `{}` for what a list or map holds): True for private, a tree, or None for what may be shown."""


@overload
def mask(value: bytes, kind: type[msgspec.Struct]) -> bytes: ...
@overload
def mask(value: Mapping[str, Any], kind: type[msgspec.Struct]) -> dict[str, Any]: ...
def mask(value: Any, kind: type[msgspec.Struct]) -> Any:
    """An event of this class, as decoded JSON or as raw bytes, in a form that may be shown to anybody.

    Fields that the class does not declare are masked too: a misspelt name is how personal data gets into `dead`. Bytes
    that are not JSON are masked as a whole. A class without private fields changes nothing.

    >>> class Order(msgspec.Struct):
    ...     order_id: int
    ...     email: Annotated[str, msgspec.Meta(extra={"private": True})]
    >>> mask({"order_id": 1, "email": "ann@example.org"}, Order)
    {'order_id': 1, 'email': '***'}
    """
    tree = _tree(kind)
    if not _holds_private(tree):
        return value
    return _masked_bytes(value, tree) if isinstance(value, bytes) else _masked(value, tree)


def private_fields(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """The paths of the private fields of a class, by the names of its columns: `email`, `contacts[].email`."""
    return tuple(_private(_tree(kind, in_json=False)))


def is_private(kind: type[msgspec.Struct], path: str) -> bool:
    """Whether the value at a path of an error message (`person.phone`, `contacts[3].email`) holds anything private."""
    node: Any = _tree(kind)
    for step in _STEP.findall(path):
        if not isinstance(node, dict):
            break
        node = node.get(_LIST, node.get(_MAP)) if step.startswith("[") else node.get(step, node.get(_MAP))
    return _holds_private(node)


@cache
def _tree(kind: type[msgspec.Struct], *, in_json: bool = True) -> Tree:
    """By the names that fields have in JSON, or by those of their columns: `rename=` makes them differ."""
    node = _node(mi.type_info(kind), in_json)
    return node if isinstance(node, dict) else {}


def _node(info: mi.Type, in_json: bool) -> Any:
    if isinstance(info, mi.Metadata):
        return True if (info.extra or {}).get("private") else _node(info.type, in_json)
    if isinstance(info, mi.UnionType):
        nodes = [_node(one, in_json) for one in info.types]
        return True if True in nodes else next((node for node in nodes if node), None)
    if isinstance(info, mi.StructType):
        return {f.encode_name if in_json else f.name: _node(f.type, in_json) for f in info.fields}
    if isinstance(info, mi.CollectionType):
        return {_LIST: _node(info.item_type, in_json)}
    if isinstance(info, mi.DictType):
        return {_MAP: _node(info.value_type, in_json)}
    return None


def _holds_private(node: Any) -> bool:
    return next(_private(node), None) is not None


def _private(node: Any, path: str = "") -> Iterator[str]:
    if node is True:
        yield path
    elif isinstance(node, dict):
        for name, inner in node.items():
            joined = f"{path}{name}" if name in (_LIST, _MAP) or not path else f"{path}.{name}"
            yield from _private(inner, joined)


def _masked_bytes(raw: bytes, tree: Tree) -> bytes:
    try:
        return msgspec.json.encode(_masked_event(msgspec.json.decode(raw), tree))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return MASK.encode()


def _masked_event(value: Any, tree: Tree) -> Any:
    if isinstance(value, list):
        return [_masked_event(item, tree) for item in value]
    return _masked(value, tree) if isinstance(value, dict) else MASK


def _masked(value: Any, node: Any) -> Any:
    if value is None:
        return None
    if node is None:
        return value
    if isinstance(value, Mapping) and isinstance(node, dict) and _LIST not in node:
        return {name: _masked(item, node.get(name, node.get(_MAP, True))) for name, item in value.items()}
    if isinstance(value, list) and isinstance(node, dict) and _LIST in node:
        return [_masked(item, node[_LIST]) for item in value]
    return MASK
