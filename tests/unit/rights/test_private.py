"""Personal fields are what their type says, everywhere but where they would be shown."""

import datetime as dt
from decimal import Decimal
from typing import Annotated, Literal

import msgspec
import pyarrow as pa
import pytest

from penstock import App, Event, Private, Struct
from penstock.collect.judging.incoming_events import ArrivedEvents
from penstock.collect.judging.judge import Judge
from penstock.config import Limits
from penstock.private import MASK, is_private, mask, private_fields
from penstock.schema import EventSchema, simple_type

SECRET = "ann@example.org"


class Person(Struct):
    phone: Private[str]
    city: str = ""


class Order(Event):
    amount: int
    email: Private[str | None] = None
    people: list[Person] = []
    best: Person | None = None
    tags: dict[str, Private[str]] = {}
    born: Private[dt.date] | None = None
    card: Private[Annotated[Decimal, msgspec.Meta(extra={"precision": 10, "scale": 2})]] | None = None
    mood: Private[Literal["good", "bad"]] = "good"
    home: Private[Person] | None = None


class Plain(Event):
    amount: int


def test_a_private_field_has_the_type_of_what_it_holds():
    class Open(Event):
        email: str | None = None
        born: dt.date | None = None
        card: Annotated[Decimal, msgspec.Meta(extra={"precision": 10, "scale": 2})] | None = None

    private, plain = EventSchema(Order).arrow, EventSchema(Open).arrow
    for name in plain.names:
        assert private.field(name).equals(plain.field(name), check_metadata=True), name
    assert simple_type(private.field("people").type) == "array<struct<phone:string,city:string>>"
    batch = EventSchema(Order).columns([msgspec.json.decode(b'{"amount":1,"email":"a","card":"1.5"}', type=Order)])
    assert batch[1].to_pylist() == ["a"]
    assert batch[6].type == pa.decimal128(10, 2)


def test_a_field_of_another_name_in_json_is_masked_there_and_named_by_its_column():
    class Renamed(Event, rename="camel"):
        mail_box: Private[str]
        home_town: str = ""

    assert private_fields(Renamed) == ("mail_box",)
    assert mask({"mailBox": SECRET, "homeTown": "x"}, Renamed) == {"mailBox": MASK, "homeTown": "x"}


def test_private_fields_are_named_by_their_paths_and_marked_in_the_json_schema():
    named = ("email", "people[].phone", "best.phone", "tags{}", "born", "card", "mood", "home")
    assert private_fields(Order) == EventSchema(Order).private == named
    assert private_fields(Plain) == ()
    schema = EventSchema(Order).json_schema()["$defs"]
    assert schema["Order"]["properties"]["email"]["x-private"] is True
    assert schema["Person"]["properties"]["phone"]["x-private"] is True
    assert "x-private" not in schema["Person"]["properties"]["city"]


def test_masking_leaves_what_may_be_shown():
    event = {
        "amount": 5,
        "email": SECRET,
        "people": [{"phone": SECRET, "city": "Bonn"}, {"city": "Kiel"}],
        "best": {"phone": SECRET, "city": "Ulm"},
        "tags": {"a": SECRET},
        "home": {"phone": SECRET, "city": SECRET},
        "born": None,
    }
    assert mask(event, Order) == {
        "amount": 5,
        "email": MASK,
        "people": [{"phone": MASK, "city": "Bonn"}, {"city": "Kiel"}],
        "best": {"phone": MASK, "city": "Ulm"},
        "tags": {"a": MASK},
        "home": MASK,
        "born": None,
    }
    assert event["email"] == SECRET, "what is masked is a copy"
    assert msgspec.json.decode(mask(msgspec.json.encode([event, event]), Order))[1] == mask(event, Order)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"amount": 1, "emial": "ann@example.org"}',
        b'{"amount": 1, "people": "ann@example.org"}',
        b'{"amount": 1, "people": {"phone": "ann@example.org"}}',
        b'{"amount": 1, "best": ["ann@example.org"]}',
        b'{"amount": 1, "email": "ann@example.org"',
        b"amount,email\n1,ann@example.org",
        b'"ann@example.org"',
        b'[["ann@example.org"], {"best": {"nick": "ann@example.org"}}]',
        b"\xff ann@example.org",
    ],
)
def test_what_does_not_fit_its_class_is_masked_rather_than_shown(raw):
    assert SECRET.encode() not in mask(raw, Order)
    assert mask(raw, Plain) == raw


@pytest.mark.parametrize(
    ("path", "private"),
    [
        ("email", True),
        ("amount", False),
        ("people[3].phone", True),
        ("people[...].phone", True),
        ("people[0].city", False),
        ("people", True),
        ("best.phone", True),
        ("tags[...]", True),
        ("home.city", True),
        ("nothing.here", False),
    ],
)
def test_paths_of_error_messages_are_recognised(path, private):
    assert is_private(Order, path) is private


REJECTED = {
    '{"amount": "x"}': "'amount': expected int, found str",
    '{"amount": 1, "email": 5}': "'email': expected str | null, found int",
    '{"amount": 1, "mood": "ann@example.org"}': "'mood': expected one of bad, good, found ***",
    '{"amount": 1, "best": {"phone": ["ann@example.org"]}}': "'best.phone': expected str, found array",
    '{"amount": 1, "born": "ann@example.org"}': "'born': expected a date (2024-05-01), found ***",
    '{"amount": 1, "card": "12345678901234567890.5"}': "'card': expected what fits decimal(10,2), found ***",
    '{"amount": 99999999999999999999, "email": "ann@example.org"}': "'amount': expected what fits bigint, found 9999",
    '{"email": "ann@example.org"}': "'amount': expected a value, found nothing",
}


@pytest.mark.parametrize("raw", REJECTED)
def test_a_rejection_says_what_is_wrong_and_not_what_is_private(raw):
    app = App("shop")
    judge = Judge(app.stream("orders", Order), Limits())
    decoded = judge.decode(raw.encode(), "json") or judge.decode_apart(raw.encode(), "json")
    faults = [rejection.detail for rejection in decoded.rejections]
    if not faults:
        assert judge.build(ArrivedEvents(decoded.events, [0])) is None
        faults = [why.detail for _, why in judge.build_apart(ArrivedEvents(decoded.events, [0])).faults]
    (detail,) = faults
    assert detail.startswith(REJECTED[raw])
    assert SECRET not in detail
    assert "1234567890" not in detail


def test_a_class_is_looked_at_once_however_much_is_masked(monkeypatch):
    class Looked(Event):
        email: Private[str]

    looked, usual = [], msgspec.inspect.type_info
    monkeypatch.setattr(msgspec.inspect, "type_info", lambda kind: looked.append(kind) or usual(kind))
    for _ in range(3):
        assert mask({"email": SECRET}, Looked) == {"email": MASK}
    assert looked == [Looked]
