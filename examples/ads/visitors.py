"""People who look at pages with ads: some ads are shown all the time, most of them seldom.

python examples/ads/visitors.py --url http://127.0.0.1:8080 --rate 200
"""

import argparse
import json
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

ADS = 1_000
START_MS = 1_767_225_600_000  # 2026


class Visitors:
    """Knows who was shown what. The same seed is the same story."""

    def __init__(self, visitors: int, seed: int, start_ms: int = START_MS, every_ms: float = 0.5) -> None:
        self.counts: Counter[tuple[int, int]] = Counter()
        """By minute and ad."""
        self.seen: dict[int, set[str]] = {}
        """By minute."""
        self._random = Random(seed)
        self._visitors = visitors
        self._start_ms = start_ms
        self._every_ms = every_ms
        self._sent = 0

    def shown(self) -> Iterator[dict[str, Any]]:
        """One ad after the other, for ever. The first round lets every visitor look once."""
        while True:
            number = self._sent
            self._sent += 1
            visitor = number if number < self._visitors else self._random.randrange(self._visitors)
            ad = min(int(self._random.paretovariate(0.8)), ADS) - 1
            at = self._start_ms + int(number * self._every_ms)
            minute = (at - self._start_ms) // 60_000
            self.counts[minute, ad] += 1
            self.seen.setdefault(minute, set()).add(f"visitor {visitor}")
            yield {"shown_id": number, "at": at, "ad": ad, "visitor": f"visitor {visitor}"}

    def of_minute(self, minute: int) -> Counter[int]:
        """How often each ad was shown."""
        return Counter({ad: count for (when, ad), count in self.counts.items() if when == minute})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--visitors", type=int, default=50_000)
    parser.add_argument("--rate", type=float, default=200.0, help="ads per second")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    together = max(1, int(options.rate / 10))
    people = Visitors(options.visitors, options.seed, int(time.time() * 1000), 1000 / options.rate)
    ads = people.shown()
    while True:
        body = "\n".join(json.dumps(next(ads)) for _ in range(together)).encode()
        headers = {"Content-Type": "application/x-ndjson"}
        request = urllib.request.Request(f"{options.url}/streams/shown", body, headers)
        urllib.request.urlopen(request, timeout=60).close()
        time.sleep(together / options.rate)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("nobody looks any more")
