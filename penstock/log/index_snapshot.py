"""Snapshots of a log's index in a topic of its own, so that no new index reads the journal from its beginning.

1. A snapshot is the index as it was at an offset of the journal: its pieces, and behind them a *manifest* with their
   checksum. One without a manifest, because its writer died, does not exist.
2. An index is what the journal up to an offset makes of it, whoever made it. So a snapshot of a writer that was
   replaced meanwhile is as good as any.
3. The two newest are kept, and the journal from the older of the two on.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sqlite3
import tempfile
import zlib
from contextlib import closing, suppress
from pathlib import Path

import msgspec

from penstock.log.logs.kafka_cluster import Cluster

PIECE_BYTES = 4 * 1024**2
_PIECE, _MANIFEST = b"piece", b"manifest"

_log = logging.getLogger(__name__)


class Manifest(msgspec.Struct, frozen=True):
    """What stands behind the pieces of a snapshot."""

    journal: int
    """The offset of the journal up to which it goes."""
    first: int
    """The offset of its first piece in its topic."""
    pieces: int
    sha256: str
    before: int | None = None
    """Where the manifest of the snapshot before it stands."""
    format: int = 1


def store(cluster: Cluster, topic: str, index: Path) -> Manifest:
    """Write the index as it is now; raises what `Cluster.write` raises, and then there is no new one."""
    newest = find(cluster, topic)
    with tempfile.TemporaryDirectory(dir=index.parent, prefix=".snapshot-") as scratch:
        copy = Path(scratch) / "index.db"
        with closing(sqlite3.connect(f"{index.absolute().as_uri()}?mode=ro", uri=True)) as source:
            source.execute("VACUUM INTO ?", (str(copy),))
        with closing(sqlite3.connect(copy)) as made:
            ((noted,),) = made.execute("SELECT value FROM meta WHERE key = 'journal'").fetchall()
        data = zlib.compress(copy.read_bytes(), 1)
    journal = int(msgspec.json.decode(noted)["offset"])
    places: list[int] = []
    for at in range(0, len(data), PIECE_BYTES):
        places += cluster.write([(topic, 0, _PIECE, data[at : at + PIECE_BYTES])])
    before = None if newest is None else newest[0]
    made_of = Manifest(journal, places[0], len(places), hashlib.sha256(data).hexdigest(), before)
    cluster.write([(topic, 0, _MANIFEST, msgspec.json.encode(made_of))])
    return made_of


def renew(cluster: Cluster, topic: str, journal: str, index: Path) -> int:
    """Store the index, and let go of the journal before the snapshot before it, and of older snapshots. Gives up to
    where in the journal the new one goes."""
    cluster.make_topic(topic, 1)
    made = store(cluster, topic, index)
    older = None if made.before is None else find(cluster, topic, made.before + 1)
    if older is not None:
        cluster.drop_records(journal, 0, older[1].journal)
        cluster.drop_records(topic, 0, older[1].first)
    return made.journal


def find(cluster: Cluster, topic: str, before: int | None = None) -> tuple[int, Manifest] | None:
    """The newest snapshot, or the newest before an offset of its topic, and where its manifest stands."""
    at = (cluster.end(topic) if before is None else before) - 1
    while at >= 0:
        record = cluster.get(topic, 0, at)
        if record is None:
            return None
        if record.key == _MANIFEST and record.value is not None:
            return at, msgspec.json.decode(record.value, type=Manifest)
        at -= 1
    return None


def restore(cluster: Cluster, topic: str, index: Path) -> bool:
    """Make an index of the newest snapshot that is whole; False: there is none."""
    found = find(cluster, topic)
    while found is not None:
        data = _data(cluster, topic, found[1])
        if data is not None:
            fresh = index.with_name(f".{index.name}.{os.getpid()}")
            fresh.write_bytes(zlib.decompress(data))
            for name in (f"{index.name}-wal", f"{index.name}-shm"):
                with suppress(FileNotFoundError):
                    index.with_name(name).unlink()
            fresh.replace(index)
            _log.info("the index '%s' begins at a snapshot, at %d of its journal", index, found[1].journal)
            return True
        _log.warning("a snapshot in '%s' is damaged and passed over", topic)
        found = None if found[1].before is None else find(cluster, topic, found[1].before + 1)
    return False


def _data(cluster: Cluster, topic: str, manifest: Manifest) -> bytes | None:
    records = [cluster.get(topic, 0, manifest.first + number) for number in range(manifest.pieces)]
    data = b"".join(record.value or b"" for record in records if record is not None)
    return data if hashlib.sha256(data).hexdigest() == manifest.sha256 else None
