"""How long an edge takes to have a large view back in memory after a restart."""

from __future__ import annotations

import secrets

import msgspec
import numpy as np
import pyarrow as pa

from bench import narrow, processes, server
from bench.options import Options
from bench.results import Figure, Result
from penstock.change import OP, UPSERT, Column
from penstock.config import Folder
from penstock.log.builds import BatchMeta, Build
from penstock.log.log import Append, StreamSpec
from penstock.log.opening import open_log
from penstock.run.app_file import load
from penstock.schema import TIMESTAMP, simple_type

VIEW = "counts"
COMMIT = 10_000
SCHEMA = pa.schema(
    [
        ("window", pa.struct([("start", TIMESTAMP), ("end", TIMESTAMP)])),
        ("sensor", pa.string()),
        ("readings", pa.int64()),
    ]
)


def run(options: Options) -> Result:
    with server.data_folder(options.folder) as folder:
        options.note(f"load: an edge without rows, then with {options.rows:,}")
        with server.data_folder(options.folder) as other:
            write_view(other, COMMIT)
            with server.edge("narrow", other, "serve") as small:
                small_s, small_mib = small.ready_s, processes.memory_mib(small.pid)[0]
        write_view(folder, options.rows)
        with server.edge("narrow", folder, "serve") as edge:
            body = server.get(edge.port, "/readyz?for=serve")
            held = body["views"][VIEW]["rows"]
            if held != options.rows:
                raise RuntimeError(f"ready with {held} rows instead of {options.rows}")
            figures = [
                Figure("edge", f"start to serving {options.rows:,} rows", edge.ready_s, "s", aim="10"),
                Figure("edge", f"start to serving {COMMIT:,} rows", small_s, "s"),
                Figure("edge", "rows back in memory", (options.rows - COMMIT) / (edge.ready_s - small_s), "rows/s"),
                Figure("edge", "resident memory", processes.memory_mib(edge.pid)[0], "MiB"),
                Figure("edge", f"resident memory with {COMMIT:,} rows", small_mib, "MiB"),
            ]
    return Result("load", figures, {"rows": options.rows, "rows per commit": COMMIT, "columns": len(SCHEMA)})


def write_view(folder: Folder, rows: int) -> None:
    """A build of the view that is live, as the flows leave it."""
    name = load(str(server.APPS / "narrow.py")).application.name
    log = open_log(folder.flows_log, app=name)
    try:
        changelog = SCHEMA.append(pa.field(OP, pa.int8()))
        spec = StreamSpec(
            VIEW, changelog, counts="commits", compact_by=("window", "sensor"), epoch=secrets.token_hex(6)
        )
        stream = log.create(spec)
        columns = tuple(Column(field.name, simple_type(field.type)) for field in SCHEMA)
        build = Build(
            epoch=stream.epoch, fingerprint="bench", kind="view", columns=columns, proof="exact", started_us=0
        )
        state = {f"live/{VIEW}": stream.epoch, f"flow/{VIEW}": {"state": "running"}}
        log.append([], {f"build/{VIEW}": msgspec.to_builtins(build)} | state)
        for number, low in enumerate(range(0, rows, COMMIT)):
            meta = BatchMeta(batch=number, start={}, end={})
            batch = batch_of(stream.schema, low, min(low + COMMIT, rows))
            log.append([Append(stream, batch, meta=msgspec.to_builtins(meta))])
    finally:
        log.close()


def batch_of(schema: pa.Schema, low: int, high: int) -> pa.RecordBatch:
    """Rows of a thousand sensors in each window."""
    numbers = np.arange(low, high)
    start_us = narrow.START_MS * 1000 + numbers // narrow.SENSORS * 10_000_000
    moments = [pa.array(start_us, TIMESTAMP), pa.array(start_us + 10_000_000, TIMESTAMP)]
    windows = pa.StructArray.from_arrays(moments, fields=list(SCHEMA.field("window").type))
    sensors = pa.array([f"s{i % narrow.SENSORS:04}" for i in range(low, high)])
    readings, ops = pa.array(numbers % 97 + 1), pa.array(np.full(len(numbers), UPSERT, np.int8))
    return pa.RecordBatch.from_arrays([windows, sensors, readings, ops], schema=schema)
