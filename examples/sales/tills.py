"""Tills that sell, and an office that announces rates, ahead of time or late, and corrects what it announced.

python examples/sales/tills.py --url http://127.0.0.1:8080 --rate 10
"""

import argparse
import json
import time
import urllib.request
from collections.abc import Iterator
from decimal import ROUND_HALF_UP, Decimal
from random import Random
from typing import Any

COUNTRIES = ("dk", "fi", "no", "se")
START_MS = 1_767_225_600_000  # 2026
DAY_MS = 86_400_000
CENT = Decimal("0.01")

Sent = tuple[str, Any]
"""A path of the server, and what is posted there."""


class Tills:
    """Knows at every moment what each sale is taxed with. The same seed is the same story."""

    def __init__(self, seed: int) -> None:
        self.sales: list[dict[str, Any]] = []
        self.rates: list[dict[str, Any]] = []
        """In the order in which they were announced."""
        self._random = Random(seed)
        self._now_ms = START_MS

    def moves(self) -> Iterator[Sent]:
        """Sales and rates, for ever. Time goes by: the story of a month is told in a few hundred moves."""
        while True:
            self._now_ms += self._random.randrange(DAY_MS // 4)
            if self._random.random() < 0.15:
                yield "/tables/rates", [self._announced()]
            else:
                yield "/streams/sales", [self._sold() for _ in range(self._random.randint(1, 3))]

    def percent(self, sale: dict[str, Any]) -> Decimal | None:
        """The rate of a sale: the latest at or before it, of equal ones the one that was announced last."""
        known = [rate for rate in self.rates if rate["country"] == sale["country"] and rate["since"] <= sale["at"]]
        best = max(enumerate(known), key=lambda numbered: (numbered[1]["since"], numbered[0]), default=None)
        return None if best is None else Decimal(best[1]["percent"])

    def owed(self) -> dict[tuple[str, Decimal], tuple[int, Decimal]]:
        """By country and rate: how many sales, and the tax."""
        found: dict[tuple[str, Decimal], tuple[int, Decimal]] = {}
        for sale in self.sales:
            percent = self.percent(sale)
            if percent is not None:
                count, tax = found.get((sale["country"], percent), (0, Decimal(0)))
                own = (Decimal(sale["amount"]) * percent / 100).quantize(CENT, ROUND_HALF_UP)
                found[sale["country"], percent] = count + 1, tax + own
        return found

    def _announced(self) -> dict[str, Any]:
        """A rate from a day on, a little ahead or behind; now and then one for a day that has one already."""
        country = self._random.choice(COUNTRIES)
        own = [rate["since"] for rate in self.rates if rate["country"] == country]
        since = self._now_ms // DAY_MS * DAY_MS + self._random.randint(-5, 3) * DAY_MS
        if own and self._random.random() < 0.3:
            since = self._random.choice(own)
        self.rates.append({"country": country, "since": since, "percent": f"{self._random.randint(5, 30)}.00"})
        return self.rates[-1]

    def _sold(self) -> dict[str, Any]:
        at = self._now_ms - self._random.randrange(2 * DAY_MS)
        amount = f"{self._random.randint(100, 99_999) / 100:.2f}"
        sale = {"sale_id": len(self.sales), "at": at, "country": self._random.choice(COUNTRIES), "amount": amount}
        self.sales.append(sale)
        return sale


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--rate", type=float, default=10.0, help="moves per second")
    parser.add_argument("--moves", type=int, default=400, help="how many; the story then ends before today")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    for _, (path, body) in zip(range(options.moves), Tills(options.seed).moves(), strict=False):
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(options.url + path, json.dumps(body).encode(), headers)
        urllib.request.urlopen(request, timeout=60).close()
        time.sleep(1 / options.rate)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("the tills are closed")
