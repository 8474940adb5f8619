"""What views cost that are computed again where they changed: freshness, catching up, building anew, and proving."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import aiohttp
import numpy as np
import pyarrow as pa

from bench import catchup, narrow, server
from bench.options import Options
from bench.percentile import Spread, spread
from bench.results import Figure, Result, of_spread
from penstock.change import OP, UPSERT
from penstock.collect.collection import stream_spec
from penstock.config import Folder
from penstock.log import control_keys
from penstock.log.builds import batch_meta, build_of
from penstock.log.log import Append, StreamSpec
from penstock.log.opening import open_log, open_reader
from penstock.run.app_file import load

APP = server.APPS / "regrouped.py"
PROBES = 60
FEW_PROBES = 15
WARM = 10
PARTNERS = 10
"""Orders of one user: so many rows of the join change with a user's name."""
COMMIT_ROWS = 50_000
PATIENCE_S = 1_800.0

Asked = tuple[str, str, Any]
"""Method, path, and what is sent."""


def run(options: Options) -> Result:
    probes = PROBES if options.rows >= 1_000_000 else FEW_PROBES
    figures = [*_windows(options, probes), *_chain(options, probes), *_waiting(options)]
    fewer = [rows for rows in (options.rows // 10, options.rows) if rows]
    found = {rows: _join(options, rows, probes) for rows in fewer}
    for rows, (told, _) in found.items():
        figures += [*told]
        options.note(f"regrouped: join of {rows:,} rows is done")
    small, large = (found[rows][1] for rows in fewer)
    if small and large:
        figures.append(Figure("table-table join", "large beside small", large.p50 / small.p50, "", aim="1.2"))
    return Result("regrouped", figures, {"probes": probes, "events": options.events, "rows": options.rows})


# Freshness


def _windows(options: Options, probes: int) -> Iterator[Figure]:
    """One event after the other, each when the one before was seen."""
    found: dict[str, Spread | None] = {}
    for view in ("counts", "top3"):
        options.note(f"regrouped: freshness of {view}")
        with server.data_folder(options.folder) as folder, server.run("regrouped", folder, BENCH_VIEWS=view) as running:
            now_ms = int(time.time() * 1000)

            def event(number: int, now_ms: int = now_ms) -> Asked:
                body = {"id": number, "sensor": "s", "kind": "k", "region": 1, "value": 1.0, "at": now_ms}
                return "POST", "/streams/readings", body

            found[view] = asyncio.run(_seen(running, view, event, lambda row, number: row["n"] == number, probes))
    case = "top 3 per window"
    yield from of_spread(case, "the count alone, 2xx to WebSocket", found["counts"], "ms")
    yield from of_spread(case, "the top 3, 2xx to WebSocket", found["top3"], "ms")
    yield from _ratio(case, found["counts"], found["top3"], "1.3")


def _chain(options: Options, probes: int) -> Iterator[Figure]:
    found: dict[str, Spread | None] = {}
    for which, view in (("one", "first"), ("three", "third")):
        options.note(f"regrouped: freshness of {view}")
        with server.data_folder(options.folder) as folder:
            _fill(folder, 10_000)
            with server.run("regrouped", folder, BENCH_VIEWS=which) as running:
                _level(folder, view)

                def order(number: int) -> Asked:
                    return "PUT", "/tables/orders/1", {"user": 1, "amount": 1_000_000 * number}

                def shown(row: Mapping[str, Any], number: int) -> bool:
                    return bool(row["amount"] >= 1_000_000 * number)

                found[view] = asyncio.run(_seen(running, view, order, shown, probes))
    case = "three views in a chain"
    yield from of_spread(case, "one view, 2xx to WebSocket", found["first"], "ms")
    yield from of_spread(case, "the third, 2xx to WebSocket", found["third"], "ms")
    yield from _ratio(case, found["first"], found["third"], "1.5")


def _ratio(case: str, one: Spread | None, other: Spread | None, aim: str) -> Iterator[Figure]:
    if one and other:
        yield Figure(case, "beside", other.p50 / one.p50, "times", aim=aim)


async def _seen(
    running: server.Server,
    view: str,
    ask: Callable[[int], Asked],
    shown: Callable[[Mapping[str, Any], int], bool],
    probes: int,
) -> Spread | None:
    """From the reply to a request to the message that shows what came of it, in milliseconds."""
    took: list[float] = []
    timeout = aiohttp.ClientTimeout(total=120)
    async with (
        aiohttp.ClientSession(running.url, timeout=timeout) as session,
        session.ws_connect(f"/views/{view}/socket", max_msg_size=0) as socket,
    ):
        await socket.send_json({"type": "subscribe", "limit": None})
        for number in range(1, WARM + probes + 1):
            method, path, body = ask(number)
            async with session.request(method, path, json=body) as reply:
                reply.raise_for_status()
                await reply.read()
            acked = time.monotonic()
            await _until(socket, lambda row, n=number: shown(row, n))
            if number > WARM:
                took.append((time.monotonic() - acked) * 1000)
    return spread(took)


async def _until(socket: aiohttp.ClientWebSocketResponse, shown: Callable[[Mapping[str, Any]], bool]) -> None:
    async with asyncio.timeout(120):
        while True:
            message = json.loads(await socket.receive_str())
            rows = message.get("upserts") or message.get("rows") or ()
            if any(shown(row) for row in rows):
                return


# Catching up


def _waiting(options: Options) -> Iterator[Figure]:
    """Events that wait in the log, through the count alone and through the top 3."""
    rates: dict[str, float] = {}
    for view in ("counts", "top3"):
        options.note(f"regrouped: {options.events:,} events through {view}")
        with server.data_folder(options.folder) as folder:
            _fill_events(folder, options.events)
            with server.run("regrouped", folder, BENCH_VIEWS=view):
                rates[view] = options.events / _absorbed(folder, view, options.events)
    case = f"{options.events:,} events that wait"
    yield Figure(case, "the count alone", rates["counts"], "events/s")
    yield Figure(case, "the top 3", rates["top3"], "events/s")
    yield Figure(case, "beside", rates["top3"] / rates["counts"], "times", aim="0.7")


def _fill_events(folder: Folder, events: int) -> None:
    application = load(str(APP)).application
    declared = application.stream("readings")
    assert declared is not None
    log = open_log(folder.edge_log, app=application.name)
    stream = log.create(stream_spec(declared))
    for batch in narrow.batches(declared, events, catchup.COMMIT):
        log.append([Append(stream, batch)])
    log.close()


def _absorbed(folder: Folder, view: str, events: int) -> float:
    """Seconds from when the first batch was planned to the commit of the view that has all of them in it."""
    folded = "top3.1" if view == "top3" else view
    log = open_reader(folder.flows_log)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            stream = log.find(folded)
            last = log.last_commit(stream) if stream else None
            end = batch_meta(last.meta or {}).end["readings"][1][0] if last else 0
            if stream and last and end >= events:
                began_us = batch_meta(log.commits(stream, 0, limit=1)[0].meta or {}).planned_us or 0
                if view == folded:
                    return (last.written_us - began_us) / 1e6
                top = log.find(view)
                newest = log.last_commit(top) if top else None
                if newest and batch_meta(newest.meta or {}).end[folded][1] == list(last.ends):
                    return (newest.written_us - began_us) / 1e6
            time.sleep(0.1)
    finally:
        log.close()
    raise RuntimeError(f"{view} has not absorbed {events} events within {PATIENCE_S:g} s")


# Joins of tables


def _join(options: Options, rows: int, probes: int) -> tuple[list[Figure], Spread | None]:
    """Orders and their users, of which one after the other gets another name."""
    case, figures = f"table-table join of {rows:,} rows", list[Figure]()
    options.note(f"regrouped: {case}")
    with server.data_folder(options.folder) as folder:
        _fill(folder, rows)
        with server.run("regrouped", folder, BENCH_VIEWS="joined") as running:
            _level(folder, "sold")
            figures.append(Figure(case, f"built, {rows:,} units", rows / _built_s(folder, "sold"), "rows/s"))

            def rename(number: int) -> Asked:
                return "PUT", f"/tables/users/{number}", {"name": f"renamed {number}"}

            def shown(row: Mapping[str, Any], number: int) -> bool:
                return bool(row["name"] == f"renamed {number}")

            found = asyncio.run(_seen(running, "sold", rename, shown, probes))
            figures += of_spread(case, f"a name, {PARTNERS} rows, 2xx to WebSocket", found, "ms", "100")
        held = folder.held.stat().st_size  # the process that wrote it has ended, so that it holds all
        figures.append(Figure(case, "held.db", held / (2 * rows + rows // PARTNERS), "bytes a row"))
        for arguments in ((), ("--units", "1000")):
            took = _verify(folder, arguments)
            figures.append(Figure(case, " ".join(("verify", *arguments)), took, "s"))
    return figures, found


def _fill(folder: Folder, rows: int) -> None:
    """Tables as the door would have written them."""
    application = load(str(APP)).application
    log = open_log(folder.edge_log, app=application.name)
    for name, count in (("users", max(1, rows // PARTNERS)), ("orders", rows)):
        table = application.table(name)
        assert table is not None
        stream = log.create(StreamSpec(name, table.stored, counts="commits", compact_by=table.key))
        for low in range(0, count, COMMIT_ROWS):
            ids = np.arange(low, min(low + COMMIT_ROWS, count))
            columns = {
                "id": ids,
                "name": np.char.add("user ", ids.astype(str)),
                "user": ids // PARTNERS,
                "amount": ids % 100,
                OP: np.full(len(ids), UPSERT),
            }
            arrays = [pa.array(columns[field.name]).cast(field.type) for field in stream.schema]
            log.append([Append(stream, pa.RecordBatch.from_arrays(arrays, schema=stream.schema))])
    log.close()


def _level(folder: Folder, view: str) -> None:
    """Wait until a view is built from all that its tables hold."""
    log = open_reader(folder.flows_log)
    deadline = time.monotonic() + PATIENCE_S
    try:
        while log.memory().get(f"live/{view}") is None:
            if time.monotonic() > deadline:
                raise RuntimeError(f"'{view}' is not built within {PATIENCE_S:g} s")
            time.sleep(0.05)
    finally:
        log.close()


def _built_s(folder: Folder, view: str) -> float:
    """Seconds from the beginning of a build to its first commit."""
    log = open_reader(folder.flows_log)
    try:
        stream, build = log.find(view), build_of(log.memory()[control_keys.build(view)])
        assert stream is not None
        return (log.commits(stream, 0, limit=1)[0].written_us - build.started_us) / 1e6
    finally:
        log.close()


def _verify(folder: Folder, arguments: tuple[str, ...]) -> float:
    """Seconds that it says of itself, without the JVM's start."""
    command = server.penstock("verify", str(APP), "--data", str(folder.root), "--view", "sold", "--json", *arguments)
    with server.started(["env", "BENCH_VIEWS=joined", *command], subprocess.PIPE) as (process, _):
        output, _ = process.communicate(timeout=PATIENCE_S)
    report = catchup.reported(output.decode())
    if report["result"] != "equal":
        raise RuntimeError(f"verify says that the view is {report}")
    return float(report["seconds"])
