"""People who follow each other and post, and sometimes think better of it: changes of the two tables of the example.

python examples/timeline/people.py --url http://127.0.0.1:8080 --people 200 --follows 2000 --rate 5
"""

import argparse
import json
import time
import urllib.request
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

WORDS = (
    "rain",
    "bread",
    "trams",
    "jazz",
    "snow",
    "coffee",
    "chess",
    "tulips",
    "boats",
    "moss",
    "owls",
    "soup",
    "kites",
)
START = datetime(2026, 1, 1, tzinfo=UTC)

Change = tuple[str, dict[str, Any]]
"""The name of a table, and a row or a delete as `POST /tables/{table}` takes it."""


class Network:
    """Knows at every moment what each home timeline has to show. The same seed is the same story."""

    def __init__(self, people: int, seed: int) -> None:
        self.people = [f"p{number}" for number in range(people)]
        self.follows: set[tuple[str, str]] = set()
        self.posts: dict[int, dict[str, Any]] = {}
        self._random = Random(seed)
        self._weights = [1 / rank for rank in range(1, people + 1)]
        self._next = 0

    def acquainted(self, follows: int) -> Iterator[Change]:
        """So many follows; a few people are followed by very many."""
        while len(self.follows) < follows:
            pair = (self._anybody(), self._somebody())
            if pair[0] != pair[1] and pair not in self.follows:
                yield self._follow(pair)

    def changes(self) -> Iterator[Change]:
        """What people do, for ever: of twenty things twelve are posts."""
        while True:
            chance = self._random.random()
            if chance < 0.6 or not self.posts or not self.follows:
                yield self._post(self._somebody())
            elif chance < 0.7:
                gone = self._random.choice(sorted(self.posts))
                del self.posts[gone]
                yield "posts", {"op": "delete", "key": {"post_id": gone}}
            elif chance < 0.9:
                yield self._follow((self._anybody(), self._somebody()))
            else:
                reader, author = self._random.choice(sorted(self.follows))
                self.follows.discard((reader, author))
                yield "follows", {"op": "delete", "key": {"reader": reader, "author": author}}

    def timeline(self, reader: str, shown: int = 20) -> list[int]:
        """The posts on a reader's page, newest first."""
        authors = {author for follower, author in self.follows if follower == reader}
        seen = [post for post in self.posts.values() if post["author"] in authors]
        seen.sort(key=lambda post: (post["at"], post["post_id"]), reverse=True)
        return [post["post_id"] for post in seen[:shown]]

    def _anybody(self) -> str:
        return self._random.choice(self.people)

    def _somebody(self) -> str:
        """More likely one of the famous."""
        return self._random.choices(self.people, self._weights)[0]

    def _follow(self, pair: tuple[str, str]) -> Change:
        self.follows.add(pair)
        return "follows", {"reader": pair[0], "author": pair[1]}

    def _post(self, author: str) -> Change:
        self._next += 1
        text = " and ".join(self._random.sample(WORDS, 2))
        at = (START + timedelta(seconds=self._next)).isoformat()
        self.posts[self._next] = {"post_id": self._next, "author": author, "at": at, "text": text}
        return "posts", self.posts[self._next]


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
    parser.add_argument("--people", type=int, default=200)
    parser.add_argument("--follows", type=int, default=2000, help="before the first post")
    parser.add_argument("--rate", type=float, default=5.0, help="changes per second")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    network = Network(options.people, options.seed)
    send(options.url, network.acquainted(options.follows))
    for change in network.changes():
        send(options.url, [change])
        time.sleep(1 / options.rate)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("good night")
