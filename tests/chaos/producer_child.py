"""A program that sends until it is killed, and says on stdout what it was told: `stored n`, `taken n`, `failed n ...`.

python -m tests.chaos.producer_child URL FOLDER FIRST    (ends well at SIGTERM, after everything was answered)
"""

from __future__ import annotations

import signal
import sys
import time
from collections import deque
from pathlib import Path
from threading import Event

from penstock.client import Handle, Producer


def main(url: str, folder: Path, first: int) -> None:
    end = Event()
    signal.signal(signal.SIGTERM, lambda *_: end.set())
    waiting: deque[tuple[int, Handle]] = deque()
    options = {"batch_events": 20, "linger_ms": 2, "timeout_s": 0.8, "backoff_most_s": 0.3, "queue_events": 2000}
    with Producer(url, "steps", folder=folder, **options) as producer:  # type: ignore[arg-type]
        say("open", first)
        n = first
        while not end.is_set():
            waiting.append((n, producer.send({"n": n})))
            say("stored", n)
            n += 1
            report(waiting)
            time.sleep(0.002)
        producer.flush(60)
        report(waiting)
        say("drained", n)


def report(waiting: deque[tuple[int, Handle]]) -> None:
    while waiting and waiting[0][1].done():
        n, handle = waiting.popleft()
        try:
            handle.result(0)
            say("taken", n)
        except Exception as error:
            say("failed", n, repr(error))


def say(*words: object) -> None:
    print(*words, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
