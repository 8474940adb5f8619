"""People who search, and click on some of what they find: at once, late, or never.

python examples/clicks/surfers.py --url http://127.0.0.1:8080 --rate 10
"""

import argparse
import json
import time
import urllib.request
from collections.abc import Iterator
from random import Random
from typing import Any

WORDS = ("weather", "trains", "recipes", "news", "maps")
URLS = tuple(f"/{word}/{page}" for word in WORDS for page in ("a", "b", "c"))
START_MS = 1_767_225_600_000  # 2026
SOON_MS = 10 * 60_000
DAY_MS = 86_400_000

Sent = tuple[str, Any]
"""A path of the server, and what is posted there."""


class Surfers:
    """Knows at every moment what was shown and clicked. The same seed is the same story."""

    def __init__(self, seed: int, start_ms: int = START_MS) -> None:
        self.searches: dict[int, dict[str, Any]] = {}
        self.clicks: list[dict[str, Any]] = []
        self._random = Random(seed)
        self._now_ms = start_ms

    def moves(self) -> Iterator[Sent]:
        """Searches and clicks, for ever."""
        while True:
            self._now_ms += self._random.randrange(120_000)
            if self.searches and self._random.random() < 0.4:
                yield "/streams/clicks", self._clicked()
            else:
                yield "/streams/searches", self._searched()

    def answered(self) -> set[tuple[int, str]]:
        """Searches and the URLs that were clicked soon."""
        return {
            (click["search_id"], click["url"])
            for click in self.clicks
            if 0 <= click["at"] - self.searches[click["search_id"]]["at"] <= SOON_MS
        }

    def rates(self) -> dict[str, tuple[int, int]]:
        """By URL: how often it was shown in the last day, and clicked."""
        answered, found = self.answered(), dict[str, tuple[int, int]]()
        for search in self._counting():
            for url in search["urls"]:
                shown, clicks = found.get(url, (0, 0))
                found[url] = shown + 1, clicks + ((search["search_id"], url) in answered)
        return found

    def unclicked(self) -> set[int]:
        answered = {search for search, _ in self.answered()}
        return {search["search_id"] for search in self._counting()} - answered

    def _counting(self) -> list[dict[str, Any]]:
        newest = max(search["at"] for search in self.searches.values())
        return [search for search in self.searches.values() if search["at"] >= newest - DAY_MS]

    def _searched(self) -> dict[str, Any]:
        words = self._random.choice(WORDS)
        urls = self._random.sample([url for url in URLS if words in url], self._random.randint(1, 3))
        search = {"search_id": len(self.searches), "at": self._now_ms, "words": words, "urls": urls}
        self.searches[search["search_id"]] = search
        return search

    def _clicked(self) -> dict[str, Any]:
        search = self.searches[self._random.choice(sorted(self.searches)[-12:])]
        url = self._random.choice(search["urls"])
        click = {"click_id": len(self.clicks), "at": self._now_ms, "search_id": search["search_id"], "url": url}
        self.clicks.append(click)
        return click


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--rate", type=float, default=10.0, help="searches and clicks per second")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    for path, body in Surfers(options.seed).moves():
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(options.url + path, json.dumps(body).encode(), headers)
        urllib.request.urlopen(request, timeout=60).close()
        time.sleep(1 / options.rate)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("nobody searches any more")
