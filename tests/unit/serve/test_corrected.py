"""`changes` names the rows of closed windows that late events have changed: those that it tells of, and no other."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import msgspec

from penstock.change import Change, Column, Key, Row
from penstock.log.builds import BatchMeta
from penstock.protocol import wire
from penstock.serve.fanout.laggards import _newest
from penstock.serve.fanout.messages import BatchJson, MessageMaker, RowCodec
from penstock.views.history import Batch
from penstock.views.read_query import key_of, parse_query

COLUMNS = [Column("window", "struct<start:timestamp,end:timestamp>"), Column("topic", "string"), Column("n", "bigint")]
KEY = ("window", "topic")


def row(minute: int, topic: str = "jazz", n: int = 1) -> Row:
    start = dt.datetime(2026, 1, 1, 0, minute, tzinfo=dt.UTC)
    return ({"start": start, "end": start + dt.timedelta(minutes=1)}, topic, n)


def key(of: Row) -> dict[str, Any]:
    return {"window": wire(of[0]), "topic": of[1]}


def batch(number: int, rows: list[Row], corrected: list[Row]) -> Batch:
    meta = BatchMeta(batch=number, start={}, end={}, corrected=[key(each) for each in corrected] or None)
    changes = [Change(_key(each), None, each) for each in rows]
    stored = msgspec.convert(json.loads(msgspec.json.encode(meta)), BatchMeta)
    return Batch(number, number + 1, changes, stored, 0, 0)


def _key(of: Row) -> Key:
    return key_of(of, [0, 1])


def test_a_message_names_those_of_its_rows_that_were_corrected() -> None:
    old, other, new = row(1), row(1, "golf"), row(9)
    query = parse_query(COLUMNS, KEY, select="n")
    one = batch(0, [old, other, new], [old, other])
    codec = RowCodec(query)
    for told in (
        BatchJson("v", "p", one).changes(codec, [old, new], []),
        MessageMaker("v", codec, str).changes([query.project(old), query.project(new)], [], 1, one.meta),
    ):
        assert json.loads(told.payload)["corrected"] == [key(old)]


def test_a_message_without_corrections_has_no_such_field() -> None:
    codec = RowCodec(parse_query(COLUMNS, KEY))
    old, new = row(1), row(9)
    one = batch(0, [old, new], [old])
    assert b"corrected" not in BatchJson("v", "p", one).changes(codec, [new], []).payload
    assert b"corrected" not in BatchJson("v", "p", batch(0, [new], [])).changes(codec, [new], []).payload


def test_one_message_of_several_batches_has_the_corrections_of_all() -> None:
    old, new = row(1), row(9)
    batches = [batch(0, [old], [old]), batch(1, [new], []), batch(2, [row(2)], [row(2)])]
    newest = _newest(batches, 2)
    assert newest is not None
    told = MessageMaker("v", RowCodec(parse_query(COLUMNS, KEY)), str).changes([old, new], [], 2, newest.meta)
    assert json.loads(told.payload)["corrected"] == [key(old)]
    assert newest.meta is not None
    assert newest.meta.batch == 1
