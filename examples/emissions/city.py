"""A city: cars that pass through its zones, thermometers, and a laboratory that measures one model after the other.

python examples/emissions/city.py --url http://127.0.0.1:8080 --rate 40
"""

import argparse
import json
import math
import time
import urllib.request
from collections import Counter
from collections.abc import Iterable, Iterator
from random import Random
from typing import Any

MODELS = ("beetle", "duck", "mini", "panda", "volvo", "wartburg")
ZONES = ("centre", "harbour", "hill", "station")
BAND, DEFAULT_GRAMS, MINUTE_MS = 5, 180.0, 60_000

Sent = tuple[str, dict[str, Any]]
"""A path of the server, and what is posted there."""


class City:
    """Knows what each zone has emitted in each minute. The same seed and start are the same story."""

    def __init__(self, seed: int, start_ms: int) -> None:
        self._random, self._now_ms = Random(seed), start_ms
        self._passages = 0
        self.cars: Counter[tuple[int, str, str]] = Counter()
        self.celsius: dict[tuple[int, str], list[float]] = {}
        self.factors: dict[tuple[str, int], float] = {}
        self._warmth = {zone: self._random.uniform(-8, 18) for zone in ZONES}

    def happenings(self, step_ms: int) -> Iterator[Sent]:
        """What happens, for ever; time goes on by about `step_ms` with each."""
        while True:
            self._now_ms += self._random.randint(0, 2 * step_ms)
            chance, zone = self._random.random(), self._random.choice(ZONES)
            minute = self._now_ms // MINUTE_MS
            if chance < 0.9:
                self._passages += 1
                model = self._random.choice(MODELS)
                self.cars[minute, zone, model] += 1
                yield (
                    "/streams/passages",
                    {
                        "passage_id": self._passages,
                        "zone": zone,
                        "model": model,
                        "at": self._now_ms,
                    },
                )
            elif chance < 0.97:
                self._warmth[zone] += self._random.uniform(-0.5, 0.5)
                celsius = round(self._warmth[zone], 1)
                self.celsius.setdefault((minute, zone), []).append(celsius)
                yield "/streams/readings", {"zone": zone, "at": self._now_ms, "celsius": celsius}
            else:
                yield "/tables/factors", self._measured()

    def emitted(self, minute: int, zone: str) -> tuple[int, float, int] | None:
        """Cars, grams, and cars for which the default was taken."""
        cars = {model: count for (at, where, model), count in self.cars.items() if (at, where) == (minute, zone)}
        if not cars:
            return None
        read = self.celsius.get((minute, zone))
        band = None if read is None else math.floor(round(sum(read) / len(read), 1) / BAND) * BAND
        grams = {model: None if band is None else self.factors.get((model, band)) for model in cars}
        total = sum(count * (DEFAULT_GRAMS if grams[m] is None else grams[m]) for m, count in cars.items())
        return sum(cars.values()), total, sum(count for m, count in cars.items() if grams[m] is None)

    def minutes(self) -> set[tuple[int, str]]:
        return {(minute, zone) for minute, zone, _ in self.cars}

    def _measured(self) -> dict[str, Any]:
        """A factor that is new, corrected, or withdrawn."""
        model, band = self._random.choice(MODELS), self._random.randrange(-10, 25, BAND)
        if (model, band) in self.factors and self._random.random() < 0.3:
            del self.factors[model, band]
            return {"op": "delete", "key": {"model": model, "band": band}}
        grams = self.factors[model, band] = float(self._random.randint(90, 320))
        return {"model": model, "band": band, "grams": grams}


def send(url: str, happenings: Iterable[Sent]) -> None:
    for path, body in happenings:
        request = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        urllib.request.urlopen(request, timeout=60).close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--rate", type=float, default=40.0, help="happenings per second")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    city = City(options.seed, time.time_ns() // 1_000_000)
    for happening in city.happenings(round(1000 / options.rate)):
        send(options.url, [happening])
        time.sleep(1 / options.rate)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("no more cars")
