"""The folder of a producer: what it holds after any end, who may open it, and what happens when it is full."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from scripted_door import ScriptedDoor

from penstock.client import Producer
from penstock.client.batch import BatchNumber
from penstock.client.journal import Journal, JournalWrite, QueueState
from penstock.errors import DiskFullError, FolderMismatchError

NOW_US = 1_700_000_000_000_000


def journal(folder: Path, now_us: int = NOW_US) -> Journal:
    return Journal(folder, "orders", "full", now_us)


def test_what_was_written_is_there_again_and_an_open_batch_is_doubtful(tmp_path: Path) -> None:
    first = journal(tmp_path)
    first.write(JournalWrite([(1, b"a"), (2, b"b"), (3, b"c")]))
    first.write(JournalWrite([(4, b"d")], QueueState(1, BatchNumber(first.start.epoch, 7, 2, 3), first.start.epoch)))
    first.close()
    second = journal(tmp_path)
    assert second.start.events == [(2, b"b"), (3, b"c"), (4, b"d")]
    assert second.start.batch == BatchNumber(first.start.epoch, 7, 2, 3, doubtful=True)
    assert second.start.producer == first.start.producer
    second.close()


def test_the_epoch_rises_also_when_the_clock_goes_back(tmp_path: Path) -> None:
    epochs = []
    for now_us in (NOW_US, NOW_US - 10**12, NOW_US - 10**12, NOW_US + 10**12):
        opened = journal(tmp_path, now_us)
        epochs.append(opened.start.epoch)
        opened.close()
    assert epochs == sorted(set(epochs))


def test_two_copies_of_a_folder_have_different_epochs(tmp_path: Path) -> None:
    """Else the second would be told 204 for events that nobody has."""
    journal(tmp_path / "one").close()
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    one, two = journal(tmp_path / "one", NOW_US + 10**9), journal(tmp_path / "two", NOW_US + 2 * 10**9)
    assert one.start.producer == two.start.producer
    assert one.start.epoch < two.start.epoch
    one.close()
    two.close()


def test_a_newer_format_is_left_alone(tmp_path: Path) -> None:
    first = journal(tmp_path)
    first._db.execute("UPDATE meta SET value = 2 WHERE key = 'format'")
    first.close()
    with pytest.raises(FolderMismatchError, match="newer"):
        journal(tmp_path)


def test_an_event_that_the_disk_does_not_take_is_not_in_the_queue(door: ScriptedDoor, tmp_path: Path) -> None:
    with Producer(door.url, "orders", folder=tmp_path, linger_ms=1, backoff_most_s=0.05) as orders:
        orders.send({"order_id": 0}).result(60)
        storer = orders._workings._storer
        assert storer is not None
        db = storer._journal._db
        pages = db.execute("PRAGMA page_count").fetchone()[0]
        db.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(DiskFullError):
            orders.send({"order_id": 1, "text": "x" * 100_000})
        orders.flush(60)
        assert orders.status().unsent_events == 0
        db.execute("PRAGMA max_page_count = 100000")
        orders.send({"order_id": 2, "text": "x" * 100_000}).result(60)
    assert [event["order_id"] for request in door.requests for event in request.events] == [0, 2]
