"""Vehicles on 40 roads, and four jams: where and when each begins and ends is known.

python examples/traffic/vehicles.py --url http://127.0.0.1:8080 --rate 40
"""

import argparse
import json
import time
import urllib.request
from random import Random
from typing import Any

START_MS = 1_767_225_600_000  # 2026
MINUTE_MS = 60_000
ROADS = 40


class Vehicles:
    """The same seed is the same story: `reports` in the order of time, and `jams`, the road and the times of each."""

    def __init__(self, seed: int, minutes: int = 40, jams: int = 4, start_ms: int = START_MS) -> None:
        dice = Random(seed)
        self.jams: dict[str, tuple[int, int]] = {}
        """By road: when its third slow report comes, and when the first vehicle passes quickly again."""
        rows: list[dict[str, Any]] = []
        jammed = set(dice.sample(range(ROADS), jams))
        for road in range(ROADS):
            begins = start_ms + dice.randrange(5, minutes - 20) * MINUTE_MS if road in jammed else None
            rows += self._road(dice, f"road-{road}", start_ms, start_ms + minutes * MINUTE_MS, begins)
        self.reports = sorted(rows, key=lambda row: (row["at"], row["road"]))

    def _road(self, dice: Random, road: str, at: int, end: int, begins: int | None) -> list[dict[str, Any]]:
        """One road: quick vehicles, now and then a single slow one, and a jam of its own time."""
        rows: list[dict[str, Any]] = []

        def report(speed: float) -> None:
            rows.append({"road": road, "vehicle": f"v{dice.randrange(500)}", "speed": round(speed, 1), "at": at})

        while at < end:
            at += dice.randrange(15_000, 45_000)
            if begins is not None and at >= begins:
                for speed in (18.0, 14.0, 9.0):
                    report(speed + dice.uniform(0, 1))
                    third, at = at, at + dice.randrange(20_000, 60_000)
                for _ in range(4):
                    report(dice.uniform(20.5, 30))
                    at += dice.randrange(20_000, 60_000)
                self.jams[road], begins = (third, at), None
            elif dice.random() < 0.02:
                report(dice.uniform(15, 19))
                at += 6 * MINUTE_MS  # alone: the next one comes when this one counts no more
            report(dice.uniform(50, 90))
        return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--rate", type=float, default=40.0, help="reports a second")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    for row in Vehicles(options.seed, minutes=600).reports:
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{options.url}/streams/reports", json.dumps(row).encode(), headers)
        urllib.request.urlopen(request).close()
        time.sleep(1 / options.rate)


if __name__ == "__main__":
    main()
