"""Remembers the newest event ids of a stream, so that an event that is sent twice is taken once.

1. At least the newest `horizon` ids are known, unless they are older than `keep_us`; memory is bounded by that.
2. Ids are kept as 128-bit hashes from a family that is universal (multilinear, keyed at random in each process): any
   two given ids, also chosen by an enemy, fall together with probability 2^-128. No event is dropped by mistake.
3. Ids are staged first. They count as known after `commit`; after `discard` it is as if they had never been seen.

The log itself is the index: after a restart it is filled again from the stream's own `_id` column.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.horizon import Horizon

Words = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.intp]
Bytes = npt.NDArray[np.uint8]

_LONGEST = 64
"""Bytes of an id that are hashed as they are; a longer one goes through BLAKE2b first."""
_SLOTS = 8
_CHOICES = 2
_SMALLEST, _LARGEST, _GROWTH = 9, 18, 3
"""Sizes of tables as powers of two of buckets: 70 KiB, 0.6 MiB, 4.5 MiB, then 36 MiB each; none holds much more
than a quarter of the horizon, because the oldest is forgotten as a whole."""
_MOVED = 40_000
"""Ids that are moved to a larger table at most: 10 ms, once."""
_CHUNK = 4096
"""Ids put into a table at once: few enough that their choices of bucket do not go by fill levels long past."""

_ONES = np.uint64(0x0101010101010101)
_HIGHS = np.uint64(0x8080808080808080)


class IdIndex:
    """Which ids of a stream are taken. Called by the log's writer only."""

    def __init__(self, horizon: int = Horizon.ids, keep_us: int = Horizon.age_us) -> None:
        self.horizon = horizon
        self.keep_us = keep_us
        self._hash = _Hash()
        self._largest = max(_SMALLEST, min(_LARGEST, (horizon // (4 * _SLOTS)).bit_length() - 1))
        self._tables = [_Table(_SMALLEST)]
        self._staged = _nothing()
        self._now_us = 0

    def __len__(self) -> int:
        return sum(table.count for table in self._tables)

    @property
    def bytes(self) -> int:
        """Memory that the index takes."""
        return sum(table.bytes for table in self._tables)

    @property
    def since_us(self) -> int | None:
        """When the oldest of the known ids came, or shortly before; any thread may ask."""
        return next((table.oldest_us for table in list(self._tables) if table.count), None)

    def load(self, ids: pa.Array, written_us: int, since_us: int | None = None) -> None:
        """Take over ids from the log, oldest first; they were written from `since_us` on."""
        if not self._tables[-1].count:
            self._tables[-1].oldest_us = written_us if since_us is None else since_us
        self._put(self._hash(_present(ids)), written_us)

    def stage(self, ids: pa.Array, now_us: int) -> Mask:
        """Which of these ids are known, or stood earlier among them; the others are staged. Null is no id."""
        taken = np.zeros(len(ids), np.bool_)
        rows = np.flatnonzero(ids.is_valid().to_numpy(zero_copy_only=False)) if ids.null_count else None
        hashes = self._hash(_present(ids))
        known = self._repeated(hashes)
        asked = _Asked(hashes)
        for table in self._tables:
            table.mark_known(asked, known)
        self._staged = np.concatenate([self._staged, hashes[~known]])
        self._now_us = now_us
        if rows is None:
            return known
        taken[rows] = known
        return taken

    def commit(self) -> None:
        staged, self._staged = self._staged, _nothing()
        self._put(staged, self._now_us)

    def discard(self) -> None:
        self._staged = _nothing()

    def _repeated(self, hashes: Words) -> Mask:
        """Which of them stood earlier in this batch, or in what is staged already."""
        before = len(self._staged)
        every = np.concatenate([self._staged, hashes]) if before else hashes
        repeated = np.zeros(len(every), np.bool_)
        high = np.sort(every[:, 0])
        if (high[1:] == high[:-1]).any():
            order = np.lexsort((every[:, 1], every[:, 0]))
            ordered = every[order]
            repeated[order[1:]] = (ordered[1:] == ordered[:-1]).all(axis=1)
        return repeated[before:]

    def _put(self, hashes: Words, now_us: int) -> None:
        for chunk in _chunks(hashes):
            left = chunk
            while len(left := self._tables[-1].put(left, now_us)):
                self._grow()
        self._forget(now_us)

    def _grow(self) -> None:
        """One more table; a small one moves into it as a whole, because every table costs each lookup its share."""
        last = self._tables[-1]
        larger = _Table(min(last.bits + _GROWTH, self._largest))
        if last.bits < larger.bits and last.count <= _MOVED:
            for chunk in _chunks(last.hashes()):
                if len(larger.put(chunk, last.newest_us)):
                    raise AssertionError("a larger table has no room for what a smaller one held")
            larger.oldest_us = last.oldest_us
            self._tables.pop()
        self._tables.append(larger)

    def _forget(self, now_us: int) -> None:
        while len(self._tables) > 1 and self._is_spare(self._tables[0], now_us):
            self._tables.pop(0)

    def _is_spare(self, oldest: _Table, now_us: int) -> bool:
        return len(self) - oldest.count >= self.horizon or oldest.newest_us < now_us - self.keep_us


def _nothing() -> Words:
    return np.empty((0, 2), np.uint64)


def _present(ids: pa.Array) -> pa.Array:
    return ids.drop_null() if ids.null_count else ids


def _chunks(hashes: Words) -> Iterator[Words]:
    return (hashes[at : at + _CHUNK] for at in range(0, len(hashes), _CHUNK))


class _Table:
    """A hash table of fixed size that takes and answers whole batches.

    Each hash has two buckets to choose from, and goes to the emptier. A bucket has eight slots and one word with a
    byte of each slot's hash, so that an unknown id costs two reads and hardly ever a look into the slots.
    """

    def __init__(self, bits: int) -> None:
        buckets = 1 << bits
        self.bits = bits
        self._mask = buckets - 1
        self.count = 0
        self.newest_us = 0
        self.oldest_us: int | None = None
        self._tags = np.zeros(buckets, np.uint64)
        self._fill = np.zeros(buckets, np.uint8)
        self._last = np.empty(buckets, np.int32)
        """Of several that choose one bucket at once, the one that gets it."""
        self._slots = np.zeros((buckets, _SLOTS, 2), np.uint64)

    @property
    def bytes(self) -> int:
        return self._tags.nbytes + self._fill.nbytes + self._last.nbytes + self._slots.nbytes

    def mark_known(self, asked: _Asked, known: Mask) -> None:
        """Set `known` where this table holds a hash."""
        buckets = asked.buckets & self._mask
        differing = self._tags[buckets] ^ asked.pattern
        alike = (differing - _ONES) & ~differing & _HIGHS
        if alike.any():
            choice, row = np.nonzero(alike)
            bucket, wanted = buckets[choice, row], asked.hashes[row]
            same = (self._slots[bucket] == wanted[:, None]).all(axis=2)
            known[row[same.any(axis=1)]] = True

    def put(self, hashes: Words, now_us: int) -> Words:
        """Take these in; gives back those for which there is no room."""
        self.newest_us = max(self.newest_us, now_us)
        self.oldest_us = now_us if self.oldest_us is None else self.oldest_us
        full = _nothing()
        while len(hashes):
            hashes, without_room = self._put_once(hashes)
            full = np.concatenate([full, without_room]) if len(without_room) else full
        return full

    def hashes(self) -> Words:
        """All that it holds."""
        taken = np.arange(_SLOTS) < self._fill[:, None]
        held: Words = self._slots[taken]
        return held

    def _put_once(self, hashes: Words) -> tuple[Words, Words]:
        """One into each bucket that is the emptier one of some hash: what has to be tried again, because another was
        put there, and what has no room."""
        first, second = _buckets(hashes) & self._mask
        bucket = np.where(self._fill[first] <= self._fill[second], first, second)
        fill = self._fill[bucket]
        rows = np.arange(len(hashes), dtype=np.int32)
        self._last[bucket] = rows
        here = self._last[bucket] == rows
        fits = fill < _SLOTS
        chosen = here & fits
        self._write(hashes[chosen], bucket[chosen], fill[chosen])
        return hashes[~here & fits], hashes[~fits]

    def _write(self, hashes: Words, bucket: Indices, slot: Bytes) -> None:
        """Into buckets that all differ."""
        self._slots[bucket, slot] = hashes
        self._tags[bucket] |= _tags(hashes) << (slot.astype(np.uint64) * np.uint64(8))
        self._fill[bucket] = slot + np.uint8(1)
        self.count += len(hashes)


class _Asked:
    """Hashes that are looked for, with what is the same for every table: where to look, and for which tag."""

    def __init__(self, hashes: Words) -> None:
        self.hashes = hashes
        self.buckets = _buckets(hashes)
        self.pattern = _tags(hashes) * _ONES


def _buckets(hashes: Words) -> Indices:
    """The buckets that each hash may be in, a row per choice, for the largest table; a smaller one masks them."""
    shifts = np.arange(_CHOICES, dtype=np.uint64)[:, None] * np.uint64(21)
    buckets: Indices = (hashes[:, 1] >> shifts).view(np.intp) & ((1 << _LARGEST) - 1)
    return buckets


def _tags(hashes: Words) -> Words:
    """One byte of each hash, never 0: that marks a free slot."""
    tags: Words = np.maximum(hashes[:, 0] & np.uint64(0xFF), np.uint64(1))
    return tags


class _Hash:
    """A keyed 128-bit hash of strings, for whole columns at once.

    A string becomes words of 32 bits, after a 1 and its length. Four sums of products of these words with random
    64-bit factors, of each the upper half, are the hash: multilinear hashing, which is strongly universal.
    """

    def __init__(self) -> None:
        words = _LONGEST // 4 + 2
        self._factors = np.frombuffer(secrets.token_bytes(words * 4 * 8), np.uint64).reshape(words, 4)

    def __call__(self, ids: pa.Array) -> Words:
        if not len(ids):
            return _nothing()
        words = _words(ids if pa.types.is_string(ids.type) else ids.cast(pa.string()))
        sums = words @ self._factors[: words.shape[1]]
        hashes = np.empty((len(ids), 2), np.uint64)
        for half in (0, 1):
            hashes[:, half] = (sums[:, 2 * half] & _UPPER) | (sums[:, 2 * half + 1] >> _HALF)
        return hashes


_UPPER, _HALF = np.uint64(0xFFFFFFFF00000000), np.uint64(32)


def _words(ids: pa.Array) -> Words:
    """Strings as rows of 32-bit words: 1, their length in bytes, then the string, padded with zeros.

    A string's words stand in the same columns whatever else is in the batch, so that its hash is the same.
    """
    lengths = pc.binary_length(ids).to_numpy()
    longest = int(lengths.max())
    if longest > _LONGEST:
        ids, longest = pa.array(map(_shortened, ids.to_pylist()), pa.string()), _LONGEST
    width = max(4, -(-longest // 4) * 4)
    padded = pc.ascii_rpad(ids, width, "\0")
    _, _, data = padded.buffers()
    words = np.empty((len(ids), width // 4 + 2), np.uint64)
    words[:, 0] = 1
    words[:, 1] = np.minimum(lengths, _LONGEST + 1)
    words[:, 2:] = np.frombuffer(data, "<u4", len(ids) * width // 4, padded.offset * width).reshape(len(ids), -1)
    return words


def _shortened(value: str) -> str:
    """A long id's digest stands for it; its length, which is hashed too, sets it apart from a short one."""
    raw = value.encode()
    return value if len(raw) <= _LONGEST else hashlib.blake2b(raw, digest_size=_LONGEST // 2).hexdigest()
