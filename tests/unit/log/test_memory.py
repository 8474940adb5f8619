"""A log in memory: what lies in the dict is what the index knows of."""

from __future__ import annotations

from contextlib import closing

import pytest

from penstock.errors import DiskFullError, StaleTermError
from penstock.log.log import Append, Log, Stream, StreamSpec
from penstock.log.logs.memory import forget, memory_of
from penstock.log.opening import open_log, open_reader
from penstock.testing.contracts.log_events import SCHEMA, events, everything, put


def test_what_failed_leaves_no_payload(log: Log, stream: Stream) -> None:
    memory, other = memory_of(log.place), log.create(StreamSpec("other", SCHEMA))
    before = len(memory.payloads)
    memory.room = 2000
    with pytest.raises(DiskFullError):
        log.append([Append(stream, events([1])), Append(other, events(range(1000)))])
    assert len(memory.payloads) == before


def test_a_removal_that_failed_leaves_every_payload(log: Log, stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(4):
        put(log, stream, [n])
    memory = memory_of(log.place)
    remove = memory.remove

    def replaced(numbers: list[int]) -> None:
        remove(numbers)
        raise StaleTermError("replaced meanwhile")

    monkeypatch.setattr(memory, "remove", replaced)
    with pytest.raises(StaleTermError):
        log.trim(stream, 3)
    assert everything(log, stream) == [0, 1, 2, 3]


def test_a_place_is_what_it_was_until_it_is_forgotten(log: Log, stream: Stream) -> None:
    put(log, stream, [1])
    place = log.place
    with closing(open_log(place, app="unit")) as again, closing(open_reader(place)) as reader:
        assert everything(again, stream) == everything(reader, stream) == [1]
    forget(place)
    assert open_reader(place).streams() == []
