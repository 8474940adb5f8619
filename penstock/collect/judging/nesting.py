"""Measures how deep JSON nests, and cuts an array into its elements, without recursion and at C speed.

A JSON parser recurses, so a body of a hundred thousand brackets is an attack on its stack. Here brackets outside
strings are counted with array arithmetic, which takes any depth. It does not check that the JSON is well-formed.
"""

from __future__ import annotations

import numpy as np

Flags = np.ndarray[tuple[int], np.dtype[np.bool]]
Depths = np.ndarray[tuple[int], np.dtype[np.int32]]

_STEP = np.zeros(256, np.int8)
_STEP[[ord("{"), ord("[")]] = 1
_STEP[[ord("}"), ord("]")]] = -1


_LONG_BYTES = 4096
"""From here on numpy counts faster than `bytes.count`, which stops at every hit."""


def opening_brackets(raw: bytes) -> int:
    """How many there are, in strings too: never less than the depth, and almost free to ask."""
    return count(raw, b"{") + count(raw, b"[")


def count(raw: bytes, byte: bytes) -> int:
    """How often one byte occurs."""
    if len(raw) < _LONG_BYTES:
        return raw.count(byte)
    return int(np.count_nonzero(np.frombuffer(raw, np.uint8) == ord(byte)))


def deeper_than(raw: bytes, limit: int) -> bool:
    """Whether arrays and objects stand more than `limit` deep in each other.

    >>> deeper_than(b'{"a": [1, "]{{{"]}', 2), deeper_than(b'{"a": [[]]}', 2)
    (False, True)
    """
    if opening_brackets(raw) <= limit:
        return False
    depth, _ = _depths(raw)
    return bool(depth.max(initial=0) > limit)


def balanced(raw: bytes) -> bool:
    """Whether every bracket that opens closes, and none closes too early."""
    depth, _ = _depths(raw)
    return depth.size > 0 and int(depth[-1]) == 0 and int(depth.min()) == 0


def elements(array: bytes) -> list[bytes]:
    """The elements of a balanced JSON array, as they stand there.

    >>> elements(b'[{"a": "x,y"}, [1, 2]]')
    [b'{"a": "x,y"}', b'[1, 2]']
    """
    commas = np.flatnonzero(_separators(array))
    starts = [array.index(b"[") + 1, *(commas + 1).tolist()]
    ends = [*commas.tolist(), array.rindex(b"]")]
    return [array[start:end].strip() for start, end in zip(starts, ends, strict=True)]


def elements_in(array: bytes) -> int:
    """How many elements a JSON array has, without cutting it."""
    return int(np.count_nonzero(_separators(array))) + 1


def _separators(array: bytes) -> Flags:
    """Which bytes are commas between the elements."""
    depth, outside = _depths(array)
    separators: Flags = (np.frombuffer(array, np.uint8) == ord(",")) & outside & (depth == 1)
    return separators


def _depths(raw: bytes) -> tuple[Depths, Flags]:
    """The depth behind each byte, and whether the byte stands outside of strings."""
    # The same length without escapes: a backslash escapes what follows, so pairs of them go first.
    plain = raw.replace(b"\\\\", b"..").replace(b'\\"', b"..") if b"\\" in raw else raw
    codes = np.frombuffer(plain, np.uint8)
    outside = (np.cumsum(codes == ord('"'), dtype=np.int32) & 1) == 0
    return np.cumsum(_STEP[codes] * outside, dtype=np.int32), outside
