"""Bodies of every content, mutated by a seed, through judgement and columns: `python mutated_bodies.py SEED COUNT`."""

from __future__ import annotations

import json
import sys
from collections import Counter
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
from readings_app import cloud, readings, stream_of

from penstock.collect.judging.incoming_events import ArrivedEvents, DecodedEvents
from penstock.collect.judging.json_events import Form
from penstock.collect.judging.judge import Judge
from penstock.collect.reception import decoded_as
from penstock.config import Limits
from penstock.errors import BadBodyError, TooLargeError

NOW_US = 1_700_000_000_000_000
LONGEST_DETAIL = 400
PIECES = (
    *(b'",{}[]:-', b'"', b",", b"\n", b"{", b"}", b"[", b"]", b":", b"-", b"\x00", b"\xff"),
    *(b"9" * 25, b"null", b"true", b"1e999", b"NaN", b'"\\ud800"'),
    *(b"9999-12-31T23:59:59-23:59", b"0001-01-01T00:00:00+23:59"),
)

GOOD: list[tuple[Any, bytes]] = [
    (
        "csv",
        b"n,name,value,good,colour,price,when,day,place.city,place.lat,tags,counts\r\n"
        b'1,"a, ""b""\nc",1.5,true,red,12.30,2024-05-01T10:00:00+02:00,2024-05-01,Berlin,52.5,x,\r\n2,,,,,,,,,,,\n',
    ),
    (
        "cloudevents",
        json.dumps([cloud({"n": 1}, time="2024-05-01T10:00:00Z"), cloud(data_base64="eyJuIjo4fQ==")]).encode(),
    ),
    ("cloudevent", json.dumps(cloud({"n": 1, "tags": ["a"]}, time="2024-05-01T10:00:00Z")).encode()),
    ("text", b'{"n": 1}\n{"n": 2, "place": {"city": "x"}}\n'),
    (
        "json",
        b'[{"n":1,"colour":"red","price":"1.5","when":"2024-05-01T10:00:00Z","level":3,'
        b'"place":{"city":"a","lat":1.5},"tags":["x"],"counts":{"a":1}}]',
    ),
    (
        "arrow",
        stream_of(
            pa.table(
                {
                    "n": range(20),
                    "name": ["ab"] * 20,
                    "tags": [["x"]] * 20,
                    "place": [{"city": "c"}] * 20,
                    "when": pa.array([1] * 20, pa.timestamp("s")),
                    "colour": pa.array(["red"] * 20).dictionary_encode(),
                }
            )
        ),
    ),
    ("arrow", stream_of(pa.table({"n": range(20)}), options=pa.ipc.IpcWriteOptions(compression="lz4"))),
    (
        "arrow",
        stream_of(
            pa.table(
                {
                    "n": pa.array([1, 2**63, 3], pa.uint64()),
                    "at": [2**62, 0, -(2**63)],
                    "when": pa.array([2**62, 1, -(2**63)], pa.timestamp("s")),
                    "level": [11, 2, None],
                    "price": [Decimal("1.234"), None, Decimal(12345678)],
                }
            )
        ),
    ),
]


def mutated(body: bytes, seeded: Random) -> bytes:
    made = bytearray(body)
    for _ in range(seeded.randint(0, 4)):
        at = seeded.randrange(len(made) + 1)
        what = seeded.random()
        if what < 0.4 and made:
            made[at % len(made)] = seeded.randrange(256)
        elif what < 0.7:
            made[at:at] = seeded.choice(PIECES)
        elif what < 0.85:
            del made[at : at + seeded.randint(1, 8)]
        else:
            made[at : at + 4] = seeded.choice(PIECES)
    return bytes(made if seeded.random() > 0.05 else made[: seeded.randrange(len(made) + 1)])


def judged(judge: Judge, body: bytes, form: Form) -> str:
    """What became of a body; every event of it is a row, a fault or a rejection."""
    try:
        decoded = judge.decode(body, form) if form in ("json", "lines", "text") else None
        decoded = decoded or decoded_as(judge, body, form)
    except (BadBodyError, TooLargeError):
        return "refused"
    _check(judge, decoded)
    return "judged"


def _check(judge: Judge, decoded: DecodedEvents) -> None:
    count = len(decoded.events)
    arrived = ArrivedEvents(
        decoded.events, [NOW_US] * count, decoded.unknown, None, decoded.ids, decoded.times, decoded.columns
    )
    built = judge.build(arrived) or judge.build_apart(arrived)
    built.batch.validate(full=True)
    assert built.batch.num_rows + len(built.faults) == count
    for row, why in built.faults:
        assert decoded.raw(decoded.place(row)) is not None
        assert len(why.detail) < LONGEST_DETAIL, why.detail
    for rejection in decoded.rejections:
        assert len(rejection.detail) < LONGEST_DETAIL, rejection.detail
        json.dumps(rejection.body())


def run(seed: int, count: int) -> Counter[str]:
    seeded = Random(seed)
    judges = [Judge(stream, Limits()) for stream in readings().declared().streams]
    found: Counter[str] = Counter()
    for number in range(count):
        form, body = seeded.choice(GOOD)
        sent = mutated(body, seeded)
        asked = seeded.choice(GOOD)[0] if seeded.random() < 0.05 else form
        try:
            found[judged(seeded.choice(judges), sent, asked)] += 1
        except Exception as error:
            raise AssertionError(f"seed {seed}, round {number}, {asked}: {sent!r}") from error
    return found


if __name__ == "__main__":
    print(run(int(sys.argv[1]), int(sys.argv[2])))
