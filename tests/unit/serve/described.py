"""Compares what an edge really says with a document that describes it, more strictly than a client should."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker

Spec = dict[str, Any]


def strict(node: Any) -> Any:
    """The same document, in which an object has no other fields than the described ones."""
    if isinstance(node, list):
        return [strict(item) for item in node]
    if not isinstance(node, dict):
        return node
    made = {name: strict(item) for name, item in node.items()}
    if node.get("properties") and "additionalProperties" not in node and _is_object(node.get("type")):
        made["additionalProperties"] = False
    return made


def _is_object(kind: Any) -> bool:
    return kind == "object" or (isinstance(kind, list) and "object" in kind)


def misfits(schema: Spec, value: Any) -> list[str]:
    """What is wrong with a value that this schema, which refers to no other, describes."""
    return [_said(error) for error in Draft202012Validator(strict(schema)).iter_errors(value)]


class Document:
    """An OpenAPI or AsyncAPI document whose schemas are looked up by where they stand."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self._strict = strict(spec)

    def problems(self, place: Sequence[str], value: Any) -> list[str]:
        """What is wrong with a value that the schema at this place describes."""
        pointer = "/".join(part.replace("~", "~0").replace("/", "~1") for part in place)
        validator = Draft202012Validator(self._strict | {"$ref": f"#/{pointer}"}, format_checker=FormatChecker())
        return [f"{pointer}: {_said(error)}" for error in validator.iter_errors(value)]

    def references(self) -> Iterator[str]:
        yield from _references(self.spec)

    def at(self, pointer: str) -> Any:
        """What a reference leads to; raises `KeyError`."""
        found: Any = self.spec
        for part in pointer.removeprefix("#/").split("/"):
            found = found[part.replace("~1", "/").replace("~0", "~")]
        return found


def _said(error: Any) -> str:
    inner = "; ".join(_said(below) for below in error.context or ())
    return f"{error.json_path}: {error.message[:300]}" + (f" ({inner})" if inner else "")


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for item in node.values():
            yield from _references(item)
    elif isinstance(node, list):
        for item in node:
            yield from _references(item)
