"""Every error a user can meet, as a catalogue: each class has a stable code.

An error is raised with a message (what failed, names quoted), a detail (facts) and a hint (the command or option
that helps). `retry` says whether the same call may succeed later, `status` is that of an HTTP reply. They survive
pickling, because Spark's executors send them to the driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Self


class PenstockError(Exception):
    """The parent of all errors of this package."""

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    retry: ClassVar[bool] = False
    exit_code: ClassVar[int] = 1

    def __init_subclass__(
        cls,
        code: str | None = None,
        status: int | None = None,
        retry: bool | None = None,
        exit_code: int | None = None,
    ) -> None:
        facts = {"code": code, "status": status, "retry": retry, "exit_code": exit_code}
        for name, value in facts.items():
            if value is not None:
                setattr(cls, name, value)

    def __init__(self, message: str, *, detail: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail
        self.hint = hint
        self.retry_after_s: float | None = None

    def after(self, seconds: float) -> Self:
        """The same, with when it is worth trying again."""
        self.retry_after_s = seconds
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Everything that it was given goes along, also what only its own class has."""
        return _revive, (type(self), self.message, self.detail, self.hint), self.__dict__

    def body(self) -> dict[str, Any]:
        """The error as it appears in an HTTP reply or a socket message."""
        texts = {"message": self.message, "detail": self.detail, "hint": self.hint}
        return {"code": self.code} | {name: text and encodable(text) for name, text in texts.items()}

    def paragraph(self) -> str:
        """The error as a person reads it in a terminal."""
        lines = [f"{self.code}: {self.message}"]
        if self.detail:
            lines.append(f"  {self.detail}")
        if self.hint:
            lines.append(f"  What to do: {self.hint}")
        return "\n".join(lines)


def encodable(text: str) -> str:
    """A text that may quote a client: bytes that are no UTF-8 come as lone surrogates, which JSON cannot hold."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def revived(body: Mapping[str, Any]) -> PenstockError:
    """The error that another process wrote down with `PenstockError.body`."""
    kinds = {kind.code: kind for kind in _kinds(PenstockError)}
    kind = kinds.get(str(body.get("code")), PenstockError)
    return kind(str(body.get("message")), detail=body.get("detail"), hint=body.get("hint"))


def _kinds(kind: type[PenstockError]) -> Iterator[type[PenstockError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _kinds(below)


def _revive(kind: type[PenstockError], message: str, detail: str | None, hint: str | None) -> PenstockError:
    return kind(message, detail=detail, hint=hint)


# Declaring


class AppFileError(PenstockError, code="bad_app_file"):
    """The app file cannot be found, read or imported."""


class DeclarationError(PenstockError, code="bad_declaration"):
    """The app file declares something that cannot work; the message begins with the user's file and line."""


class MissingPackageError(PenstockError, code="missing_package"):
    """The app uses something that needs a package which is not installed."""


class SchemaChangeError(PenstockError, code="incompatible_schema"):
    """A stream's class no longer fits the events that its log already holds."""


# Machine and folder


class FolderHeldError(PenstockError, code="folder_held", retry=True):
    """Another process works on this data folder."""


class LogHeldError(PenstockError, code="log_held"):
    """A process of another data folder, perhaps on another machine, writes this log on Kafka."""


class FolderMismatchError(PenstockError, code="wrong_folder"):
    """The data folder belongs to another app, was written by a newer format, or cannot be used."""


class MovedError(PenstockError, code="moved"):
    """The data folder was closed by `penstock export --close`: another copy goes on."""


class ArchiveError(PenstockError, code="bad_archive"):
    """A file is no archive of an app, or is damaged."""


class BadLogError(PenstockError, code="bad_log"):
    """`--log` names no log that there is."""


class BrokerError(PenstockError, code="no_broker"):
    """The Kafka broker of Penstock's own cannot be started."""


class PortInUseError(PenstockError, code="port_in_use"):
    """The address to listen on is taken."""


class TopicError(PenstockError, code="topic_unwritable", retry=True):
    """A topic for other programs cannot be written to, or read to see what was published last."""


class BadMasterError(PenstockError, code="bad_master"):
    """`--master` names no master of Spark, or one that does not go with the log or the checkpoints."""


class ClusterError(PenstockError, code="cluster_unreachable", retry=True):
    """The master of a Spark cluster does not answer, or gives no executor."""


class WorkerError(PenstockError, code="unfit_worker"):
    """A worker of a Spark cluster cannot run the flows: a package, another Python, a path that it does not see."""


class JavaError(PenstockError, code="no_java"):
    """No Java, or one that is too old for Spark."""


class BadSwitchError(PenstockError, code="bad_switch"):
    """`PENSTOCK_PLAIN` names a part that is not there."""


class ChildFailedError(PenstockError, code="child_failed"):
    """A process of this run dies as often as it is started."""


class UnreachableError(PenstockError, code="unreachable", retry=True):
    """The server named by `--url` does not answer."""


# Sending


class QueueFullError(PenstockError, code="queue_full", retry=True):
    """A producer's queue is full, and it was told not to wait; the event was not taken."""


class EventRejectedError(PenstockError, code="event_rejected"):
    """The server rejected one event for good; `reason` holds its code, one of those in the reply."""

    def __init__(self, message: str, *, detail: str | None = None, hint: str | None = None, reason: str = "") -> None:
        super().__init__(message, detail=detail, hint=hint)
        self.reason = reason


class UnsentError(PenstockError, code="unsent", retry=True):
    """Events were not answered when a producer's time was up; the message says whether they are kept."""


class ClientClosedError(PenstockError, code="client_closed"):
    """A reading client was used after it was closed."""


class ProducerClosedError(PenstockError, code="producer_closed"):
    """A producer was used after `close`, or in a process that was forked from its own."""


# Processing


class StoreHeldError(PenstockError, code="store_held", retry=True):
    """Another process owns a processor's store."""


class StoreMismatchError(PenstockError, code="wrong_store"):
    """A processor's store belongs to another question, was written by a newer format, or cannot be used."""


class StoreFencedError(PenstockError, code="store_fenced"):
    """Another process has taken a processor over; the one that gets this can write and call nothing more."""


class StoreUnavailableError(PenstockError, code="store_unavailable", retry=True):
    """The database or file that holds a processor's work does not answer, or lets nothing be written."""


class CallRefusedError(PenstockError, code="call_refused", retry=True):
    """The other side refused an outgoing call: it had no effect."""


class CallCutOffError(PenstockError, code="call_cut_off", retry=True):
    """An outgoing call was not answered: nobody knows whether it took effect."""


class HandlerDivergedError(PenstockError, code="handler_diverged"):
    """A handler made other calls than in an earlier run of the same task."""


# Log


class CorruptBlockError(PenstockError, code="corrupt_block"):
    """A block's checksum does not match its bytes: the disk returned something else than was written."""


class PositionGoneError(PenstockError, code="position_gone", status=410):
    """A reader asked for events that retention has removed, or for an epoch that is no more."""


class DiskFullError(PenstockError, code="disk_full", status=507, retry=True):
    """The disk has no room; nothing of this append was taken."""


class LogUnavailableError(PenstockError, code="log_unavailable", status=503, retry=True):
    """The log cannot take appends now."""


class LogRefusedError(LogUnavailableError, code="log_refused"):
    """Kafka does not let this client in, or not do what the log needs."""


class OutcomeUnknownError(PenstockError, code="outcome_unknown", status=503, retry=True):
    """A commit takes longer than anybody waits: what was sent may be taken yet, or not."""


class StaleTermError(PenstockError, code="stale_term"):
    """A newer writer has taken this log over; the writer that gets this must stop."""


class LeaseLostError(PenstockError, code="lease_lost", retry=True):
    """Another edge runs this pull by now; nothing of the commit was written."""


class ConditionError(PenstockError, code="condition_failed", status=412):
    """An append was made under a condition that does not hold; nothing of it was taken."""


class FencedError(PenstockError, code="producer_fenced", status=403):
    """A producer wrote with an epoch that a newer instance of it has replaced."""


class SequenceGapError(PenstockError, code="sequence_gap", status=409):
    """A producer's sequence number skips ahead of the expected one, which `expected` holds."""

    def __init__(self, message: str, *, detail: str | None = None, hint: str | None = None, expected: int = 0) -> None:
        super().__init__(message, detail=detail, hint=hint)
        self.expected = expected


# Rights


class NoKeyError(PenstockError, code="no_key"):
    """The server would be open to other machines, and no key or JWT option says who may do what."""


class SecretError(PenstockError, code="bad_secret"):
    """A file or variable that should hold a secret or public key is missing, or does not hold one."""


class CertificateError(PenstockError, code="bad_certificate"):
    """The certificate or private key for TLS cannot be used."""


class KeyMissingError(PenstockError, code="unknown_key"):
    """No key has this id or name."""


class NotTakenError(PenstockError, code="not_taken", retry=True):
    """The running edge did not take an instruction in time."""


class UnauthorizedError(PenstockError, code="unauthorized", status=401):
    """No credential, or one that is unknown, revoked or expired."""


class SignatureError(PenstockError, code="bad_signature", status=401):
    """A webhook's signature is missing, wrong or too old; nothing of the request was looked at."""


class ForbiddenError(PenstockError, code="forbidden", status=403):
    """The credential is good, but does not have the right for this."""


class OriginError(PenstockError, code="foreign_origin", status=403):
    """A page of another origin asked, and this origin is not allowed."""


# Requests


class BadRequestError(PenstockError, code="bad_request", status=400):
    """A header, parameter or message is not what the contract says."""


class NotAcceptableError(PenstockError, code="not_acceptable", status=406):
    """The header `Accept` leaves out the one kind of content that a path has."""


class UpgradeError(PenstockError, code="upgrade_required", status=426):
    """A path that only speaks WebSocket was asked in another way."""


class NameTakenError(PenstockError, code="name_taken", status=409):
    """A named subscription was opened with another view, stream or query than the name stands for."""


class UnknownNameError(PenstockError, code="unknown_name", status=404):
    """No subscription of this name is remembered for this credential."""


class PolicyError(PenstockError, code="every_change", status=409):
    """A subscription that gets every change was asked to leave some out."""


class BadBodyError(PenstockError, code="bad_body", status=400):
    """The body as a whole cannot be read; its raw bytes are kept in `dead`."""


class BadQueryError(PenstockError, code="bad_query", status=400):
    """A `where`, `select`, `order_by` or `limit` that is not allowed or not meaningful."""


class BadPositionError(PenstockError, code="bad_position", status=400):
    """A token that is no position, or a position of another kind or name."""


class UnknownStreamError(PenstockError, code="unknown_stream", status=404):
    """No stream has this name."""


class UnknownChannelError(PenstockError, code="unknown_channel", status=404):
    """The app has no channel of this name."""


class UnknownViewError(PenstockError, code="unknown_view", status=404):
    """No view has this name."""


class UnknownTableError(PenstockError, code="unknown_table", status=404):
    """No table has this name."""


class UnknownRowError(PenstockError, code="unknown_row", status=404):
    """A table has no row of this key."""


class UnknownAckError(PenstockError, code="unknown_ack", status=404):
    """No request is known under this ack token."""


class UnknownWebhookError(PenstockError, code="unknown_webhook", status=404):
    """No webhook has this id, or it belongs to somebody else."""


class AddressError(PenstockError, code="bad_address", status=400):
    """Deliveries of a webhook may not go to this address."""


class TooManyWebhooksError(PenstockError, code="too_many_webhooks", status=409):
    """The server has as many webhooks as it may."""


class SpoolFullError(PenstockError, code="spool_full", status=503, retry=True):
    """The snapshots that webhooks are taking leave no room for another; it is tried again."""


class EndedRightError(PenstockError, code="right_ended", status=409):
    """A webhook cannot be enabled because the right of who made it has ended."""


class UnknownLetterError(PenstockError, code="unknown_letter", status=404):
    """There is no dead letter of this name, or retention has removed it."""


class UnknownVersionError(PenstockError, code="unknown_version", status=404):
    """A stream's schema has no version of this number."""


class UnknownPathError(PenstockError, code="not_found", status=404):
    """Nothing is served at this path."""


class MethodError(PenstockError, code="method_not_allowed", status=405):
    """The path exists, but not for this method."""


class ReadOnlyStreamError(PenstockError, code="read_only_stream", status=409):
    """Events cannot be posted to a flow's stream or to a ledger."""


class ReadOnlyEdgeError(PenstockError, code="read_only_edge", status=409):
    """This edge reads beside the one that writes; only that one can do what was asked. `detail` has its address."""


class TooLargeError(PenstockError, code="too_large", status=413):
    """A body or an event is larger than the declared limit."""


class UnsupportedContentError(PenstockError, code="unsupported_content", status=415):
    """The content type or encoding is not one that this endpoint takes."""


class EventsRejectedError(PenstockError, code="events_rejected", status=422):
    """Every event of a request was rejected; `rejected` in the same body says why."""


class SlowBodyError(PenstockError, code="too_slow", status=408, retry=True):
    """A request's body came slower than the server waits for; nothing of it was taken."""


class TooManyError(PenstockError, code="too_many", status=429, retry=True):
    """More than a stream's rate or a credential's limits allow; nothing of this request was done."""


class LaggingError(PenstockError, code="lagging", status=503, retry=True):
    """A view is further behind than its declared `max_lag`; nothing of this request was taken."""


class IdempotencyReusedError(PenstockError, code="idempotency_key_reused", status=422):
    """An Idempotency-Key came again with another body."""


class IdempotencyBusyError(PenstockError, code="idempotency_key_in_use", status=409, retry=True):
    """A request with the same Idempotency-Key is still under way."""


class OverloadedError(PenstockError, code="overloaded", status=503, retry=True):
    """The server holds as much unwritten data as it may; nothing of this request was taken."""


class NotReadyError(PenstockError, code="not_ready", status=503, retry=True):
    """The server or the view is still loading."""


class NotYetError(PenstockError, code="not_yet", status=504, retry=True):
    """The view had not absorbed the event when the wait ended."""


class OverBudgetError(PenstockError, code="over_budget", status=507):
    """A view needs more memory than its budget allows; it is not served until it is made smaller."""


# Flows


class PlanError(PenstockError, code="bad_plan"):
    """A flow's function returns a plan that cannot be run or trusted as a stream."""


class FlowsSilentError(PenstockError, code="flows_silent", retry=True):
    """The process that runs the flows, perhaps on another machine, has not been heard of for a while."""


class FlowError(PenstockError, code="flow_failed", retry=True):
    """A flow's function failed on its data; the message names the flow, the line, the batch and the offsets."""


class TooMuchError(PenstockError, code="too_much"):
    """A view without units has more rows to be computed from than it may."""


class GroupTooLargeError(PenstockError, code="group_too_large"):
    """One unit of a view is computed from more rows than it may."""


class DuplicateKeyError(PenstockError, code="duplicate_key"):
    """A batch holds two rows of one key, so that no one of them is the view's row."""


class BatchRangeError(PenstockError, code="batch_range"):
    """Spark replays a batch with other offsets than those already committed: the build must start anew."""


class CheckpointError(PenstockError, code="checkpoint_lost"):
    """Spark cannot load a flow's checkpoint and the log no longer reaches back far enough to rebuild."""
