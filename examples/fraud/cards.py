"""People who pay by card, and some payments that should not be: the labels are known.

python examples/fraud/cards.py --url http://127.0.0.1:8080 --rate 50
"""

import argparse
import json
import time
import urllib.request
from random import Random
from typing import Any

START_MS = 1_767_225_600_000  # 2026
HOUR_MS = 3_600_000
MINUTE_MS = 60_000
KINDS = ("ticket", "travel", "velocity")


class Cards:
    """The same seed is the same story: `transactions` in the order in which they happen, `labels` by transaction."""

    def __init__(self, seed: int, cards: int = 1_000, each: int = 100, planted: int = 100) -> None:
        self._random = Random(seed)
        self.labels: dict[int, str] = {}
        """What is wrong with a transaction, where something is."""
        victims = self._random.sample(range(cards), 3 * planted) if 3 * planted <= cards else None
        kinds = {} if victims is None else {card: KINDS[at % 3] for at, card in enumerate(victims)}
        rows = [row for card in range(cards) for row in self._story(card, each, kinds.get(card))]
        rows.sort(key=lambda row: (row["at"], row["card"]))
        self.transactions: list[dict[str, Any]] = []
        for number, row in enumerate(rows):
            label = row.pop("label")
            if label is not None:
                self.labels[number] = label
            self.transactions.append({"id": number, **row})

    def _story(self, card: int, each: int, kind: str | None) -> list[dict[str, Any]]:
        """One card: about a payment every 12 hours, near home; a victim has one that is wrong, late in its story."""
        dice = self._random
        lat, lon, usual = dice.uniform(-50, 50), dice.uniform(-170, 170), dice.uniform(5, 80)
        at, rows = START_MS + dice.randrange(12 * HOUR_MS), []

        def pay(label: str | None = None, times: float = 1.0, away: float = 0.0) -> None:
            rows.append(
                {
                    "card": f"card-{card}",
                    "amount": round(usual * dice.uniform(0.6, 1.4) * times, 2),
                    "lat": round(lat + dice.uniform(-0.05, 0.05) + away, 4),
                    "lon": round(lon + dice.uniform(-0.05, 0.05), 4),
                    "at": at,
                    "label": label,
                }
            )

        wrong = dice.randrange(each // 2, each - 7)
        while len(rows) < each:
            at += dice.randrange(8 * HOUR_MS, 16 * HOUR_MS)
            if len(rows) < wrong or kind is None:
                pay()
            elif kind == "ticket":
                pay(kind, times=12)
                kind = None
            elif kind == "travel":
                pay()
                at += dice.randrange(5 * MINUTE_MS, 60 * MINUTE_MS)
                pay(kind, away=30.0)  # 3,300 km in less than an hour
                kind = None
            else:
                for _ in range(5):
                    pay()
                    at += dice.randrange(MINUTE_MS // 2, MINUTE_MS)
                pay(kind)
                kind = None
        return rows


def reference(transactions: list[dict[str, Any]]) -> dict[int, list[str]]:
    """What each transaction is blocked for, by a plain loop over all of them: the rules once more, and nothing else."""
    from app import FASTEST_KM_H, km

    seen: dict[str, list[dict[str, Any]]] = {}
    found = {}
    for now in transactions:
        before = seen.setdefault(now["card"], [])
        wrong = []
        if len(before) >= 9:
            mean = 0.0
            for number, one in enumerate(before, 1):
                mean += (one["amount"] - mean) / number
            if now["amount"] > 5 * mean:
                wrong.append("ticket")
        if before:
            hours = abs(now["at"] - before[-1]["at"]) / HOUR_MS
            if km(before[-1]["lat"], before[-1]["lon"], now["lat"], now["lon"]) > FASTEST_KM_H * hours:
                wrong.append("travel")
        if sum(one["at"] > now["at"] - 10 * MINUTE_MS for one in before) + 1 > 5:
            wrong.append("velocity")
        before.append(now)
        found[now["id"]] = wrong
    return found


def quality(blocked: set[int], labels: dict[int, str]) -> tuple[float, float]:
    """Precision and recall."""
    right = len(blocked & labels.keys())
    return right / max(1, len(blocked)), right / max(1, len(labels))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--rate", type=float, default=50.0, help="transactions a second")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    cards = Cards(options.seed)
    for row in cards.transactions:
        body = json.dumps(row).encode()
        request = urllib.request.Request(
            f"{options.url}/streams/transactions", body, {"Content-Type": "application/json"}
        )
        urllib.request.urlopen(request).close()
        time.sleep(1 / options.rate)


if __name__ == "__main__":
    main()
