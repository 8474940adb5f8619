"""Writes a view's changelog as flows do, so that what an edge does with it is measured without Spark."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec
import pyarrow as pa

from penstock.change import OP, UPSERT, Column
from penstock.config import Folder
from penstock.log.builds import BatchMeta, Build
from penstock.log.log import Append, Log, StreamSpec
from penstock.log.opening import open_log
from penstock.schema import TIMESTAMP, simple_type

VIEW = "quotes"
SCHEMA = pa.schema(
    [
        ("symbol", pa.string()),
        ("market", pa.string()),
        ("price", pa.float64()),
        ("volume", pa.int64()),
        ("at", TIMESTAMP),
    ]
)


class Changelog:
    """A build of the view `quotes` that is live, and grows."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.commits = 0
        changelog = SCHEMA.append(pa.field(OP, pa.int8()))
        spec = StreamSpec(VIEW, changelog, counts="commits", compact_by=("symbol",), epoch=secrets.token_hex(6))
        self._stream = log.create(spec)
        columns = tuple(Column(field.name, simple_type(field.type)) for field in SCHEMA)
        build = Build(
            epoch=self._stream.epoch, fingerprint="bench", kind="view", columns=columns, proof="exact", started_us=0
        )
        state = {f"live/{VIEW}": self._stream.epoch, f"flow/{VIEW}": {"state": "running"}}
        log.append([], {f"build/{VIEW}": msgspec.to_builtins(build)} | state)

    def commit(self, symbols: Sequence[int]) -> None:
        """A new price for each of these; the batch says when it was made, which is what clients measure from."""
        self.commits += 1
        now_us = time.time_ns() // 1_000
        count = len(symbols)
        arrays = [
            pa.array([f"s{number}" for number in symbols]),
            pa.array([f"m{number % 50}" for number in symbols]),
            pa.array([100.0 + self.commits % 1_000 / 8 + number for number in symbols]),
            pa.array([self.commits] * count, pa.int64()),
            pa.array([now_us] * count, pa.int64()).cast(TIMESTAMP),
            pa.array([UPSERT] * count, pa.int8()),
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._stream.schema)
        meta = BatchMeta(batch=self.commits, start={}, end={}, accepted_us=now_us)
        self._log.append([Append(self._stream, batch, meta=msgspec.to_builtins(meta))])


@contextmanager
def changelog(folder: Folder, symbols: int) -> Iterator[Changelog]:
    """A changelog with one row for each symbol."""
    folder.root.mkdir(parents=True, exist_ok=True)
    log = open_log(folder.flows_log, app="bench_quotes")
    try:
        made = Changelog(log)
        made.commit(range(symbols))
        yield made
    finally:
        log.close()
