from __future__ import annotations

import hashlib
import secrets

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.log.ids import IdIndex, _Table

HOUR_US = 3_600_000_000


def ids(start: int, stop: int) -> pa.Array:
    return pa.array([f"id-{n:012d}" for n in range(start, stop)])


def taken(index: IdIndex, values: pa.Array, now_us: int = 0) -> list[bool]:
    known: list[bool] = index.stage(values, now_us).tolist()
    index.commit()
    return known


def test_staged_ids_are_free_again_after_discard() -> None:
    index = IdIndex()
    index.stage(ids(0, 5), 0)
    index.discard()
    assert taken(index, ids(0, 5)) == [False] * 5
    assert taken(index, ids(0, 5)) == [True] * 5


def test_ids_staged_in_two_steps_know_of_each_other() -> None:
    index = IdIndex()
    index.stage(ids(0, 3), 0)
    assert index.stage(ids(2, 5), 0).tolist() == [True, False, False]
    index.commit()
    assert len(index) == 5


def test_loaded_ids_are_known() -> None:
    index = IdIndex()
    index.load(pa.chunked_array([ids(0, 100_000)]).combine_chunks(), 0)
    assert all(taken(index, ids(0, 100_000)))
    assert not any(taken(index, ids(100_000, 101_000)))


@settings(max_examples=200)
@given(st.lists(st.lists(st.text(max_size=90) | st.sampled_from(["a", "a\0", "\0", ""]), max_size=10), max_size=6))
def test_it_answers_as_a_set_of_strings_would(batches: list[list[str]]) -> None:
    index, seen = IdIndex(), set[str]()
    for batch in batches:
        expected = []
        for text in batch:
            expected.append(text in seen)
            seen.add(text)
        assert taken(index, pa.array(batch, pa.string())) == expected


def test_a_long_id_is_not_taken_for_the_digest_that_stands_for_it() -> None:
    long = "x" * 100
    digest = hashlib.blake2b(long.encode(), digest_size=32).hexdigest()
    assert taken(IdIndex(), pa.array([long, digest, "x" * 101, long])) == [False, False, False, True]


def test_a_slice_of_a_column_is_read_where_it_stands() -> None:
    index = IdIndex()
    assert taken(index, ids(0, 10).slice(4, 3)) == [False] * 3
    assert taken(index, ids(0, 10)) == [False] * 4 + [True] * 3 + [False] * 3


def test_no_id_among_many_is_dropped_by_mistake() -> None:
    index = IdIndex()
    for start in range(0, 300_000, 50_000):
        assert not index.stage(ids(start, start + 50_000), 0).any()
        index.commit()
    assert len(index) == 300_000
    assert index.stage(ids(0, 300_000), 0).all()


def test_the_newest_ids_are_known_and_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the same key in every run: how early a table doubles depends on how the hash spreads these very ids."""
    horizon = 50_000
    monkeypatch.setattr(secrets, "token_bytes", np.random.default_rng(7).bytes)
    index = IdIndex(horizon=horizon)
    most = 0
    for start in range(0, 800_000, 20_000):
        index.load(ids(start, start + 20_000), 0)
        most = max(most, index.bytes)
    assert index.stage(ids(800_000 - horizon, 800_000), 0).all()
    index.discard()
    assert len(index) <= 1.3 * horizon
    assert most <= 1.3 * horizon * 30


def test_an_id_takes_less_than_25_bytes_when_there_are_many() -> None:
    table = _Table(14)
    hashes = np.random.default_rng(7).integers(0, 2**64, (1 << 17, 2), np.uint64)
    left = sum(len(table.put(hashes[at : at + 500], 0)) for at in range(0, 100_000, 500))
    assert table.bytes / table.count < 25
    assert left < 100


def test_ids_older_than_the_time_kept_are_forgotten() -> None:
    index = IdIndex(keep_us=HOUR_US)
    index.load(ids(0, 300_000), 0)
    index.load(ids(300_000, 400_000), 2 * HOUR_US)
    index.load(ids(400_000, 400_001), 2 * HOUR_US + 1)
    assert index.stage(ids(300_000, 400_001), 0).all()
    index.discard()
    assert index.stage(ids(0, 150_000), 0).mean() < 0.2


def test_ids_that_move_to_a_larger_table_stay_known_with_their_age() -> None:
    index = IdIndex()
    for start in range(0, 120_000, 500):
        index.load(ids(start, start + 500), start)
    assert len(index._tables) == 1
    assert (len(index), index.since_us) == (120_000, 0)
    assert index.stage(ids(0, 120_000), 1).all()
    assert not index.stage(ids(120_000, 121_000), 1).any()


def test_every_index_hashes_in_its_own_way() -> None:
    one, other = IdIndex(), IdIndex()
    assert (one._hash(ids(0, 9)) != other._hash(ids(0, 9))).all()


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string()])
def test_ids_may_be_of_any_kind_of_string(kind: pa.DataType) -> None:
    assert taken(IdIndex(), pa.array(["a", None, "a"], kind)) == [False, False, True]
