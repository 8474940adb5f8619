"""Appends to a log in a process of its own, for the contract's tests to kill: it prints what was acknowledged.

`python -m penstock.testing.contracts.log_child <backend> <place> <first> <batch>` appends events with the ids first,
first + 1, ... and prints, after each acknowledged commit, the number behind the last one.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa

from penstock.log.log import Append, Appended, StreamSpec
from penstock.schema import ID, TIME, TIMESTAMP
from penstock.testing.contracts.log_backends import BACKENDS

SPEC = StreamSpec(
    "numbers", pa.schema([("n", pa.int64()), (TIME, TIMESTAMP), (ID, pa.string())]), partitions=1, unique=True
)


def batch(first: int, rows: int) -> pa.RecordBatch:
    numbers = range(first, first + rows)
    ids = pa.array([str(n) for n in numbers])
    return pa.record_batch([pa.array(numbers), pa.array(numbers, TIMESTAMP), ids], schema=SPEC.schema)


def stored(done: Appended) -> dict[str, int]:
    """Remembered in the same commit, so that it can never differ from how many events there are."""
    return {"stored": done.position.offsets[0]}


def main(backend: str, place: str, first: int, rows: int) -> None:
    log = BACKENDS[backend].open(Path(place))
    stream = log.create(SPEC)
    while True:
        (result,) = log.append([Append(stream, batch(first, rows), remember=stored)])
        assert isinstance(result, Appended)
        first += rows
        print(first, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
