"""A shop whose customers see their own orders only, in worlds that differ in nothing but what Ann may not see."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from secure_edge import SecureEdge, secure_edge

from penstock import App, Event
from penstock.rights.credential import TokenOptions

SECRET = "a shared secret of at least 32 bytes"
EPOCH = "e0e0e0e0e0e0"
ORDERS = pa.schema(
    [
        ("order_id", pa.int64()),
        ("user_id", pa.string()),
        ("amount", pa.int64()),
        ("note", pa.string()),
        ("tags", pa.list_(pa.string())),
    ]
)
TEAMS = pa.schema([("team", pa.string()), ("total", pa.int64())])


class Sale(Event):
    order_id: int
    user_id: str
    amount: int = 0
    note: str = ""


def market() -> App:
    app = App("small")
    sales = app.stream("sales", Sale, visible_where="user_id = :sub")
    app.stream("returns", Sale)

    @app.view(key="order_id", order_by="-amount", visible_where="user_id = :sub")
    def orders(sales: Any) -> Any: ...

    @app.view(key="team", visible_where="team = ANY(:teams)")
    def teams(sales: Any) -> Any: ...

    @app.view(key="user_id", visible_where="user_id = :sub")
    def spent(returns: Any) -> Any: ...

    app.channel("large", orders, where="amount > 10", select=["user_id", "amount"])
    app.channel("sold", sales, where="amount > 10", select=["order_id", "user_id"], policy="every_change")
    return app


def order(number: int, user: str, amount: int, note: str) -> dict[str, Any]:
    return {"order_id": number, "user_id": user, "amount": amount, "note": note, "tags": [user, note]}


OWN = [order(1, "ann", 5, "tea"), order(2, "ann", 50, "cups"), order(3, "ann", 500, "a table")]
"""What Ann may see."""
BOBS = [order(9001, "bob", 77_777, "hunter2"), order(9002, "bob", 1, "xyzzy"), order(9003, "Ann", 50, "swordfish")]
CAROLS = [order(9101, "carol", 3, "joshua"), order(9102, "zoe", 88_888, "tiger"), order(9103, "carol", 6, "mellon")] + [
    order(9200 + n, "dave", n * 1_000, f"plover{n}") for n in range(5)
]
SECRETS = [str(row[name]) for row in (*BOBS, *CAROLS) for name in ("note",)] + ["77777", "88888"]
"""Texts that are nowhere but in what is hidden."""


def filled(hidden: list[dict[str, Any]]) -> Any:
    def fill(edge: SecureEdge) -> None:
        edge.orders = edge.flows.build("orders", ORDERS, ["order_id"], epoch=EPOCH)  # type: ignore[attr-defined]
        first = [OWN[0] | {"amount": 4}, *OWN[1:]]
        edge.flows.commit(edge.orders, [*first, *hidden])  # type: ignore[attr-defined]
        changed = [row | {"amount": row["amount"] + 1} for row in hidden[:2]]
        edge.flows.commit(edge.orders, [OWN[0], *changed], hidden[2:])  # type: ignore[attr-defined]
        teams = edge.flows.build("teams", TEAMS, ["team"])
        edge.flows.commit(teams, [{"team": team, "total": n} for n, team in enumerate("abc")])
        spent = edge.flows.build("spent", pa.schema([("user_id", pa.string()), ("total", pa.int64())]), ["user_id"])
        edge.spent = spent  # type: ignore[attr-defined]
        edge.flows.commit(spent, [{"user_id": "ann", "total": 555}, {"user_id": "bob", "total": 77_777}])

    return fill


def secret_in(path: Path) -> Path:
    path.mkdir(exist_ok=True)
    (path / "secret").write_text(SECRET)
    return path / "secret"


@asynccontextmanager
async def world(path: Path, hidden: list[dict[str, Any]] = BOBS, **options: Any) -> AsyncIterator[SecureEdge]:
    """An edge with Ann's orders and these; `edge.admin` may do everything, `edge.ann` may read as Ann."""
    tokens = TokenOptions(secret_file=secret_in(path))
    async with secure_edge(path / "data", app=market, site=filled(hidden), tokens=tokens, **options) as edge:
        edge.admin = await edge.key("admin", name="admin")  # type: ignore[attr-defined]
        edge.ann = await edge.key("read:*", name="ann", sub="ann")  # type: ignore[attr-defined]
        for row in (*OWN, *hidden):
            event = {name: row[name] for name in ("order_id", "user_id", "amount", "note")}
            answer = await edge.post("sales", edge.admin, _json(event))  # type: ignore[attr-defined]
            assert answer.status == 200, answer.raw
            await edge.post("sales", edge.admin, _json(event | {"order_id": row["note"]}))  # type: ignore[attr-defined]
        yield edge


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()
