"""Customers who fill their carts, change their minds, and buy: changes of the carts, and orders.

python examples/shop/customers.py --url http://127.0.0.1:8080 --rate 10
"""

import argparse
import csv
import json
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from random import Random
from typing import Any

TASTES = (
    ("bread", "butter", "cheese", "jam"),
    ("coffee", "filters", "milk"),
    ("tea", "honey", "milk"),
    ("pasta", "tomatoes", "basil", "cheese"),
)
START_MS = 1_767_225_600_000  # 2026

Sent = tuple[str, Any]
"""A path of the server, and what is posted there."""


class Market:
    """Knows at every moment what lies in the carts, and what was bought with what. The same seed is the same story."""

    def __init__(self, customers: int, seed: int) -> None:
        self.carts: dict[tuple[str, str], int] = {}
        self.pairs: Counter[tuple[str, str]] = Counter()
        self._random = Random(seed)
        self._customers = [f"c{number}" for number in range(customers)]
        self._tastes = {customer: self._random.choice(TASTES) for customer in self._customers}
        self._orders = 0

    def moves(self) -> Iterator[list[Sent]]:
        """What one customer after the other does, for ever."""
        while True:
            customer = self._random.choice(self._customers)
            inside = sorted(product for owner, product in self.carts if owner == customer)
            chance = self._random.random()
            if len(inside) > 1 and chance < 0.4:
                yield [self._order(inside), ("/tables/carts", [self._taken_out(customer, p) for p in inside])]
            elif inside and chance < 0.5:
                yield [("/tables/carts", [self._taken_out(customer, self._random.choice(inside))])]
            else:
                yield [("/tables/carts", [self._put_in(customer)])]

    def in_carts(self) -> dict[str, tuple[int, int]]:
        """By product: in how many carts, and how many pieces."""
        products = {product for _, product in self.carts}
        pieces = {p: [count for (_, product), count in self.carts.items() if product == p] for p in products}
        return {product: (len(counts), sum(counts)) for product, counts in pieces.items()}

    def together(self, product: str, shown: int = 3) -> list[str]:
        """What is bought with it most often."""
        others = {other: count for (one, other), count in self.pairs.items() if one == product}
        return sorted(others, key=lambda other: (-others[other], other))[:shown]

    def _put_in(self, customer: str) -> dict[str, Any]:
        product = self._random.choice(self._tastes[customer] if self._random.random() < 0.9 else TASTES[0])
        quantity = self.carts[customer, product] = self.carts.get((customer, product), 0) + 1
        return {"customer": customer, "product": product, "quantity": quantity}

    def _taken_out(self, customer: str, product: str) -> dict[str, Any]:
        del self.carts[customer, product]
        return {"op": "delete", "key": {"customer": customer, "product": product}}

    def _order(self, products: list[str]) -> Sent:
        self._orders += 1
        self.pairs.update(permutations(products, 2))
        return "/streams/orders", {"order_id": self._orders, "at": START_MS + self._orders * 1000, "products": products}


def catalogue() -> dict[str, dict[str, Any]]:
    """The products, as the file has them."""
    with Path(__file__).with_name("products.csv").open(newline="") as file:
        return {row["product"]: {**row, "price": float(row["price"])} for row in csv.DictReader(file)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--customers", type=int, default=100)
    parser.add_argument("--rate", type=float, default=10.0, help="moves per second")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    for move in Market(options.customers, options.seed).moves():
        for path, body in move:
            request = urllib.request.Request(
                options.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
            )
            urllib.request.urlopen(request, timeout=60).close()
        time.sleep(1 / options.rate)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("the shop is closed")
