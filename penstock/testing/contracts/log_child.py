"""Writes to a log in a process of its own, for the contract's tests to kill: it prints what was acknowledged.

`python -m penstock.testing.contracts.log_child events <place> <first> <batch>` appends events with the ids
first, first + 1, ... and prints, after each acknowledged commit, the number behind the last one. With `changes` it
appends to a changelog, compacts and trims all the time, and prints how many commits there are.
"""

from __future__ import annotations

import sys

import pyarrow as pa

from penstock.log.log import Append, Appended, Count, Log, OutcomeKey, Share, StreamSpec
from penstock.log.opening import open_log
from penstock.schema import ID, TIME, TIMESTAMP
from penstock.testing.contracts.log_backends import APP
from penstock.testing.contracts.log_events import CHANGELOG, changes

NUMBERS = pa.schema([("n", pa.int64()), (TIME, TIMESTAMP), (ID, pa.string())])
SPEC = StreamSpec("numbers", NUMBERS, unique=True)


def batch(first: int, rows: int) -> pa.RecordBatch:
    numbers = range(first, first + rows)
    ids = pa.array([str(n) for n in numbers])
    return pa.record_batch([pa.array(numbers), pa.array(numbers, TIMESTAMP), ids], schema=SPEC.schema)


def step(number: int) -> list[tuple[str, int | None]]:
    """What the commit of that number does to the changelog: twenty words come and go."""
    return [(str(number % 20), number), (str(number * 7 % 20), None), (f"kept-{number % 3}", number)]


OUTCOME = (OutcomeKey("last", {}),)
COUNT = (Count("stored", "events", Share("accepted")),)
"""Written in the same commit as the events, so that neither can ever differ from how many there are."""


def append_events(log: Log, first: int, rows: int) -> None:
    stream = log.create(SPEC)
    while True:
        (result,) = log.append([Append(stream, batch(first, rows), outcomes=OUTCOME, counts=COUNT)])
        assert isinstance(result, Appended)
        first += rows
        print(first, flush=True)


def append_changes(log: Log, first: int, rows: int) -> None:
    stream, other = log.create(CHANGELOG), log.create(SPEC)
    number = log.bounds(stream).next_commit
    while True:
        log.append([Append(stream, changes(step(number)), meta={"number": number}), Append(other, batch(number, 3))])
        number += 1
        print(number, flush=True)
        if number % rows == 0:
            log.compact(stream, number - 2)
            log.trim(other, log.bounds(other).next_commit - 2)
            list(log.tidying())


if __name__ == "__main__":
    work = {"events": append_events, "changes": append_changes}[sys.argv[1]]
    work(open_log(sys.argv[2], app=APP), int(sys.argv[3]), int(sys.argv[4]))
