"""How much more a large view costs than a small one: a read with a limit, a change of its first rows, an event."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import pyarrow as pa

from bench import catchup, narrow, processes, server
from bench.load import VIEW, batch_of, write_view
from bench.options import Options
from bench.results import Figure, Result
from penstock.client.sync_client import Client
from penstock.config import Folder
from penstock.log.builds import BatchMeta
from penstock.log.log import Append
from penstock.log.opening import open_log
from penstock.run.app_file import load

SMALL_ROWS = 10_000
READS = 500
COMMITS = 300
EVENTS = 150
ORDER = "-readings"


def run(options: Options) -> Result:
    small, large = (_measured(options, rows) for rows in (SMALL_ROWS, options.rows))
    figures: list[Figure] = []
    for what in small:
        figures += [
            Figure(what, f"{SMALL_ROWS:,} rows", small[what], "ms"),
            Figure(what, f"{options.rows:,} rows", large[what], "ms"),
            Figure(what, "ratio", large[what] / small[what], "", aim="" if "first" in what else "1.3"),
        ]
    return Result("growth", figures, {"reads": READS, "commits of one change": COMMITS, "events": EVENTS})


def _measured(options: Options, rows: int) -> dict[str, float]:
    """CPU of the edge in milliseconds, by what it was spent on."""
    options.note(f"growth: {rows:,} rows")
    with server.data_folder(options.folder) as folder:
        write_view(folder, rows)
        with server.edge("narrow", folder, "serve") as edge:
            first = _cpu_ms(edge.pid, lambda: _read(edge, 1))
            reads = _cpu_ms(edge.pid, lambda: _read(edge, READS))
            with _changes(edge, folder, rows) as change:
                change(COMMITS // 3)
                changes = _cpu_ms(edge.pid, lambda: change(COMMITS))
    return {
        "first read": first,
        "one read": reads / READS,
        "one change, top 20 followed": changes / COMMITS,
        "one event, so many groups open": _event_ms(options, rows),
    }


def _cpu_ms(pid: int, work: Callable[[], None]) -> float:
    before = processes.cpu_s(pid)
    work()
    return (processes.cpu_s(pid) - before) * 1000


def _event_ms(options: Options, groups: int) -> float:
    """CPU of the JVM in milliseconds for a batch of one event."""
    options.note(f"growth: {groups:,} open groups")
    with server.data_folder(options.folder) as folder:
        catchup.fill(folder, groups, server.APPS / "groups.py")
        with server.run("groups", folder) as running:
            catchup.level(folder, groups)
            javas = [p.pid for p in processes.family(running.pid) if p.command.partition(" ")[0].endswith("java")]
            java = max(javas, key=processes.cpu_s)  # while it starts a process there are two for a moment
            lines = narrow.Lines(1, narrow.START_MS, groups)
            _send(running, folder, lines, groups, EVENTS // 3)
            taken = groups + EVENTS // 3
            return _cpu_ms(java, lambda: _send(running, folder, lines, taken, EVENTS)) / EVENTS


def _send(running: server.Server, folder: Folder, lines: narrow.Lines, taken: int, events: int) -> None:
    """One event after the other, each once the view has the one before."""
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=60)
    for number in range(events):
        connection.request("POST", "/streams/readings", lines.body(), {"Content-Type": "application/x-ndjson"})
        connection.getresponse().read()
        catchup.level(folder, taken + number + 1)
    connection.close()


def _read(edge: server.Server, times: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", edge.port, timeout=60)
    for _ in range(times):
        connection.request("GET", f"/views/{VIEW}?order_by={ORDER}&limit=20")
        rows = msgspec.json.decode(connection.getresponse().read())["rows"]
        if len(rows) != 20:
            raise RuntimeError(f"{len(rows)} rows instead of 20")
    connection.close()


@contextmanager
def _changes(edge: server.Server, folder: Folder, rows: int) -> Iterator[Callable[[int], None]]:
    """Lets one row after the other become the first, once the subscriber has seen the one before."""
    log = open_log(folder.flows_log, app=load(str(server.APPS / "narrow.py")).application.name)
    stream = log.find(VIEW)
    assert stream is not None
    best = 1_000

    with Client(edge.url) as client, client.watch(VIEW, order_by=ORDER, limit=20) as watch:
        watch.next(60)

        def change(times: int) -> None:
            nonlocal best
            for _ in range(times):
                best += 1
                low = best * 7919 % rows
                row = batch_of(stream.schema, low, low + 1)
                row = row.set_column(2, stream.schema.field(2), pa.array([best]))
                meta = BatchMeta(batch=best, start={}, end={})
                log.append([Append(stream, row, meta=msgspec.to_builtins(meta))])
                if watch.next(60).upserts[0]["readings"] != best:
                    raise RuntimeError("the subscriber saw another row")

        yield change
    log.close()
