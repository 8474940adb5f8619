"""Pays each royalty once, whoever dies in the middle of it.

    python examples/royalties/pay.py --url http://127.0.0.1:8080 --payments http://127.0.0.1:8191 --store pay.db

Start it on two machines with the same `--store postgresql://...` and `--standby`: one pays, the other takes over when
the first is gone.
"""

import argparse
import json
import logging
import signal
import urllib.error
import urllib.request
from collections.abc import Callable
from decimal import Decimal
from threading import Event
from typing import Any
from urllib.parse import quote

from penstock.client import Client
from penstock.client.processing import NOT_APPLIED, Call, Context, KeyChange


def payer(payments: str) -> Callable[[KeyChange, Context], None]:
    """The handler: it makes the same call in each run, out of nothing but the change."""

    def pay(change: KeyChange, ctx: Context) -> None:
        assert change.row is not None  # on="upserts"
        paid = Decimal(change.before["amount"]) if change.before else Decimal(0)
        due = Decimal(change.row["amount"]) - paid  # after a rebuild with another rate: what is missing
        if due > 0:
            reason = f"{change.row['plays']} plays from {change.row['window']['start']}"
            ctx.call(f"{payments}/charges", {"account": change.row["song"], "amount": str(due), "reason": reason})

    return pay


def asker(payments: str) -> Callable[[Call], Any]:
    """Whether a charge that nobody answered was made: the service knows it by the call's key."""

    def confirm(call: Call) -> Any:
        term = {"Penstock-Term": str(call.term)}  # from now on the service refuses what a replaced payer still sends
        request = urllib.request.Request(f"{payments}/charges/{quote(call.key)}", headers=term)
        try:
            with urllib.request.urlopen(request, timeout=5) as reply:
                return json.load(reply)
        except urllib.error.HTTPError as error:
            with error:
                return NOT_APPLIED if error.code == 404 else None

    return confirm


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--payments", default="http://127.0.0.1:8191")
    parser.add_argument("--store", default="pay.db", help="a file, or postgresql://...")
    parser.add_argument("--standby", action="store_true", help="wait while another machine pays")
    parser.add_argument("--settle-s", type=float, default=1.0)
    parser.add_argument("--lease-s", type=float, default=15.0)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    stop = Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with Client(options.url) as client:
        print("paying", flush=True)
        done = client.process(
            "royalties",
            payer(options.payments),
            name="pay",
            store=options.store,
            on="upserts",
            confirm=asker(options.payments),
            standby=options.standby,
            settle_s=options.settle_s,
            lease_s=options.lease_s,
            backoff_most_s=5.0,
            stop=stop,
        )
    print(f"stopped with {done.waiting} waiting", flush=True)


if __name__ == "__main__":
    main()
