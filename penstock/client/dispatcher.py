"""Sends batch after batch from a thread of its own, each until the door has it."""

from __future__ import annotations

import gzip
import http.client
import logging
import ssl
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from random import Random
from socket import SHUT_RDWR
from threading import Event, Thread
from urllib.parse import quote, urlsplit

from penstock.client.backoff import Backoff
from penstock.client.batch import NumberedBatch, Receipt
from penstock.client.outbox import Doing, Outbox
from penstock.client.verdict import ACK, EXPECTED, Again, DoorReply, Fenced, Forgotten, Settled, Smaller, Verdict, judge
from penstock.clock import Clock
from penstock.errors import BadRequestError, EventRejectedError, PenstockError, UnreachableError

_HEADERS = (ACK, EXPECTED, "Retry-After", "Date", "Location")
_LARGEST_REPLY = 16 * 1024**2


class DoorConnection:
    """One HTTP connection to the door, kept open between requests and opened anew when it breaks. Used by the thread
    that sends; `abort` by any."""

    def __init__(self, url: str, stream: str, timeout_s: float, tls: ssl.SSLContext | None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadRequestError(f"'{url}' is not the address of a server", hint="write it like http://host:8080")
        self._path = f"{parts.path.rstrip('/')}/streams/{quote(stream, safe='')}"
        self.where = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{self._path}"
        if parts.scheme == "https":
            context = tls or ssl.create_default_context()
            self._http: http.client.HTTPConnection = http.client.HTTPSConnection(
                parts.hostname, parts.port, timeout=timeout_s, context=context
            )
        else:
            self._http = http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout_s)

    @property
    def is_open(self) -> bool:
        return self._http.sock is not None

    def post(self, body: bytes, sent: Mapping[str, str]) -> DoorReply:
        """Raises `UnreachableError`; whether the request was taken is then not known."""
        try:
            self._http.request("POST", self._path, body, dict(sent))
            with self._http.getresponse() as response:
                content = response.read(_LARGEST_REPLY)
                headers = {name: value for name in _HEADERS if (value := response.getheader(name)) is not None}
                reply = DoorReply(response.status, headers, content)
                if not response.isclosed():
                    self._http.close()
                return reply
        except (OSError, http.client.HTTPException) as error:
            self._http.close()
            raise UnreachableError(
                f"{self.where} does not answer",
                detail=f"{type(error).__name__}: {error}",
                hint="it is tried again; see that the server runs and the address is right",
            ) from error

    def abort(self) -> None:
        """Break off whatever is under way."""
        sock = self._http.sock
        if sock is not None:
            with suppress(OSError):
                sock.shutdown(SHUT_RDWR)

    def close(self) -> None:
        self._http.close()


COMPRESS_BYTES = 1024
"""Below this, packing costs more than it saves."""
_REMIND_S = 60.0
"""How often a trouble is told again; one that could have passed by itself is a warning from then on."""

Rejected = Callable[[bytes, EventRejectedError], None]
Key = str | Callable[[], str] | None

_log = logging.getLogger("penstock.client")


class Dispatcher:
    """The thread, and what it is doing."""

    def __init__(
        self,
        outbox: Outbox,
        connection: DoorConnection,
        producer: str,
        *,
        key: Key,
        compress: bool,
        backoff_most_s: float,
        on_rejected: Rejected | None,
        clock: Clock,
        random: Random,
    ) -> None:
        self._outbox, self._connection, self._producer = outbox, connection, producer
        self._key, self._compress, self._on_rejected, self._clock = key, compress, on_rejected, clock
        self._backoff = Backoff(backoff_most_s, random)
        self._reported: tuple[str, float] | None = None
        """The trouble that was last logged, and when."""
        self._stop = Event()
        self.doing: Doing = "idle"
        self.error: PenstockError | None = None
        self._thread = Thread(target=self._run, name="penstock-sender", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, patience_s: float) -> None:
        """Break off; what is under way is not known to be taken, and keeps its number."""
        self._stop.set()
        self._connection.abort()
        self._thread.join(patience_s)

    # The thread

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                batch = self._outbox.next_batch()
                if batch is None:
                    break
                self._act(batch, self._try(batch))
            except PenstockError as error:  # the disk does not take a batch's number
                self._wait("blocked", error)
            except Exception as error:
                _log.exception("the producer met an error of its own; the batch is sent again")
                self._wait("blocked", PenstockError(f"an error of the producer's own: {error!r}"))
        self._connection.close()

    def _try(self, batch: NumberedBatch) -> Verdict:
        if self.doing == "idle":
            self.doing = "sending"
        body = batch.body()
        headers = {
            "Content-Type": "application/x-ndjson",
            "Producer-Id": self._producer,
            "Producer-Epoch": str(batch.number.epoch),
            "Producer-Seq": str(batch.number.sequence),
            "Penstock-Sent": str(self._clock.now_us() // 1000),
        }
        if batch.promise is not None:
            headers["Penstock-Complete"] = batch.promise
        if self._compress and len(body) >= COMPRESS_BYTES:
            body = gzip.compress(body, 1, mtime=0)
            headers["Content-Encoding"] = "gzip"
        key = self._key() if callable(self._key) else self._key
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        was_open = self._connection.is_open
        try:
            reply = self._connection.post(body, headers)
        except UnreachableError as error:
            # A server closes connections that were idle: that is no trouble, and a new one is opened at once.
            untrusted = isinstance(error.__cause__, ssl.SSLCertVerificationError)
            return Again(error, doubtful=True, after_s=0.0 if was_open else None, loud=untrusted)
        return judge(reply, self._clock.now_us() / 1e6)

    def _act(self, batch: NumberedBatch, verdict: Verdict) -> None:
        match verdict:
            case Settled():
                self._settle(batch, verdict)
            case Again(error, doubtful, after_s, loud):
                if doubtful:
                    self._outbox.doubt()
                self._wait("blocked" if loud else "retrying", error, after_s)
            case Smaller(error):
                self._make_smaller(batch, error)
            case Forgotten(error):
                self._renumber(batch, error)
            case Fenced(error) if batch.number.epoch < self._outbox.epoch:
                self._renumber(batch, error)
            case Fenced(error):
                _log.error("%s", error.paragraph())
                self.doing, self.error = "fenced", error
                self._outbox.end(error)

    def _settle(self, batch: NumberedBatch, settled: Settled) -> None:
        if settled.receipt.shed:
            _log.warning("%s dropped %d events: it is overloaded", self._connection.where, settled.receipt.shed)
        self._reject([(batch.lines[index], error) for index, error in sorted(settled.rejected.items())])
        self._backoff.succeeded()
        self._reported = None
        self.doing, self.error = "idle", None
        self._outbox.settle(settled.receipt, settled.rejected)

    def _make_smaller(self, batch: NumberedBatch, error: PenstockError) -> None:
        """The number is not used up, so that it may hold fewer events, unless an earlier try was taken."""
        if batch.number.doubtful:
            self._ask(batch, error)
        elif len(batch.lines) > 1:
            self._outbox.shrink()
        else:
            refused = EventRejectedError(
                f"the server takes no request of {len(batch.lines[0])} bytes",
                detail=error.message,
                hint="make the event smaller, or raise the limit of what stands before the server",
                reason="too_large",
            )
            self._reject([(batch.lines[0], refused)])
            self._outbox.refuse(refused)

    def _ask(self, batch: NumberedBatch, error: PenstockError) -> None:
        """Find out whether a doubtful batch was taken: a number too far ahead is refused with the one expected."""
        number = batch.number
        verdict = self._try(NumberedBatch(replace(number, sequence=number.sequence + 2), [b"{}"]))
        match verdict:
            case Forgotten(gap) if gap.expected == number.sequence:
                self._outbox.trust()
            case Forgotten(gap) if gap.expected > number.sequence:
                self._settle(batch, Settled(Receipt("", repeated=True)))
            case Forgotten() | Fenced() | Again():
                self._act(batch, verdict)
            case _:
                self._wait("blocked", error)

    def _renumber(self, batch: NumberedBatch, error: PenstockError) -> None:
        """Nobody can say any more whether a doubtful batch was taken: twice, with a warning, is better than lost."""
        if batch.number.doubtful:
            _log.warning(
                "%d events may be in the stream twice: they were sent, the answer was lost, and the server no longer "
                "knows their number (%s); give the stream an id= to be safe from that",
                len(batch.lines),
                error.message,
            )
        self._outbox.renumber()

    def _reject(self, rejected: Sequence[tuple[bytes, EventRejectedError]]) -> None:
        """Tell the program of each, or the log of those with one reason together."""
        if self._on_rejected is None:
            for (message, detail), count in Counter((error.message, error.detail) for _, error in rejected).items():
                _log.warning("%s: %s%s", message, detail, f" ({count} events)" if count > 1 else "")
            return
        for line, error in rejected:
            try:
                self._on_rejected(line, error)
            except Exception:
                _log.exception("on_rejected failed")

    def _wait(self, doing: Doing, error: PenstockError, after_s: float | None = None) -> None:
        self.doing, self.error = doing, error
        now = self._clock.monotonic()
        new = self._reported is None or self._reported[0] != error.message
        if new or (self._reported is not None and now - self._reported[1] > _REMIND_S):
            _log.log(logging.INFO if new and doing == "retrying" else logging.WARNING, "%s", error.paragraph())
            self._reported = (error.message, now)
        self._stop.wait(self._backoff.pause_s(after_s))
