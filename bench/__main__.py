"""The command `python -m bench`: runs the benchmarks that were named, in order, and shows what they found."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import FrameType

from rich.console import Console

from bench import machine, results
from bench.options import Options
from bench.results import Result

NAMES = ("freshness", "ingest", "udp", "publish", "crowd", "fanout", "catchup", "start", "load", "growth", "regrouped")
RESULTS = Path(__file__).parent / "results"
FILE_COLUMNS = 140
"""Width of a table that goes into a file."""


def main(arguments: Sequence[str] | None = None) -> int:
    asked = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, _end)
    console, notes = Console(), Console(stderr=True, highlight=False)
    if not console.is_terminal:
        console.width = FILE_COLUMNS
    options = _options(asked, lambda text: notes.print(text, style="dim"))
    before, done = machine.facts(options.folder), list[Result]()
    for name in asked.names or NAMES:
        notes.print(f"bench {name}", style="bold")
        facts = machine.facts(options.folder)
        result: Result = import_module(f"bench.{name}").run(options)
        results.write(RESULTS / f"{name}.json", [result], facts)
        console.print(results.table(result))
        done.append(result)
    if asked.json:
        results.write(asked.json, done, before)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", type=_name, metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it works")
    parser.add_argument("--json", type=Path, help="write all results into this file too")
    parser.add_argument("--folder", type=Path, help="make data folders in here; default: the system's temporary one")
    parser.add_argument("--seconds", type=float, help="how long each case of freshness and ingest is measured")
    parser.add_argument("--events", type=int, help="events that wait for catchup")
    parser.add_argument("--rows", type=int, help="rows of the view that load brings back")
    parser.add_argument("--rates", type=_numbers, help="freshness: events per second, as 1000,10000")
    parser.add_argument("--flows", type=_numbers, help="freshness: how many flows, as 1,3")
    parser.add_argument("--cases", type=_texts, help="fanout: some of its cases, as same,market")
    parser.add_argument(
        "--log",
        dest="logs",
        type=lambda log: ("sqlite", log),
        choices=[("sqlite", "kafka")],
        metavar="kafka",
        help="freshness, ingest and catchup: also on Kafka, beside the embedded log",
    )
    parser.add_argument("--no-paint", dest="paint", action="store_false", help="freshness: without Chromium")
    return parser


def _options(asked: argparse.Namespace, note: results.Note) -> Options:
    made = Options.quickly(note) if asked.quick else Options(note)
    given = {key: value for key, value in vars(asked).items() if value is not None}
    return made.with_only({key: value for key, value in given.items() if key not in ("names", "json", "quick")})


def _name(text: str) -> str:
    if text not in NAMES:
        raise argparse.ArgumentTypeError(f"'{text}' is none of {', '.join(NAMES)}")
    return text


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _texts(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _end(number: int, frame: FrameType | None) -> None:
    """Leave as after Ctrl-C, so that whatever was started is ended."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
