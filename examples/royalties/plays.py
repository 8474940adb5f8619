"""People who listen to music: sends plays to the royalties example, some songs far more often than others.

python examples/royalties/plays.py --url http://127.0.0.1:8080 --rate 20
"""

import argparse
import time
import uuid
from random import Random

from penstock.client import Producer

SONGS = [f"song-{number}" for number in range(1, 41)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--rate", type=float, default=20.0, help="plays per second")
    options = parser.parse_args()
    chance = Random()
    weights = [1 / rank for rank in range(1, len(SONGS) + 1)]
    with Producer(options.url, "plays") as plays:
        while True:
            (song,) = chance.choices(SONGS, weights)
            listener = f"listener-{chance.randint(1, 500)}"
            at = time.time_ns() // 1_000_000
            plays.send({"play_id": uuid.uuid4().hex, "song": song, "listener": listener, "at": at})
            time.sleep(chance.expovariate(options.rate))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("enough music")
