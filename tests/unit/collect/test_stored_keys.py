"""Keys of the control stream as earlier versions have written them: a folder that is older than the code opens."""

from __future__ import annotations

from pathlib import Path

from hands import Hands
from running_edge import running
from shop_app import shop

from penstock.collect.pulling.lease import Leases
from penstock.collect.ways.idempotency import body_digest
from penstock.log import control_keys
from penstock.log.opening import open_log
from penstock.position import Position
from tests.memory_folder import memory_folder

NOW_US = 1_700_000_000_000_000
BODY = b'{"order_id": 1}'
ONCE = {"Idempotency-Key": "k"}
PULL = "pull/orders/file:///x"


async def test_what_an_earlier_version_has_remembered_still_counts(tmp_path: Path) -> None:
    path = tmp_path
    async with running(shop(), path, clock=Hands(NOW_US)) as edge:
        ack = (await edge.post("orders", BODY, headers=ONCE)).body["ack"]
        (reply,) = edge.log.memory().family(control_keys.idempotency)
    log = open_log(memory_folder(path).edge_log, app=shop().name)
    counted = {"accepted": 1, "duplicates": 2, "rejected": [], "rejected_in_all": 0, "shed": 0}
    at = {"stream": "orders", "epoch": Position.parse(ack).epoch, "offsets": [1]}
    older = {
        "count/orders": {"duplicates": 7, "dead": 1, "shed": 0},
        "receipt/r1": {"at_us": NOW_US, **at, **counted, "error": None},
        reply: {"at_us": NOW_US, "body": body_digest("json", BODY), "ack": ack, **counted},
        f"lease/{PULL}": {"holder": "edge-1", "until_us": NOW_US + 10**9, "term": log.term},
        "producer/orders/p": [0, 4, ack],
    }
    log.append([], older)
    log.close()
    async with running(shop(), path, clock=Hands(NOW_US)) as edge:
        assert edge.collect.counts.of("orders") == {"duplicates": 7, "dead": 1, "shed": 0}
        receipt = await edge.ack(Position("receipt", "orders", "r1", ()).token())
        assert (receipt.status, receipt.body["ack"], receipt.body["duplicates"]) == (200, ack, 2)
        assert await Leases(edge.log, edge.group, "edge-2", Hands(NOW_US)).take(PULL) == 0
        again = await edge.post("orders", BODY, headers=ONCE)
        assert (again.headers["Idempotency-Replayed"], again.body["duplicates"]) == ("true", 2)
        producer = {"Producer-Id": "p", "Producer-Epoch": "0"}
        assert (await edge.post("orders", BODY, headers=producer | {"Producer-Seq": "4"})).status == 204
        assert (await edge.post("orders", BODY, headers=producer | {"Producer-Seq": "5"})).status == 200
        assert edge.collect.counts.of("orders") == {"duplicates": 7 + 3 + 1, "dead": 1, "shed": 0}
