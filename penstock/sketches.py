"""Reads the sketches that summaries hand out as bytes: how often, how many of a range, whether ever.

Pure Python, for whoever has read a row: no Spark is needed. Hashes are those that Spark computes, so that a value asked
for here falls where Spark has put it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

Item = str | bytes | int

_MASK = 2**64 - 1
_MASK32 = 2**32 - 1
BLOCK_BITS = 32_768
"""Bits of one block of a filter: what Spark's `bitmap_construct_agg` gives."""
_PRIME = (1 << 31) - 1
"""By which Spark's count-min reduces the hash of a number."""
_VERSION = 1


@dataclass(frozen=True)
class CountMin:
    """A count-min sketch: how often values came. Counts are never too low, and seldom much too high.

    >>> sketch = CountMin.of(bytes.fromhex("00000001" "0000000000000003" "00000001" "00000002" "0000000000000005")
    ...     + (0).to_bytes(8, "big") + (3).to_bytes(8, "big"))
    >>> sketch.total, sketch.count(1)
    (3, 3)
    """

    total: int
    width: int
    seeds: tuple[int, ...]
    rows: tuple[tuple[int, ...], ...]

    @staticmethod
    def of(data: bytes) -> CountMin:
        """From the bytes of a row. Raises `ValueError` for what is no such sketch."""
        if len(data) < 20:
            raise ValueError("these are not the bytes of a count-min sketch")
        version, total, depth, width = struct.unpack_from(">iqii", data)
        if version != _VERSION or len(data) != 20 + 8 * depth * (width + 1):
            raise ValueError("these are not the bytes of a count-min sketch")
        numbers = struct.unpack_from(f">{depth * (width + 1)}q", data, 20)
        counts = [numbers[depth + row * width : depth + (row + 1) * width] for row in range(depth)]
        return CountMin(total, width, tuple(numbers[:depth]), tuple(counts))

    @property
    def bound(self) -> int:
        """How far a count may be above the truth, for all but one of `2 ** depth` values."""
        return -(-2 * self.total // self.width)

    def count(self, item: Item) -> int:
        """How often a value came, at most."""
        return min(row[place] for row, place in zip(self.rows, self._places(item), strict=True))

    def inner(self, other: CountMin) -> int:
        """The inner product with another sketch, such as the size of a join on this value, at most."""
        if (self.width, self.seeds) != (other.width, other.seeds):
            raise ValueError("sketches of another shape or seed cannot be multiplied")
        pairs = zip(self.rows, other.rows, strict=True)
        return min(sum(one * two for one, two in zip(left, right, strict=True)) for left, right in pairs)

    def _places(self, item: Item) -> list[int]:
        if isinstance(item, int):
            return [_long_place(item, seed, self.width) for seed in self.seeds]
        data = item.encode() if isinstance(item, str) else item
        first = _murmur3(data, 0)
        second = _murmur3(data, first)
        return [abs(_remainder(_int(first + i * second), self.width)) for i in range(len(self.seeds))]


@dataclass(frozen=True)
class CountMinRanges:
    """Count-min sketches of whole numbers and of their halves, quarters and so on: how many came of a range."""

    levels: tuple[CountMin, ...]

    @staticmethod
    def of(data: Sequence[bytes]) -> CountMinRanges:
        return CountMinRanges(tuple(CountMin.of(each) for each in data))

    def count(self, low: int, high: int) -> int:
        """How many values from `low` to `high`, both included, came, at most: a sum of few counts."""
        if low > high:
            return 0
        found, level = 0, 0
        while level < len(self.levels) - 1 and low <= high:
            if low & 1:
                found += self.levels[level].count(low)
                low += 1
            if not high & 1:
                found += self.levels[level].count(high)
                high -= 1
            low, high, level = low >> 1, high >> 1, level + 1
        return found + sum(self.levels[level].count(value) for value in range(low, high + 1))


@dataclass(frozen=True)
class Membership:
    """A Bloom filter: whether a value was ever seen. "No" is certain."""

    blocks: tuple[tuple[bytes, ...], ...]
    """For each hash, its blocks."""

    @staticmethod
    def of(data: Sequence[Sequence[bytes]]) -> Membership:
        return Membership(tuple(tuple(blocks) for blocks in data))

    def holds(self, item: Item) -> bool:
        """Whether a value was seen, or looks as if it was."""
        for number, blocks in enumerate(self.blocks):
            place = item_hash(item, number) % (BLOCK_BITS * len(blocks))
            block, bit = divmod(place, BLOCK_BITS)
            if not blocks[block][bit // 8] >> (bit % 8) & 1:
                return False
        return True


def item_hash(item: Item, number: int | None = None) -> int:
    """Spark's `xxhash64(item)` or `xxhash64(item, number)`, as a signed number; a whole number is a bigint.

    >>> item_hash("Spark"), item_hash(1, 2)
    (-4294468057691064905, 2111505684582270266)
    """
    if isinstance(item, int):
        found = _xxh64(item.to_bytes(8, "little", signed=True), 42)
    else:
        found = _xxh64(item.encode() if isinstance(item, str) else item, 42)
    if number is not None:
        found = _xxh64(number.to_bytes(4, "little", signed=True), found)
    return _signed(found)


# Hashes, as Spark computes them


def _long_place(item: int, seed: int, width: int) -> int:
    product = _signed(seed * item)
    product = _signed(product + (product >> 32)) & _PRIME
    return product % width


def _signed(value: int) -> int:
    value &= _MASK
    return value - 2**64 if value >> 63 else value


def _int(value: int) -> int:
    value &= _MASK32
    return value - 2**32 if value >> 31 else value


def _remainder(value: int, by: int) -> int:
    """As Java has it: of the sign of the value."""
    return value % by if value >= 0 else -(-value % by)


def _rotated32(value: int, by: int) -> int:
    value &= _MASK32
    return ((value << by) | (value >> (32 - by))) & _MASK32


def _murmur3(data: bytes, seed: int) -> int:
    """Spark's own: the bytes behind the last whole word are mixed one by one."""
    h1 = seed & _MASK32
    whole = len(data) - len(data) % 4
    words = [int.from_bytes(data[i : i + 4], "little") for i in range(0, whole, 4)]
    for word in [*words, *(byte - 256 if byte > 127 else byte for byte in data[whole:])]:
        k1 = _rotated32(word * 0xCC9E2D51, 15) * 0x1B873593 & _MASK32
        h1 = (_rotated32(h1 ^ k1, 13) * 5 + 0xE6546B64) & _MASK32
    h1 ^= len(data)
    h1 = (h1 ^ (h1 >> 16)) * 0x85EBCA6B & _MASK32
    h1 = (h1 ^ (h1 >> 13)) * 0xC2B2AE35 & _MASK32
    return _int(h1 ^ (h1 >> 16))


_P1, _P2, _P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P4, _P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5


def _rotated(value: int, by: int) -> int:
    value &= _MASK
    return ((value << by) | (value >> (64 - by))) & _MASK


def _round(lane: int, word: int) -> int:
    return _rotated(lane + word * _P2, 31) * _P1 & _MASK


def _xxh64(data: bytes, seed: int) -> int:
    seed &= _MASK
    at, size = 0, len(data)
    if size >= 32:
        lanes = [(seed + _P1 + _P2) & _MASK, (seed + _P2) & _MASK, seed, (seed - _P1) & _MASK]
        while at + 32 <= size:
            lanes = [_round(lane, word) for lane, word in zip(lanes, struct.unpack_from("<4Q", data, at), strict=True)]
            at += 32
        found = sum(_rotated(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True)) & _MASK
        for lane in lanes:
            found = ((found ^ _round(0, lane)) * _P1 + _P4) & _MASK
    else:
        found = (seed + _P5) & _MASK
    found = (found + size) & _MASK
    while at + 8 <= size:
        found ^= _round(0, struct.unpack_from("<Q", data, at)[0])
        found, at = (_rotated(found, 27) * _P1 + _P4) & _MASK, at + 8
    if at + 4 <= size:
        found ^= struct.unpack_from("<I", data, at)[0] * _P1 & _MASK
        found, at = (_rotated(found, 23) * _P2 + _P3) & _MASK, at + 4
    for byte in data[at:]:
        found = _rotated(found ^ (byte * _P5 & _MASK), 11) * _P1 & _MASK
    found = (found ^ (found >> 33)) * _P2 & _MASK
    found = (found ^ (found >> 29)) * _P3 & _MASK
    return found ^ (found >> 32)
