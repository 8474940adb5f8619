"""A class of events that cannot be columns is refused where it is declared, and says what to write instead."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated

import msgspec
import pytest

from penstock import Event, Struct
from penstock.errors import DeclarationError
from penstock.schema import EventSchema


class Branch(Struct):
    name: str
    branches: list[Branch] = []


class Tree(Event):
    root: Branch


class Cased(Event):
    order_id: int
    Order_ID: int


class Mixed(Struct):
    a: int
    A: int


class Inside(Event):
    parts: list[Mixed]


class Precise(Event):
    amount: Annotated[Decimal, msgspec.Meta(extra={"precision": 39, "scale": 2})]


class Scaled(Event):
    amount: Annotated[Decimal, msgspec.Meta(extra={"precision": 5, "scale": 9})]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Tree, "'Tree' holds a Struct that holds itself"),
        (Cased, "'Cased.order_id': another field has the same name but for its case"),
        (Inside, "'Inside.parts[].a': another field has the same name"),
        (Precise, "'Precise.amount': decimal(39,2) cannot be a column"),
        (Scaled, "'Scaled.amount': decimal(5,9) cannot be a column"),
    ],
)
def test_what_cannot_be_a_column_is_refused(kind: type[Event], said: str) -> None:
    with pytest.raises(DeclarationError) as refused:
        EventSchema(kind)
    assert refused.value.message.startswith(said)
    assert refused.value.hint


class Shelf(Struct):
    width: int = "wide"  # type: ignore[assignment]


class Room(Event):
    shelves: list[Shelf] = []


def test_a_default_that_does_not_fit_is_refused_wherever_it_stands() -> None:
    with pytest.raises(DeclarationError) as refused:
        EventSchema(Room)
    assert "'wide', its default: Expected `int`" in refused.value.message
