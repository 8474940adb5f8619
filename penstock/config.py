"""Options with their units, limits with their reasons, and the one place that knows the data folder's layout."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

from penstock.errors import DeclarationError

_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*")
_UNITS_US = {
    "us": 1,
    "microsecond": 1,
    "ms": 1_000,
    "millisecond": 1_000,
    "s": 1_000_000,
    "second": 1_000_000,
    "m": 60_000_000,
    "min": 60_000_000,
    "minute": 60_000_000,
    "h": 3_600_000_000,
    "hour": 3_600_000_000,
    "d": 86_400_000_000,
    "day": 86_400_000_000,
    "w": 604_800_000_000,
    "week": 604_800_000_000,
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(b|kb|kib|mb|mib|gb|gib|tb|tib)\s*", re.IGNORECASE)
_UNITS_BYTES = {
    "b": 1,
    "kb": 1000,
    "kib": 1024,
    "mb": 1000**2,
    "mib": 1024**2,
    "gb": 1000**3,
    "gib": 1024**3,
    "tb": 1000**4,
    "tib": 1024**4,
}


def duration_us(text: str | timedelta) -> int:
    """A duration in microseconds.

    >>> duration_us("10 minutes")
    600000000
    """
    if isinstance(text, timedelta) and text >= timedelta(0):
        return round(text.total_seconds() * 1_000_000)
    match = _DURATION.fullmatch(text.lower()) if isinstance(text, str) else None
    unit = match and (_UNITS_US.get(match[2]) or _UNITS_US.get(match[2].removesuffix("s")))
    if not match or not unit:
        raise DeclarationError(
            f"'{text}' is not a duration", hint="write a number and a unit: '10 minutes', '1 hour', '500 ms'"
        )
    return round(float(match[1]) * unit)


MIN_IDLE_US = 100_000
"""A stream is silent after this long at least: each tick is a commit with an fsync."""
WHOLE_ROWS = 100_000
"""Rows of its inputs up to which a view without units is computed whenever one of them changes: about a second."""
_ROWS = re.compile(r"^([0-9][0-9_,]*|[0-9]+\.[0-9]+)\s*(thousand|million)?\s*rows?$")


def rows_count(given: int | str) -> int:
    """How many rows a number or a text such as `1 million rows` means.

    >>> rows_count("1 million rows"), rows_count("250,000 rows"), rows_count(5_000)
    (1000000, 250000, 5000)
    """
    if isinstance(given, int) and not isinstance(given, bool) and given > 0:
        return given
    match = _ROWS.match(given.strip()) if isinstance(given, str) else None
    if match is None:
        raise DeclarationError(f"{given!r} is no number of rows", hint='write "1 million rows", or a number above 0')
    number = float(match[1].replace(",", "").replace("_", ""))
    return int(number * {"thousand": 1_000, "million": 1_000_000, None: 1}[match[2]])


def size_bytes(text: str) -> int | None:
    """A size in bytes, or None when the text is not a size.

    >>> size_bytes("64 MiB")
    67108864
    """
    match = _SIZE.fullmatch(text)
    return round(float(match[1]) * _UNITS_BYTES[match[2].lower()]) if match else None


@dataclass(frozen=True)
class Limits:
    """What the edge takes at most, so that one sender cannot take all of it."""

    body_bytes: int = 16 * 1024**2
    """A request's body, after decompression."""
    event_bytes: int = 1024**2
    """One event's JSON."""
    nesting: int = 64
    """How deep an event's JSON may nest; deeper is an attack or a mistake."""
    unwritten_bytes: int = 128 * 1024**2
    """Bodies that wait for the log; above it senders get 503. One account may hold half of it."""
    unwritten_events: int = 1_000_000
    """Events in these bodies: each is a few objects, whatever its bytes, so that a million take about 1 GB."""
    busy_bytes: int = 1024**2
    """Bodies that are judged and written at one time; behind them accounts take turns. About 20 ms of work."""
    shed_above: float = 0.5
    """The part of `unwritten_bytes` above which streams with overload="shed" begin to drop."""
    connections: int = 15_000
    """Open at one time, if the process may have as many files; each costs about 15 kB."""
    connections_per_address: int = 10_000
    """A proxy in front needs many; no address may take all."""
    idle_s: float = 75.0
    """How long a connection may wait for its next request: longer than proxies and browsers keep theirs."""
    head_s: float = 10.0
    """From the first byte of a request's head to its last."""
    body_pause_s: float = 10.0
    """A body that does not grow for so long is given up: a phone in a tunnel is back by then, or comes back later."""
    body_bytes_s: int = 1_000
    """What a body must bring per second, over its first 30 seconds and then over all of them: slower than any modem."""
    publish_window: int = 256
    """Messages on a publishing socket that wait for their ack."""
    publish_bytes: int = 4 * 1024**2
    """The longest message on a publishing socket, and what may wait for acks on it together."""
    publish_grace_s: float = 10.0
    """How long a client that sends beyond its window is made to wait before it is closed."""
    udp_bytes: int = 16 * 1024**2
    """Datagrams that wait to be judged; above it they are dropped and counted as shed."""
    wait_s: float = 60.0
    """The longest `wait=` a request may ask for."""
    subscriber_bytes: int = 1024**2
    """What waits for one slow subscriber; what comes then is merged until it has read, or it is cut."""
    subscriber_stall_s: float = 2.0
    """A subscriber that has not read what waits for so long is told how far behind it is, once it reads."""
    subscriber_cut_s: float = 60.0
    """And after so long it is cut; it can resume from its position."""
    subscriber_keep_s: float = 30 * 86_400.0
    """How long the position of a named subscription is remembered after it was last used."""
    subscriber_names: int = 1_000
    """Named subscriptions of one credential."""
    snapshot_part_rows: int = 5_000
    """Rows in one part of a large snapshot: about 1 MB, and 5 ms of encoding."""
    read_events: int = 1_000
    """Events in one reply of `GET /streams/{stream}` unless `limit` says otherwise."""
    read_events_most: int = 10_000
    view_bytes: int = 2 * 1024**3
    """Memory budget of one view; above it the view stops growing, says so, and answers 507."""
    history_bytes: int = 64 * 1024**2
    """Least size of the changes that a view keeps for resuming subscribers."""
    history_us: int = 600_000_000
    """Least age of the changes that a view keeps for resuming subscribers, up to `history_bytes_most`."""
    history_bytes_most: int = 512 * 1024**2


def sqlite_place(path: Path) -> str:
    """The place of a log that is an SQLite file.

    >>> sqlite_place(Path("/data/my shop/edge.db"))
    'sqlite:///data/my%20shop/edge.db'
    """
    return "sqlite" + path.absolute().as_uri().removeprefix("file")


@dataclass(frozen=True)
class Folder:
    """The data folder of one app. Whoever wants a path asks here."""

    log_names: ClassVar[frozenset[str]] = frozenset({"edge.db", "flows.db"})
    names: ClassVar[frozenset[str]] = log_names | {
        "checkpoints",
        "copied",
        "index",
        "inbox",
        "kafka",
        "logs",
        "ordered",
        "run",
        "scratch",
        "tls",
        "run.lock",
        "edge.lock",
        "flows.lock",
        "lost+found",
    }
    """What a data folder may hold."""
    root: Path
    log: str | None = None
    """The place below which the app's logs lie; None: they are files of this folder."""
    shared: Path | None = None
    """Where Spark's checkpoints lie, if not here: a path that the driver and all workers see."""

    @property
    def edge_log(self) -> str:
        """The place of the log that the edge writes; `log/opening.py` opens it."""
        return self._log("edge")

    @property
    def flows_log(self) -> str:
        """The place of the log that the flows write."""
        return self._log("flows")

    def _log(self, name: str) -> str:
        if self.log is None:
            return sqlite_place(self.root / f"{name}.db")
        return f"{self.log}/{name}?index={quote(str(self.index / f'{name}.db'))}"

    @property
    def index(self) -> Path:
        """Where a log that lies elsewhere keeps what it knows of itself; derived, and made anew where it is missing."""
        return self.root / "index"

    @property
    def kafka(self) -> Path:
        """What a broker of this folder's own keeps (`--log kafka`): the log itself, not derived from anything."""
        return self.root / "kafka"

    @property
    def kafka_lock(self) -> Path:
        """Held by Kafka itself."""
        return self.kafka / "log" / ".lock"

    @property
    def checkpoints(self) -> Path:
        return self.shared or self.root / "checkpoints"

    @property
    def held(self) -> Path:
        """Rows that regrouped views are computed from: derived from the log, and filled again where it is missing."""
        return self.root / "held.db"

    @property
    def ordered(self) -> Path:
        """The states of ordered flows, a file each: derived from the log, and filled again where one is missing."""
        return self.root / "ordered"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def lock(self) -> Path:
        """Held by the supervisor as long as it runs; holds who it is."""
        return self.root / "run.lock"

    @property
    def edge_lock(self) -> Path:
        return self.root / "edge.lock"

    @property
    def flows_lock(self) -> Path:
        """Held inside the JVM, because after a kill of the Python driver the JVM lives on for a moment."""
        return self.root / "flows.lock"

    @property
    def copy_lock(self) -> Path:
        """Held by `penstock export` while queries stand still for it."""
        return self.run / "copy.lock"

    @property
    def copy_paused(self) -> Path:
        """There while they do."""
        return self.run / "copy.paused"

    @property
    def inbox(self) -> Path:
        """Where a command leaves what only the edge may write to its log; for its owner's eyes only."""
        return self.root / "inbox"

    @property
    def tls(self) -> Path:
        """A self-made certificate and its key; for its owner's eyes only."""
        return self.root / "tls"

    @property
    def run(self) -> Path:
        """Small files by which processes tell each other of themselves, and feeds for Spark's workers."""
        return self.root / "run"

    @property
    def feeds(self) -> Path:
        """What a relation of Spark needs to read one stream, a file each."""
        return self.run / "feeds"

    @property
    def cuts(self) -> Path:
        """Where batches of views that meet downstream end, a file for each stream; not durable."""
        return self.run / "cuts"

    @property
    def scratch(self) -> Path:
        """What Spark writes for as long as it runs, where nothing may be executed in the folder for temporary files."""
        return self.root / "scratch"
