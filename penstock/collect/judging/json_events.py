"""Cuts a body into the JSON of its events, so that each can be judged alone, and a large body in slices.

A JSON parser recurses, so a body of a hundred thousand brackets is an attack on its stack. Here brackets outside
strings are counted with array arithmetic, which takes any depth; that does not check whether the JSON is well-formed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec
import numpy as np

from penstock.errors import BadBodyError, TooLargeError

Form = Literal["json", "lines", "text", "csv", "arrow", "cloudevent", "cloudevents"]
"""What a body holds; `text` is JSON or lines of it, whichever it looks like."""


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


SLICE_BYTES = 256 * 1024
"""Larger bodies are judged in slices, so that no single call holds the interpreter for more than a few milliseconds."""
MOST_EVENTS = 200_000
"""In one body; each becomes an object or two, which cost more than the two bytes that it may have come in."""
MOST_REJECTED = 10_000
"""In one body: above it the sender has another idea of the stream than we do, and the body is refused whole."""

_raw = msgspec.json.Decoder(msgspec.Raw)
_raws = msgspec.json.Decoder(list[msgspec.Raw])


def split(body: bytes, form: Form) -> list[bytes]:
    """The JSON of each event, in order. Raises `BadBodyError` when that cannot be told."""
    text = body.strip()
    if form == "lines" or (form == "text" and not _is_whole(text)):
        _refuse_more(count(body, b"\n"))
        return lines_of(body)
    if text[:1] == b"[" and count(text, b",") >= MOST_EVENTS:
        _refuse_more(elements_in(text))
    return _values(text)


def _is_whole(text: bytes) -> bool:
    """Whether it is one JSON value, or meant to be an array."""
    try:
        _raw.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text[:1] == b"[" or not text
    return True


class Raws:
    """The JSON of a body's events by their place, cut apart only if somebody asks for one."""

    def __init__(self, body: bytes, form: Form) -> None:
        self._body, self._form = body, form
        self._cut: list[bytes] | None = None

    def __call__(self, place: int) -> bytes:
        if self._cut is None:
            self._cut = split(self._body, self._form)
        return self._cut[place]


def _values(text: bytes) -> list[bytes]:
    """An array's elements, or the one value. An array that is not JSON is cut at its commas, if its brackets allow it,
    so that its bad events are judged alone."""
    array = text[:1] == b"["
    try:
        return [bytes(raw) for raw in _raws.decode(text)] if array else [bytes(_raw.decode(text))]
    except RecursionError:
        why = "its brackets do not match"
    except msgspec.DecodeError as error:
        why = str(error) if text else "it is empty"
        if not array:
            raise _bad_body(why) from None
    if not balanced(text) or (array and text[-1:] != b"]"):
        raise _bad_body(why)
    return elements(text) if array else [text]


def lines_of(body: bytes) -> list[bytes]:
    return [line for line in map(bytes.strip, body.split(b"\n")) if line]


def _refuse_more(events: int) -> None:
    if events > MOST_EVENTS:
        raise TooLargeError(
            f"the body holds more than {MOST_EVENTS} events", detail=f"about {events}", hint="send several bodies"
        )


def _bad_body(detail: str) -> BadBodyError:
    return BadBodyError(
        "the body is not JSON",
        detail=detail,
        hint="send an object, an array of objects, or one object per line as application/x-ndjson",
    )


def hopeless(reason: str, detail: str) -> BadBodyError:
    return BadBodyError(
        f"more than {MOST_REJECTED} events of the body were rejected",
        detail=f"one of them: {reason}: {detail}",
        hint="see whether this is the right stream, or send smaller bodies",
    )


def slices(raws: Sequence[bytes]) -> Iterable[tuple[int, Sequence[bytes]]]:
    """Consecutive events of about `SLICE_BYTES` together, with the place of the first."""
    start = size = 0
    for place, raw in enumerate(raws):
        size += len(raw)
        if size >= SLICE_BYTES:
            yield start, raws[start : place + 1]
            start, size = place + 1, 0
    if start < len(raws):
        yield start, raws[start:]
