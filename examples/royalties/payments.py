"""A payment service that can be trusted with money, but not to answer: it sometimes dies between charge and reply.

    python examples/royalties/payments.py --port 8191 --ledger payments.db --die 0.1

`POST /charges` with an `Idempotency-Key` charges once for each key. With `--naive` it charges as often as it is
asked, and `GET /charges/{key}` is the only way to learn whether a charge was made. `GET /charges` is the ledger.

A request with a `Penstock-Term` below the highest that was seen is refused: it comes from a payer that was replaced.
So whoever asks for a charge with its own, higher term and hears that there is none knows that there will be none.

It starts itself again when it has died, unless `--mortal`.
"""

import argparse
import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from random import Random

from aiohttp import web

TABLE = """
CREATE TABLE IF NOT EXISTS charges (
    number INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL, account TEXT NOT NULL, amount TEXT NOT NULL,
    reason TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS charges_by_key ON charges (key);
CREATE TABLE IF NOT EXISTS terms (payer TEXT PRIMARY KEY, term INTEGER NOT NULL);
"""


class Ledger:
    """Every charge that was made, and the highest term of each payer; fsynced."""

    def __init__(self, path: str) -> None:
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.executescript(TABLE)

    def charge(self, key: str, account: str, amount: str, reason: str) -> None:
        self._db.execute(
            "INSERT INTO charges (key, account, amount, reason) VALUES (?, ?, ?, ?)", (key, account, amount, reason)
        )

    def admits(self, key: str, term: int) -> bool:
        """Whether nobody with a higher term was here before; what comes later with a lower one is refused."""
        payer = key.partition("/")[0]
        self._db.execute(
            "INSERT INTO terms VALUES (?, ?) ON CONFLICT DO UPDATE SET term = excluded.term WHERE term < excluded.term",
            (payer, term),
        )
        return self._db.execute("SELECT term FROM terms WHERE payer = ?", (payer,)).fetchone() == (term,)

    def charges(self, key: str | None = None) -> list[dict[str, object]]:
        where, values = ("WHERE key = ?", (key,)) if key is not None else ("", ())
        query = f"SELECT number, key, account, amount, reason FROM charges {where} ORDER BY number"
        names = ("charge", "key", "account", "amount", "reason")
        return [dict(zip(names, row, strict=True)) for row in self._db.execute(query, values)]


class Service:
    """The HTTP side. `die` is the chance that a charge is its last deed; half of those die before it."""

    def __init__(self, ledger: Ledger, naive: bool, die: float, work_ms: float, random: Random) -> None:
        self._ledger, self._naive, self._die, self._work_ms, self._random = ledger, naive, die, work_ms, random

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/charges", self.charge),
            web.get("/charges", self.ledger),
            web.get("/charges/{key:.+}", self.look),
        ]

    async def charge(self, request: web.Request) -> web.Response:
        key, wanted = request.headers.get("Idempotency-Key"), await request.json()
        if not key:
            return web.json_response({"error": "an Idempotency-Key is needed"}, status=400)
        await self._work()
        if self._replaced(request, key):
            return replaced()
        made = self._ledger.charges(key)
        if made and not self._naive:
            same = all(made[0][name] == wanted[name] for name in ("account", "amount", "reason"))
            return web.json_response(made[0] if same else {"error": "this key was used"}, status=200 if same else 422)
        dies = self._random.random() < self._die
        if dies and self._random.random() < 0.5:
            die()
        self._ledger.charge(key, wanted["account"], wanted["amount"], wanted["reason"])
        if dies:
            die()
        await self._work()
        return web.json_response(self._ledger.charges(key)[-1], status=201)

    async def look(self, request: web.Request) -> web.Response:
        key = request.match_info["key"]
        if self._replaced(request, key):
            return replaced()
        made = self._ledger.charges(key)
        return web.json_response(made[0]) if made else web.json_response({"error": "no such charge"}, status=404)

    async def ledger(self, request: web.Request) -> web.Response:
        return web.json_response({"charges": self._ledger.charges()})

    def _replaced(self, request: web.Request, key: str) -> bool:
        term = request.headers.get("Penstock-Term")
        return term is not None and not self._ledger.admits(key, int(term))

    async def _work(self) -> None:
        await asyncio.sleep(self._random.uniform(0, self._work_ms / 1000))


def replaced() -> web.Response:
    return web.json_response({"error": "another payer has taken over"}, status=409)


def die() -> None:
    """As by a power cut: nothing is said, nothing is closed."""
    os.kill(os.getpid(), signal.SIGKILL)


def serve(options: argparse.Namespace) -> None:
    chance = Random(options.seed) if options.seed is not None else Random()
    service = Service(Ledger(options.ledger), options.naive, options.die, options.work_ms, chance)
    app = web.Application()
    app.add_routes(service.routes())
    print(f"payments http://127.0.0.1:{options.port}", flush=True)
    web.run_app(app, host="127.0.0.1", port=options.port, print=None, reuse_address=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8191)
    parser.add_argument("--ledger", default="payments.db", help="an SQLite file")
    parser.add_argument("--die", type=float, default=0.0, help="the chance of dying during a charge")
    parser.add_argument("--work-ms", type=float, default=0.0, help="how long a charge takes at most, before and after")
    parser.add_argument("--naive", action="store_true", help="ignore Idempotency-Key: a repeated request charges again")
    parser.add_argument("--mortal", action="store_true", help="stay dead")
    parser.add_argument("--seed", type=int)
    options = parser.parse_args()
    if options.mortal:
        return serve(options)
    words = [argument for argument in sys.argv[1:] if argument != "--mortal"]
    while (code := subprocess.call([sys.executable, __file__, *words, "--mortal"])) == -signal.SIGKILL:
        print("died, and starts again", flush=True)
    return sys.exit(code)


if __name__ == "__main__":
    main()
