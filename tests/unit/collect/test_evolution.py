"""An old and a new producer at once, then a restart with the new class: nothing declared compatible is rejected."""

from __future__ import annotations

import json
import subprocess
import sys
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

from running_edge import Edge, running

from penstock import App, Event, Struct
from penstock.config import Folder

READER = """
import json, sys
from pathlib import Path
from penstock.log.opening import open_reader
reader = open_reader(sys.argv[1])
for line in sys.stdin:
    stream = reader.find("orders")
    rows = [row for block in reader.read(stream, 0, 0) for row in block.batch.to_pylist()]
    print(json.dumps([[row.get(name) for name in line.split()] for row in rows], default=str), flush=True)
"""


class State(Enum):
    OPEN = "open"
    PAID = "paid"


class Line(Struct):
    sku: str
    count: int


class Old(Event):
    order_id: int
    amount: int
    state: State
    fee: int
    note: str
    lines: list[Line] = []


class NewState(Enum):
    OPEN = "open"
    PAID = "paid"
    SENT = "sent"


class NewLine(Struct):
    sku: str
    count: float
    unit: str = "piece"


class New(Event):
    order_id: int
    amount: float
    state: NewState
    fee: Decimal | None = None
    lines: list[NewLine] = []
    channel: str = "shop"


OLD = {"order_id": 1, "amount": 2, "state": "paid", "fee": 3, "note": "x", "lines": [{"sku": "a", "count": 2}]}
NEW_BUT_OLD_TYPES = OLD | {"channel": "web"}
NEW = {
    "order_id": 2,
    "amount": 2.5,
    "state": "sent",
    "fee": "0.10",
    "lines": [{"sku": "a", "count": 0.5}],
    "channel": "web",
}


def app(kind: type[Event]) -> App:
    made = App("shop")
    made.stream("orders", kind, id="order_id")
    return made


class Reader:
    """A process that opened the log before the class changed."""

    def __init__(self, folder: Folder) -> None:
        command = [sys.executable, "-c", READER, folder.edge_log]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def read(self, *names: str) -> list[list[Any]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(" ".join(names) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


async def post(edge: Edge, event: dict[str, Any], number: int) -> None:
    reply = await edge.post("orders", json.dumps(event | {"order_id": number}).encode())
    assert (reply.status, reply.body["accepted"]) == (200, 1), reply.raw


async def test_old_and_new_producers_before_and_after_the_restart(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    async with running(app(Old), folder) as edge:
        await post(edge, OLD, 1)
        await post(edge, NEW_BUT_OLD_TYPES, 2)
        reader = Reader(folder)
        assert reader.read("order_id", "amount", "note") == [[1, 2, "x"], [2, 2, "x"]]
    async with running(app(New), folder) as edge:
        await post(edge, OLD, 3)
        await post(edge, NEW, 4)
        again = await edge.post("orders", json.dumps(OLD).encode())
        assert again.body["duplicates"] == 1, "an id is known over versions"
        assert edge.dead() == []
        assert reader.read("order_id", "amount", "fee", "channel", "note") == [
            [1, 2.0, "3.000000000000000000", "shop", None],
            [2, 2.0, "3.000000000000000000", "shop", None],
            [3, 2.0, "3.000000000000000000", "shop", None],
            [4, 2.5, "0.100000000000000000", "web", None],
        ]
        assert [event["lines"] for event in edge.events("orders")][:1] == [
            [{"sku": "a", "count": 2.0, "unit": "piece"}]
        ]
    reader.close()
