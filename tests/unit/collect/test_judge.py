from __future__ import annotations

import datetime as dt
import enum
import uuid
from decimal import Decimal
from typing import Annotated, Any

import msgspec
import pytest
from shop_app import Order, Place, Visit

from penstock import App, Event
from penstock.collect.judging.incoming_events import ArrivedEvents, DecodedEvents
from penstock.collect.judging.json_events import SLICE_BYTES, split
from penstock.collect.judging.judge import Judge
from penstock.config import Limits
from penstock.errors import BadBodyError, TooLargeError

NOW_US = 1_700_000_000_000_000


def judge(kind: type = Order, limits: Limits | None = None, **options: Any) -> Judge:
    return Judge(App("shop").stream("orders", kind, **options), limits or Limits())


def admitted(judge: Judge, body: bytes, form: Any = "json") -> tuple[list[dict[str, Any]], list[tuple[int, str, str]]]:
    """Rows and rejections of a body, the slow ways included."""
    decoded = judge.decode(body, form) or judge.decode_apart(body, form)
    return built(judge, decoded)


def built(judge: Judge, decoded: DecodedEvents) -> tuple[list[dict[str, Any]], list[tuple[int, str, str]]]:
    what = arrived(decoded)
    made = judge.build(what) or judge.build_apart(what)
    rejected = [(r.index, r.reason, r.detail) for r in decoded.rejections]
    rejected += [(decoded.place(row), why.reason, why.detail) for row, why in made.faults]
    assert len(rejected) + made.batch.num_rows == decoded.received
    assert made.batch.schema.equals(judge.stream.stored)
    return made.batch.to_pylist(), sorted(rejected)


def arrived(decoded: DecodedEvents, received_us: int = NOW_US) -> ArrivedEvents:
    count = len(decoded.events)
    received = [received_us] * count
    return ArrivedEvents(decoded.events, received, decoded.unknown, None, decoded.ids, decoded.times, decoded.columns)


def rejected(judge: Judge, event: bytes) -> tuple[str, str]:
    """What becomes of one bad event between two good ones, which it must not disturb."""
    good = b'{"order_id": 7}'
    rows, found = admitted(judge, good + b"\n" + event + b"\n" + good, "lines")
    assert [row["order_id"] for row in rows] == [7, 7]
    ((index, reason, detail),) = found
    assert index == 1
    return reason, detail


@pytest.mark.parametrize(
    ("event", "reason", "detail"),
    [
        (b'{"order_id": 1', "malformed", "Input data was truncated"),
        (b'{"order_id": NaN}', "malformed", "JSON is malformed: invalid character (byte 13)"),
        (b"nope", "malformed", "JSON is malformed: invalid character"),
        (b'{"order_id": "1"}', "wrong_type", "'order_id': expected int, found str"),
        (b'{"order_id": 1.5}', "wrong_type", "'order_id': expected int, found float"),
        (b"[1]", "wrong_type", "the event: expected object, found array"),
        (b"null", "wrong_type", "the event: expected object, found null"),
        (b'{"order_id": 1, "price": "x"}', "wrong_type", "'price': expected a decimal number, found 'x'"),
        (b'{"order_id": 1, "place": {"city": 5}}', "wrong_type", "'place.city': expected str, found int"),
        (b'{"order_id": 1, "tags": ["a", 5]}', "wrong_type", "'tags[1]': expected str, found int"),
        (b'{"order_id": 1, "place": {}}', "missing_field", "'place.city': expected a value, found nothing"),
        (b"{}", "missing_field", "'order_id': expected a value, found nothing"),
        (b'{"order_id": 1, "country": "\xff"}', "bad_utf8", "invalid start byte"),
        (b'{"order_id": 1, "x": "\xff"}', "bad_utf8", "invalid start byte"),
        (b'{"order_id": 99999999999999999999}', "out_of_range", "'order_id': expected what fits bigint, found 9999"),
        (b'{"order_id": ' + b"9" * 5000 + b"}", "out_of_range", "'order_id'"),
        (b'{"order_id": 1, "place": {"city": "", "lat": 1e999}}', "out_of_range", "'place.lat'"),
        (b'{"order_id": 1, "price": "1.1234567890123456789"}', "out_of_range", "'price': expected what fits decimal"),
        (b'{"order_id": 1, "price": "NaN"}', "out_of_range", "'price'"),
        (b'{"order_id": 1, "at": 253402300800000}', "out_of_range", "'at': expected a time in the years 0001 to 9999"),
        (b'{"order_id": 1, "at": -62135596800001}', "out_of_range", "'at'"),
        (b'{"order_id": 1, "at": 9223372036854775807}', "out_of_range", "'at'"),
        (b'{"order_id": 1, "at": 253370764800000}', "from_the_future", "found 9999-01-01T00:00:00.000Z"),
        (b'{"order_id": 1, "at": 1700000600001}', "from_the_future", "expected at most 2023-11-14T22:23:20.000Z"),
        (b'{"order_id": 1, "x": ' + b"[" * 64 + b"]" * 64 + b"}", "too_deep", "at most 64 levels"),
        (b'{"order_id": 1, "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "too_deep", "at most 64 levels"),
        (b'{"order_id": 1, "x": "' + b"x" * 300_000 + b'"}', "too_large", "expected at most 262144 bytes"),
    ],
)
def test_a_bad_event_is_rejected_alone_with_its_reason(event: bytes, reason: str, detail: str) -> None:
    found = rejected(judge(time="at", limits=Limits(event_bytes=262_144)), event)
    assert found[0] == reason
    assert detail in found[1]


@pytest.mark.parametrize("form", ["json", "lines"])
def test_the_deepest_allowed_event_is_taken_in_any_form(form: str) -> None:
    event = b'{"order_id": 1, "x": ' + b"[" * 63 + b"]" * 63 + b"}"
    body = b"[" + event + b"," + event + b"]" if form == "json" else event + b"\n" + event
    rows, found = admitted(judge(), body, form)
    assert (len(rows), found) == (2, [])


@pytest.mark.parametrize(
    ("body", "form"),
    [
        (b'{"order_id": 1}', "json"),
        (b' [{"order_id": 1}, {"order_id": 2}]', "json"),
        (b'{"order_id": 1}\n{"order_id": 2}\n', "lines"),
        (b'\n{"order_id": 1}\n\n{"order_id": 2, "country": "\xc3\xa9"}', "lines"),
        (b"\n".join([b'{"order_id": 1, "place": {"city": "a"}, "tags": ["x"]}'] * 2000), "lines"),
    ],
)
def test_good_events_are_decoded_and_built_all_at_once(body: bytes, form: Any) -> None:
    made = judge(time="at")
    decoded = made.decode(body, form)
    assert decoded is not None
    assert made.build(arrived(decoded)) is not None


def test_an_array_judges_its_events_one_by_one() -> None:
    body = b'[{"order_id": 1}, {"order_id": "x"}, {"order_id": 3}, 5]'
    rows, found = admitted(judge(), body)
    assert [row["order_id"] for row in rows] == [1, 3]
    assert [(index, reason) for index, reason, _ in found] == [(1, "wrong_type"), (3, "wrong_type")]


def test_an_array_that_is_not_json_is_still_judged_event_by_event() -> None:
    deep = b'{"order_id": 1, "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    body = (
        b'[{"order_id": 1}, {"order_id": NaN}, {"order_id": 3, "country": "\\ud800"}, ' + deep + b', {"order_id": 5}]'
    )
    rows, found = admitted(judge(), body)
    assert [row["order_id"] for row in rows] == [1, 5]
    assert [(index, reason) for index, reason, _ in found] == [(1, "malformed"), (2, "malformed"), (3, "too_deep")]


@pytest.mark.parametrize("body", [b"", b"  ", b'{"order_id": 1', b'[{"order_id": 1}', b"[" * 100_000, b"\xff", b"[1]]"])
def test_a_body_that_cannot_be_cut_into_events_is_refused_whole(body: bytes) -> None:
    made = judge()
    assert made.decode(body, "json") is None
    with pytest.raises(BadBodyError):
        made.decode_apart(body, "json")


def test_blank_lines_are_no_events() -> None:
    rows, found = admitted(judge(), b'\n  \r\n{"order_id": 1}\r\n\n{"order_id": 2}\n\n', "lines")
    assert ([row["order_id"] for row in rows], found) == ([1, 2], [])


def test_two_events_on_one_line_are_malformed() -> None:
    rows, found = admitted(judge(), b'{"order_id": 1} {"order_id": 2}\n{"order_id": 3}', "lines")
    assert [row["order_id"] for row in rows] == [3]
    assert [(index, reason) for index, reason, _ in found] == [(0, "malformed")]


@pytest.mark.parametrize("form", ["json", "lines"])
def test_no_events_are_no_rows(form: str) -> None:
    assert admitted(judge(), b"[]" if form == "json" else b"\n", form) == ([], [])


def test_too_many_events_in_one_body_are_refused() -> None:
    many = b'{"x":","}'
    assert len(split(b"[" + b",".join([many] * 200_000) + b"]", "json")) == 200_000
    with pytest.raises(TooLargeError):
        split(b"[" + b",".join([many] * 200_001) + b"]", "json")
    with pytest.raises(TooLargeError):
        split(b"1\n" * 200_001, "lines")


def test_a_body_for_another_stream_is_refused_whole_instead_of_event_by_event() -> None:
    made = judge()
    assert len(made.decode_apart(b"1\n" * 10_000, "lines").rejections) == 10_000
    with pytest.raises(BadBodyError):
        made.decode_apart(b"1\n" * 10_001, "lines")


def test_a_large_body_is_judged_in_slices_with_places_kept() -> None:
    lines = [b'{"order_id": %d, "country": "%s"}' % (n, b"x" * 100) for n in range(5000)]
    lines[4321] = b'{"order_id": "x"}'
    body = b"\n".join(lines)
    assert len(body) > 2 * SLICE_BYTES
    made = judge()
    rows, found = built(made, made.decode_apart(body, "lines"))
    assert [row["order_id"] for row in rows] == [n for n in range(5000) if n != 4321]
    assert [(index, reason) for index, reason, _ in found] == [(4321, "wrong_type")]


def test_places_and_raw_bytes_survive_two_rounds_of_judgement() -> None:
    body = b'[{"order_id": "x"}, {"order_id": 99999999999999999999}, {"order_id": 3}]'
    made = judge()
    decoded = made.decode(body, "json") or made.decode_apart(body, "json")
    fault = made.build_apart(arrived(decoded)).faults[0]
    place = decoded.place(fault[0])
    assert place == 1
    assert decoded.raw(place) == b'{"order_id": 99999999999999999999}'
    assert decoded.rejections[0].raw == b'{"order_id": "x"}'


# Undeclared fields

EXTRA = b'{"order_id": 1, "note": "x",  "place": {"city": "a", "zip": 12345678901234567890123}}'


def test_unknown_fields_are_ignored() -> None:
    rows, found = admitted(judge(), EXTRA)
    assert (rows[0]["order_id"], found) == (1, [])
    assert "_unknown" not in rows[0]


def test_unknown_fields_are_kept_as_they_stand() -> None:
    rows, found = admitted(judge(unknown="keep"), b"[" + EXTRA + b',{"order_id": 2}]')
    assert found == []
    assert rows[0]["_unknown"] == '{"note":"x","place.zip":12345678901234567890123}'
    assert rows[1]["_unknown"] is None


def test_unknown_fields_are_a_reason_to_reject() -> None:
    reason, detail = rejected(judge(unknown="reject"), EXTRA)
    assert (reason, detail) == ("unknown_field", "'note', 'place.zip': not declared")


def test_a_class_that_forbids_unknown_fields_itself_is_heard() -> None:
    class Strict(Event, forbid_unknown_fields=True):
        order_id: int

    assert rejected(judge(Strict), b'{"order_id": 1, "x": 2}') == ("unknown_field", "'x': not declared")


# System columns


def test_an_event_without_a_time_happened_when_it_came() -> None:
    rows, _ = admitted(judge(time="at"), b'[{"order_id": 1}, {"order_id": 2, "at": 1500}]')
    came = dt.datetime.fromtimestamp(NOW_US / 1e6, dt.UTC)
    assert [row["_time"] for row in rows] == [came, dt.datetime(1970, 1, 1, 0, 0, 1, 500_000, dt.UTC)]
    assert [row["_received"] for row in rows] == [came, came]


def test_a_datetime_with_an_offset_is_its_moment() -> None:
    rows, found = admitted(
        judge(Visit, time="when"),
        b'[{"visit": "a", "when": "2023-01-01T02:00:00+02:00"}, {"visit": "b", "when": "0001-01-01T00:00:00+05:00"},'
        b'{"visit": "c", "when": "2023-01-01T00:00:00"}]',
    )
    assert [row["_time"] for row in rows] == [dt.datetime(2023, 1, 1, tzinfo=dt.UTC)] * 2
    assert [(index, reason) for index, reason, _ in found] == [(1, "out_of_range")]


class Colour(enum.Enum):
    RED = "red"


class Everything(Event):
    order_id: int = 7
    s: str = "a,b"
    n: int | None = 5
    f: float = 1.5
    d: Decimal = Decimal("1.50")
    t: dt.datetime = dt.datetime(2023, 1, 1, tzinfo=dt.UTC)
    u: uuid.UUID = uuid.UUID(int=1)
    c: Colour = Colour.RED


@pytest.mark.parametrize(
    ("fields", "id", "key"),
    [
        ((), None, None),
        ("s", "a,b", "a,b"),
        ("n", "5", "5"),
        ("f", "1.5", "1.5"),
        ("d", '"1.5"', "1.5"),
        ("c", "red", "red"),
        ("u", str(uuid.UUID(int=1)), str(uuid.UUID(int=1))),
        (["s", "n"], '["a,b",5]', '["a,b",5]'),
        (["t", "c"], '["2023-01-01T00:00:00Z","red"]', '["2023-01-01T00:00:00Z","red"]'),
    ],
)
def test_ids_and_keys_are_texts_that_cannot_be_confused(fields: Any, id: str | None, key: str | None) -> None:
    rows, _ = admitted(judge(Everything, id=fields, key=fields), b"[{}, {}]")
    assert {(row["_id"], row["_key"]) for row in rows} == {(id, key)}


def test_an_id_that_is_null_makes_nothing_unique() -> None:
    rows, _ = admitted(judge(Everything, id="n", key="n"), b'{"n": null}')
    assert (rows[0]["_id"], rows[0]["_key"]) == (None, None)


# Classes of all kinds


class Basket(Event):
    lines: list[Place] = []
    by_name: dict[str, Place] = {}


def test_a_list_of_structs_may_be_empty() -> None:
    rows, found = admitted(judge(Basket), b"[{}, {}]")
    assert ([row["lines"] for row in rows], found) == ([[], []], [])


def test_a_constraint_of_the_class_is_a_reason() -> None:
    class Bounded(Event):
        order_id: Annotated[int, msgspec.Meta(ge=0)]

    assert rejected(judge(Bounded), b'{"order_id": -1}') == ("out_of_range", "'order_id': expected int >= 0, found -1")


@pytest.mark.parametrize("error", [ValueError("no"), KeyError("no"), RecursionError("no")])
def test_a_class_that_raises_rejects_the_event_and_nothing_else(error: Exception) -> None:
    class Moody(Event):
        order_id: int

        def __post_init__(self) -> None:
            if self.order_id == 13:
                raise error

    reason, _ = rejected(judge(Moody), b'{"order_id": 13}')
    assert reason in ("wrong_type", "too_deep")


@pytest.mark.parametrize(
    "body",
    [
        b'\n{"order_id": 1}{"order_id": 2}',
        b'{"order_id": 1} {"order_id": 2}\n\n{"order_id": 3}',
        b'{"order_id": 1}{"order_id": 2}\r\n\r\n',
        b'{"order_id": 1}{"order_id":\n2}',
        b'{"order_id": 1}{"order_id": 2, "place":\n{"city": "a"}}',
        b'{"order_id": 1}{"order_id": 2, "place":\n{"city": "a"}\n}',
    ],
)
def test_an_empty_or_a_broken_line_does_not_make_up_for_two_events_in_one(body: bytes) -> None:
    one = judge()
    assert one.decode(body, "lines") is None
    rows, rejections = admitted(one, body, "lines")
    lines = [line for line in body.split(b"\n") if line.strip()]
    assert [index for index, _, _ in rejections] == [n for n in range(len(lines)) if n != 1 or b" 3" not in body]
    assert [row["order_id"] for row in rows] == [3] * (b" 3" in body)


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\n\n", b" \n "])
def test_lines_are_decoded_at_once_however_they_end(end: bytes) -> None:
    body = end.join(b'{"order_id": %d}' % n for n in range(3))
    for whole in (body, body + end, end + body):
        decoded = judge().decode(whole, "lines")
        assert decoded is not None
        assert [event.order_id for event in decoded.events] == [0, 1, 2]
