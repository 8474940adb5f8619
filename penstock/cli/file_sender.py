"""`penstock send`: a file of events, so that a broken run can be repeated with no event lost or doubled.

The file is cut into chunks by rules that depend on its content alone, and a chunk's number is its producer
sequence. The producer's id is a fingerprint of the content, so the same command resumes where the server
says it stopped. A file that has changed is another file and is sent anew.
"""

from __future__ import annotations

import hashlib
import itertools
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from penstock.cli.remote import Remote, ServerReply, path_of
from penstock.errors import BadRequestError, PenstockError, SequenceGapError, UnreachableError
from penstock.run.terminal import Terminal

CHUNK_LINES = 500
CHUNK_BYTES = 4 * 1024**2
"""A quarter of the largest body that a server takes."""
PATIENCE_S = 60.0
"""How long one chunk is tried against a server that is away or overloaded."""

Advance = Callable[[int], None]


@dataclass
class Sent:
    """What became of the events.

    `unanswered` events were taken, but the reply that says how was lost; `skipped_chunks` had been taken by an
    earlier run.
    """

    accepted: int = 0
    duplicates: int = 0
    rejected: int = 0
    unanswered: int = 0
    skipped_chunks: int = 0
    ack: str | None = None

    def body(self) -> dict[str, Any]:
        return asdict(self)


def fingerprint(file: Path) -> str:
    """The producer id of a file: the same for the same content, wherever it lies."""
    digest = hashlib.sha256(f"{CHUNK_LINES}/{CHUNK_BYTES}".encode())
    with file.open("rb") as content:
        while block := content.read(1024**2):
            digest.update(block)
    return f"file-{digest.hexdigest()[:32]}"


def once() -> str:
    """A producer id for what cannot be read again: retries within this run are recognised, and no others."""
    return f"once-{uuid.uuid4().hex}"


def chunks(lines: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Lines that are sent together; empty ones are left out."""
    chunk: list[bytes] = []
    size = 0
    for line in lines:
        if not line.strip():
            continue
        if chunk and (len(chunk) == CHUNK_LINES or size + len(line) > CHUNK_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(line if line.endswith(b"\n") else line + b"\n")
        size += len(chunk[-1])
    if chunk:
        yield chunk


def send(remote: Remote, stream: str, file: str, producer: str | None, terminal: Terminal) -> Sent:
    """Send a file or stdin (`-`) with a progress bar where there is a terminal for it."""
    path = None if file == "-" else Path(file)
    if path is not None and not path.is_file():
        raise BadRequestError(f"there is no file '{file}'", hint="give a file of JSON lines, or - for stdin")
    name = producer or (fingerprint(path) if path else once())
    sender = FileSender(remote, stream, name, terminal.note)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    shown = Progress(*columns, console=terminal.err, transient=True, disable=not terminal.err.is_terminal)
    with shown, path.open("rb") if path else sys.stdin.buffer as source:
        task = shown.add_task(stream, total=path.stat().st_size if path else None)
        return sender.send(source, lambda size: shown.update(task, advance=size))


class FileSender:
    """One run of `send`: chunk after chunk, each until it was taken."""

    def __init__(self, remote: Remote, stream: str, producer: str, note: Callable[[str], None]) -> None:
        self._remote = remote
        self._path = path_of("streams", stream)
        self._producer = producer
        self._note = note
        self.sent = Sent()

    def send(self, source: IO[bytes], progress: Advance) -> Sent:
        """Raises the server's error for the whole request; rejected events are counted instead."""
        expected = 0
        for number, chunk in enumerate(chunks(source)):
            if number < expected:
                self.sent.skipped_chunks += 1
            else:
                expected = self._chunk(number, chunk)
            progress(sum(map(len, chunk)))
        return self.sent

    def _chunk(self, number: int, chunk: list[bytes]) -> int:
        """Send one chunk until the server has it; returns the number that it expects next."""
        headers = {
            "Content-Type": "application/x-ndjson",
            "Producer-Id": self._producer,
            "Producer-Epoch": "0",
            "Producer-Seq": str(number),
        }
        reply, tries = self._patiently(b"".join(chunk), headers)
        if reply.status in (200, 422):
            self._count(reply)
            return number + 1
        if reply.status == 204:
            self._known(number, reply, len(chunk) if tries > 1 else 0)
            return max(number + 1, int(reply.headers.get("Producer-Expected-Seq") or 0))
        if reply.status == 409 and "Producer-Expected-Seq" in reply.headers:
            raise self._gap(number, int(reply.headers["Producer-Expected-Seq"]))
        raise reply.error()

    def _patiently(self, body: bytes, headers: dict[str, str]) -> tuple[ServerReply, int]:
        """Try again while the server is away or overloaded: the sequence number makes that safe."""
        deadline = time.monotonic() + PATIENCE_S
        pause_s = 0.2
        for tries in itertools.count(1):
            answer = self._try(body, headers)
            if isinstance(answer, ServerReply):
                return answer, tries
            if time.monotonic() > deadline or not self._began():
                raise answer
            self._note(f"{answer.message}; trying again in {pause_s:.1f} s")
            time.sleep(pause_s)
            pause_s = min(5.0, pause_s * 2)
        raise AssertionError("counting does not end")

    def _try(self, body: bytes, headers: dict[str, str]) -> ServerReply | PenstockError:
        """A reply that settles the matter, or the error that may pass."""
        try:
            reply = self._remote.request("POST", self._path, body, headers)
        except UnreachableError as error:
            return error
        return reply.error() if reply.status in (429, 503, 507) else reply

    def _began(self) -> bool:
        """Whether the server was there: one that never was is a wrong address, and waiting does not help."""
        return self.sent.ack is not None or self.sent.skipped_chunks > 0

    def _count(self, reply: ServerReply) -> None:
        self.sent.accepted += int(reply.body.get("accepted", 0))
        self.sent.duplicates += int(reply.body.get("duplicates", 0))
        self.sent.rejected += len(reply.body.get("rejected", ()))
        self.sent.ack = reply.body.get("ack") or self.sent.ack or ""

    def _known(self, number: int, reply: ServerReply, unanswered: int) -> None:
        """The server has this chunk already: from an earlier run, or from a try whose reply was lost."""
        if unanswered:
            self.sent.unanswered += unanswered
        else:
            self.sent.skipped_chunks += 1
        if number == 0 and not unanswered:
            self._note("the server has the beginning of this from an earlier run; going on behind it")
        self.sent.ack = reply.headers.get("Penstock-Ack") or self.sent.ack

    def _gap(self, number: int, expected: int) -> PenstockError:
        return SequenceGapError(
            f"the server expects chunk {expected} of the producer '{self._producer}', not {number}",
            detail="it may have been given another data folder, or another input was sent under this name",
            hint="choose another name with --producer",
            expected=expected,
        )
