"""Cuts bytes that come in pieces into lines, each one event, and holds no more of a line than an event may have."""

from __future__ import annotations


class Lines:
    """One run of bytes. A line that is too long comes out cut off behind `most_bytes + 1`, which the judge refuses."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._parts: list[bytes] = []
        self._kept = 0
        self.pending = 0
        """Bytes behind the last line end, whether they are kept or not."""

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that end in this piece, without blank ones and without their ends."""
        first, end, rest = chunk.partition(b"\n")
        if not end:
            self._keep(chunk)
            return []
        self._keep(first)
        lines = [self.rest()]
        *whole, rest = rest.split(b"\n")
        lines += whole if max(map(len, whole), default=0) <= self._most else [line[: self._most + 1] for line in whole]
        self._keep(rest)
        return [text for line in lines if (text := line.strip())]

    def rest(self) -> bytes:
        """What stands behind the last line end, and no longer after this."""
        line = b"".join(self._parts)
        self._parts, self._kept, self.pending = [], 0, 0
        return line

    def _keep(self, part: bytes) -> None:
        self.pending += len(part)
        room = self._most + 1 - self._kept
        if part and room > 0:
            kept = part[:room]
            self._parts.append(kept)
            self._kept += len(kept)
