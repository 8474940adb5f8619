"""A town with vending machines: people walk, buy, and want something else; machines run out and are filled again.

python examples/vending/town.py --url http://127.0.0.1:8080 --rate 10
"""

import argparse
import json
import math
import time
import urllib.request
from collections.abc import Iterable, Iterator
from random import Random
from typing import Any

PRODUCTS = ("water", "crisps", "gum", "coffee")
CELL_M = 500
FULL = 3

Change = tuple[str, dict[str, Any]]
"""The name of a table, and a row of it or a delete."""


class Town:
    """Knows at every moment which machine is the nearest for whom. The same seed is the same story."""

    def __init__(self, machines: int, people: int, size_m: int, seed: int) -> None:
        self._random, self._size_m = Random(seed), size_m
        self.machines = {f"m{number}": self._place() for number in range(machines)}
        self.stock = {(machine, product): FULL for machine in self.machines for product in PRODUCTS}
        self.people = {f"p{number}": (self._random.choice(PRODUCTS), *self._place()) for number in range(people)}

    def begin(self) -> Iterator[Change]:
        """The town in the morning."""
        for machine, (east, north) in self.machines.items():
            yield "machines", {"machine": machine, "east": east, "north": north}
        yield from (self._stocked(*place) for place in self.stock)
        yield from map(self._person, self.people)

    def changes(self) -> Iterator[Change]:
        """What happens, for ever."""
        while True:
            chance, person = self._random.random(), self._random.choice(sorted(self.people))
            wants, east, north = self.people[person]
            found = self.nearest(person)
            if chance < 0.6 or found is None:
                east, north = (self._walked(metres) for metres in (east, north))
                self.people[person] = (wants, east, north)
                yield self._person(person)
            elif chance < 0.9:
                self.stock[found[0], wants] -= 1
                self.people[person] = (self._random.choice(PRODUCTS), east, north)
                yield self._stocked(found[0], wants)
                yield self._person(person)
            elif chance < 0.97:
                empty = [place for place, pieces in self.stock.items() if not pieces]
                for place in empty[:2]:
                    self.stock[place] = FULL
                    yield self._stocked(*place)
            else:
                machine = self._random.choice(sorted(self.machines))
                east, north = self.machines[machine] = self._place()  # somebody has carried it elsewhere
                yield "machines", {"machine": machine, "east": east, "north": north}

    def nearest(self, person: str) -> tuple[str, float] | None:
        """The machine, and how many metres away it is."""
        wants, east, north = self.people[person]
        close = [
            (float(round(math.hypot(e - east, n - north))), machine)
            for machine, (e, n) in self.machines.items()
            if self.stock[machine, wants] and self._near(e, east) and self._near(n, north)
        ]
        return (min(close)[1], min(close)[0]) if close else None

    def _near(self, one: int, other: int) -> bool:
        return abs(one // CELL_M - other // CELL_M) <= 1

    def _walked(self, metres: int) -> int:
        """A little further, but not out of town."""
        return max(0, min(self._size_m, metres + self._random.randint(-80, 80)))

    def _place(self) -> tuple[int, int]:
        return self._random.randint(0, self._size_m), self._random.randint(0, self._size_m)

    def _stocked(self, machine: str, product: str) -> Change:
        return "stock", {"machine": machine, "product": product, "pieces": self.stock[machine, product]}

    def _person(self, person: str) -> Change:
        wants, east, north = self.people[person]
        return "people", {"person": person, "wants": wants, "east": east, "north": north}


def send(url: str, changes: Iterable[Change]) -> None:
    """All of them: one commit for each table."""
    tables: dict[str, list[bytes]] = {}
    for table, change in changes:
        tables.setdefault(table, []).append(json.dumps(change).encode())
    for table, lines in tables.items():
        request = urllib.request.Request(
            f"{url}/tables/{table}", b"\n".join(lines), {"Content-Type": "application/x-ndjson"}
        )
        urllib.request.urlopen(request, timeout=60).close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--machines", type=int, default=40)
    parser.add_argument("--people", type=int, default=100)
    parser.add_argument("--size", type=int, default=4000, help="metres from one end of the town to the other")
    parser.add_argument("--rate", type=float, default=10.0, help="changes per second")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    town = Town(options.machines, options.people, options.size, options.seed)
    send(options.url, town.begin())
    for change in town.changes():
        send(options.url, [change])
        time.sleep(1 / options.rate)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("the town sleeps")
