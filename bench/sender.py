"""Sends background load to a stream at a fixed rate, from a process of its own, in NDJSON batches.

It runs until it gets SIGTERM or loses its parent, then prints what it sent as JSON. A server that is too slow for the
rate makes it fall behind, and then the rate that it prints is lower than the one it was asked for.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import signal
import time
from types import FrameType

BATCHES_S = 20
"""Batches per second: 50 events each at 1,000/s, 500 at 10,000/s."""
SENSORS = 1_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("rate", type=int)
    parser.add_argument("--stream", default="readings")
    asked = parser.parse_args()
    sender = Sender(asked.port, asked.stream, asked.rate)
    signal.signal(signal.SIGTERM, sender.stop)
    sender.run()
    print(json.dumps(sender.told()), flush=True)


class Sender:
    """One connection and one schedule."""

    def __init__(self, port: int, stream: str, rate: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        self._path = f"/streams/{stream}"
        self._batch = max(1, rate // BATCHES_S)
        self._random = random.Random(1)
        self._stopped = False
        self._parent = os.getppid()
        self._began = time.monotonic()
        self.accepted = self.failed = 0

    def stop(self, number: int, frame: FrameType | None) -> None:
        self._stopped = True

    def run(self) -> None:
        due = self._began
        while not self._stopped and os.getppid() == self._parent:
            time.sleep(max(0.0, due - time.monotonic()))
            self._send()
            due = max(due + 1 / BATCHES_S, time.monotonic() - 1.0)  # after a long stall: do not make up for all of it

    def told(self) -> dict[str, float]:
        seconds = time.monotonic() - self._began
        return {
            "accepted": self.accepted,
            "failed": self.failed,
            "rate": self.accepted / seconds,
            "cpu_percent": 100 * time.process_time() / seconds,
        }

    def _send(self) -> None:
        headers = {"Content-Type": "application/x-ndjson"}
        try:
            self._connection.request("POST", self._path, self._body(), headers)
            reply = self._connection.getresponse()
            body = json.loads(reply.read())
        except (OSError, http.client.HTTPException):
            self.failed += self._batch
            self._connection.close()
            return
        self.accepted += body.get("accepted", 0) if reply.status == 200 else 0
        self.failed += self._batch - body.get("accepted", 0)

    def _body(self) -> bytes:
        now = time.time_ns() // 1_000_000
        numbers = self._random.choices(range(SENSORS), k=self._batch)
        return "".join(
            f'{{"sensor":"s{n}","kind":"k{n % 5}","region":{n % 50},"value":{n / 8},"at":{now}}}\n' for n in numbers
        ).encode()


if __name__ == "__main__":
    main()
