from __future__ import annotations

from msgspec import Raw

from penstock import Event, Struct
from penstock.collect.judging.judge import unknown_fields


class Leaf(Struct, rename="camel"):
    leaf_name: str


class Tree(Event):
    name: str
    one: Leaf | None = None
    many: list[Leaf] = []
    named: dict[str, Leaf] = {}
    free: dict[str, int] = {}


def test_undeclared_fields_are_found_at_any_depth() -> None:
    raw = b"""{"name": "a", "x": 1, "one": {"leafName": "b", "y": [1,  2]}, "many": [{"leafName": "c"},
        {"leafName": "d", "z": null}], "named": {"k": {"leafName": "e", "w": "f"}}, "free": {"any": 1}}"""
    found = unknown_fields(Tree)(raw)
    assert found == {"x": Raw(b"1"), "one.y": Raw(b"[1,  2]"), "many[1].z": Raw(b"null"), "named.k.w": Raw(b'"f"')}


def test_fields_are_known_by_their_name_in_json() -> None:
    assert list(unknown_fields(Leaf)(b'{"leafName": "a", "leaf_name": "b"}')) == ["leaf_name"]


def test_null_where_an_object_may_be_has_no_fields() -> None:
    assert unknown_fields(Tree)(b'{"name": "a", "one": null}') == {}
