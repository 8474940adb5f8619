"""Export and import: the logs of a folder as they were, to the position, and a source that stays closed."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.config import Folder
from penstock.errors import ArchiveError, FolderMismatchError, MovedError
from penstock.log.log import Append, Producer, StreamSpec
from penstock.log.opening import open_log, open_reader
from penstock.run.moving import export, moved, reopen, restore
from penstock.run.ownership import check_folder

SPEC = StreamSpec("numbers", pa.schema([("n", pa.int64())]))


@pytest.fixture
def source(tmp_path: Path) -> Folder:
    """Three commits by a numbered producer, and a checkpoint with what must not come along."""
    folder = Folder(tmp_path / "source")
    for place in (folder.edge_log, folder.flows_log):
        log = open_log(place, app="shop")
        stream = log.create(SPEC)
        for number in range(3):
            batch = pa.record_batch([pa.array([number, number])], schema=SPEC.schema)
            log.append([Append(stream, batch, producer=Producer("till", 1, number))])
        log.close()
    for name in ("countries/e1/offsets/0", "countries/e1/offsets/.0.crc", "countries/e1/.1.tmp", "countries/e0.lost/0"):
        path = folder.checkpoints / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return folder


def content(folder: Folder, place: str) -> tuple[object, ...]:
    log = open_reader(place)
    stream = log.find("numbers")
    assert stream is not None
    rows = [block.batch.to_pylist() for block in log.read(stream, 0, 0)]
    found = stream.position(log.bounds(stream).ends).token(), rows, dict(log.memory())
    log.close()
    return found


def test_an_imported_folder_has_the_positions_events_and_numbers_of_its_source(source: Folder, tmp_path: Path) -> None:
    file, copy = tmp_path / "shop.tar", Folder(tmp_path / "there" / "copy")
    archive = export(source, "shop", file, close=False)
    assert set(archive.files) == {
        "edge.db",
        "flows.db",
        *(f"checkpoints/countries/e1/offsets/{n}" for n in ("0", ".0.crc")),
    }
    assert restore(copy, "shop", file) == archive
    assert content(copy, copy.edge_log) == content(source, source.edge_log)
    assert content(copy, copy.flows_log) == content(source, source.flows_log)
    assert (copy.checkpoints / "countries/e1/offsets/0").read_text() == "countries/e1/offsets/0"
    log = open_log(copy.edge_log, app="shop")
    stream = log.create(SPEC)
    batch = pa.record_batch([pa.array([1])], schema=SPEC.schema)
    (known,) = log.append([Append(stream, batch, producer=Producer("till", 1, 2))])
    (fresh,) = log.append([Append(stream, batch, producer=Producer("till", 1, 3))])
    log.close()
    assert (known.repeated, fresh.repeated) == (True, False)  # type: ignore[union-attr]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    check_folder(source, "shop")


def test_a_closed_source_refuses_to_start_and_its_copy_does_not(source: Folder, tmp_path: Path) -> None:
    file, copy = tmp_path / "shop.tar", Folder(tmp_path / "copy")
    export(source, "shop", file, close=True)
    with pytest.raises(MovedError, match="was moved") as refused:
        check_folder(source, "shop")
    assert refused.value.detail is not None
    assert "'shop.tar'" in refused.value.detail
    restore(copy, "shop", file)
    check_folder(copy, "shop")
    assert moved(copy) is None
    reopen(source, "shop")
    check_folder(source, "shop")


def test_an_archive_that_is_damaged_cut_off_or_anothers_leaves_nothing(source: Folder, tmp_path: Path) -> None:
    file, copy = tmp_path / "shop.tar", Folder(tmp_path / "copy")
    export(source, "shop", file, close=False)
    data = file.read_bytes()
    at = data.index(b"SQLite format 3") + 5000
    (tmp_path / "damaged.tar").write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    (tmp_path / "half.tar").write_bytes(data[: len(data) // 2 // 512 * 512])
    with tarfile.open(tmp_path / "evil.tar", "w") as tar:
        tar.add(__file__, "checkpoints/../../evil.py")
    for name in ("damaged", "half", "evil", "absent"):
        with pytest.raises(ArchiveError):
            restore(copy, "shop", tmp_path / f"{name}.tar")
        assert not copy.root.exists()
    with pytest.raises(FolderMismatchError, match="archive of the app 'shop', not of 'till'"):
        restore(copy, "till", file)
    with pytest.raises(ArchiveError, match="there already"):
        export(source, "shop", file, close=False)
    with pytest.raises(FolderMismatchError, match="is not empty"):
        restore(source, "shop", file)
    with tarfile.open(file) as tar:
        manifest = json.loads(tar.extractfile("manifest.json").read())  # type: ignore[union-attr]
    assert manifest["app"] == "shop"
