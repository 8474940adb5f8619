from __future__ import annotations

import datetime as dt
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from running_edge import running

from penstock import App, Event, Struct


class Place(Struct):
    city: str
    at: dt.datetime | None = None


class Reading(Event):
    sensor: str
    value: float
    price: Decimal | None = None
    at: dt.datetime | None = None
    place: Place | None = None
    tags: set[str] = set()
    more: dict[str, int] = {}
    unit: str = "C"


class Widened(Reading):
    quality: int = 5
    note: str | None = None


def app(kind: Any = Reading, **options: Any) -> App:
    made = App("readings")
    made.stream("readings", kind, id="fingerprint", **options)
    return made


SAME = [
    b'{"sensor": "a", "value": 1, "price": "2.5", "at": "2024-05-01T12:00:00+02:00", "tags": ["x", "y", "z"]}',
    b'{"tags":["z","y","x"], "at":"2024-05-01T10:00:00Z", "price":"2.50", "value":1.0, "sensor":"a", "unit":"C"}',
    b'{"sensor":"a","value":1,"price":2.5,"at":"2024-05-01T10:00:00Z","tags":["y","z","x"],"place":null}',
]


async def test_the_same_content_is_taken_once_however_it_is_written(tmp_path: Path) -> None:
    async with running(app(), tmp_path) as edge:
        for body in SAME:
            assert (await edge.post("readings", body)).status == 200
        assert len(edge.events("readings")) == 1
        assert len(edge.events("readings")[0]["_id"]) == 32


@pytest.mark.parametrize(
    "body",
    [
        b'{"sensor": "b", "value": 1}',
        b'{"sensor": "a", "value": 1.5}',
        b'{"sensor": "a", "value": 1, "unit": "F"}',
        b'{"sensor": "a", "value": 1, "more": {"x": 1}}',
        b'{"sensor": "a", "value": 1, "tags": ["x"]}',
        b'{"sensor": "a", "value": 1, "place": {"city": "x"}}',
        b'{"sensor": "a", "value": 1, "place": {"city": "x", "at": "2024-05-01T10:00:00Z"}}',
    ],
)
async def test_other_content_is_another_event(tmp_path: Path, body: bytes) -> None:
    async with running(app(), tmp_path) as edge:
        for one in (b'{"sensor": "a", "value": 1}', body, body):
            await edge.post("readings", one)
        assert len(edge.events("readings")) == 2


async def test_the_order_of_a_map_makes_no_difference(tmp_path: Path) -> None:
    async with running(app(), tmp_path) as edge:
        for more in (b'{"x": 1, "y": 2}', b'{"y": 2, "x": 1}'):
            await edge.post("readings", b'{"sensor": "a", "value": 1, "more": %b}' % more)
        assert len(edge.events("readings")) == 1


async def test_a_class_that_got_fields_with_defaults_knows_its_old_events(tmp_path: Path) -> None:
    async with running(app(), tmp_path) as edge:
        await edge.post("readings", SAME[0])
    async with running(app(Widened), tmp_path) as edge:
        await edge.post("readings", SAME[1])
        assert len(edge.events("readings")) == 1


async def test_undeclared_fields_count_when_they_are_kept(tmp_path: Path) -> None:
    async with running(app(unknown="keep"), tmp_path) as edge:
        for extra in (b"1", b"2", b"2"):
            await edge.post("readings", b'{"sensor": "a", "value": 1, "extra": %b}' % extra)
        assert len(edge.events("readings")) == 2


def test_a_fingerprint_is_the_same_in_every_process() -> None:
    program = (
        "import sys; sys.path.insert(0, 'tests/unit/collect'); import test_event_ids as t\n"
        "from penstock.collect.judging.event_ids import content_hashes\n"
        "import msgspec\n"
        "s = t.app().declared().streams[0]; e = [msgspec.json.decode(b, type=t.Reading) for b in t.SAME]\n"
        "print(content_hashes(s)(e, s.events.columns(e)).to_pylist())"
    )
    root = Path(__file__).parents[3]
    said = {
        subprocess.run(
            [sys.executable, "-c", program], cwd=root, env={"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1
    assert len(set(eval(said.pop()))) == 1


async def test_a_field_called_fingerprint_is_the_id_itself(tmp_path: Path) -> None:
    class Named(Event):
        fingerprint: str
        n: int

    async with running(app(Named), tmp_path) as edge:
        for n in (1, 2):
            await edge.post("readings", b'{"fingerprint": "a", "n": %d}' % n)
        assert [event["n"] for event in edge.events("readings")] == [1]
