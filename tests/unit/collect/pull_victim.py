"""An edge without Spark that pulls from every kind of source; `pull_crash.py` starts it and kills it.

python pull_victim.py FOLDER HTTP_PORT OTHER_PORT EVENTS
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from penstock import App, Event
from penstock.config import Folder


class Tick(Event):
    n: int
    pad: str = ""


def victim(folder: Path, port: int, other: int, events: int) -> App:
    """Streams without an id get each event once only if positions are exact."""
    app = App("victim")
    base = f"127.0.0.1:{port}"

    async def numbers(since: int | None) -> AsyncIterator[Any]:
        for n in range(0 if since is None else since + 1, events):
            await asyncio.sleep(0.002)
            yield n, {"n": n}

    app.pull(app.stream("ws", Tick, id="n"), f"ws://{base}/ws", resume="since=n")
    app.pull(app.stream("ndjson", Tick, id="n"), f"ndjson+http://{base}/ndjson", resume="since=n")
    app.pull(app.stream("poll", Tick, id="n"), f"poll+http://{base}/poll", resume="since=n", every="30 ms")
    app.pull(app.stream("sse", Tick), f"sse+http://{base}/sse")
    app.pull(app.stream("file", Tick), f"file://{folder}/app.log")
    app.pull(app.stream("folder", Tick), f"file://{folder}/many/*.ndjson*")
    app.pull(app.stream("function", Tick), numbers)
    app.pull(app.stream("other", Tick), f"penstock+http://127.0.0.1:{other}/streams/ticks")
    return app


async def main() -> None:
    from running_edge import running

    folder, port, other, events = Path(sys.argv[1]), *map(int, sys.argv[2:])
    async with running(victim(folder, port, other, events), Folder(folder)):
        print("started", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
