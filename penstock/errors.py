"""Every error a user can meet, as a catalogue: each class has a stable code; `error.py` says what all of them have."""

from __future__ import annotations

from penstock.error import PenstockError as PenstockError
from penstock.error import encodable as encodable
from penstock.error import revived as revived

# Declaring


class AppFileError(PenstockError):
    """The app file cannot be found, read or imported."""

    code = "bad_app_file"


class DeclarationError(PenstockError):
    """The app file declares something that cannot work; the message begins with the user's file and line."""

    code = "bad_declaration"


class MissingPackageError(PenstockError):
    """The app uses something that needs a package which is not installed."""

    code = "missing_package"


class SchemaChangeError(PenstockError):
    """A stream's class no longer fits the events that its log already holds."""

    code = "incompatible_schema"


# Machine and folder


class FolderHeldError(PenstockError):
    """Another process works on this data folder."""

    code = "folder_held"
    retry = True


class FolderMismatchError(PenstockError):
    """The data folder belongs to another app, was written by a newer format, or cannot be used."""

    code = "wrong_folder"


class PortInUseError(PenstockError):
    """The address to listen on is taken."""

    code = "port_in_use"


class JavaError(PenstockError):
    """No Java, or one that is too old for Spark."""

    code = "no_java"


class BadSwitchError(PenstockError):
    """`PENSTOCK_PLAIN` names a part that is not there."""

    code = "bad_switch"


class ChildFailedError(PenstockError):
    """A process of this run dies as often as it is started."""

    code = "child_failed"


class UnreachableError(PenstockError):
    """The server named by `--url` does not answer."""

    code = "unreachable"
    retry = True


# Sending


class QueueFullError(PenstockError):
    """A producer's queue is full, and it was told not to wait; the event was not taken."""

    code = "queue_full"
    retry = True


class EventRejectedError(PenstockError):
    """The server rejected one event for good; `reason` holds its code, one of those in the reply."""

    code = "event_rejected"

    def __init__(self, message: str, *, detail: str | None = None, hint: str | None = None, reason: str = "") -> None:
        super().__init__(message, detail=detail, hint=hint)
        self.reason = reason


class UnsentError(PenstockError):
    """Events were not answered when a producer's time was up; the message says whether they are kept."""

    code = "unsent"
    retry = True


class ClientClosedError(PenstockError):
    """A reading client was used after it was closed."""

    code = "client_closed"


class ProducerClosedError(PenstockError):
    """A producer was used after `close`, or in a process that was forked from its own."""

    code = "producer_closed"


# Processing


class StoreHeldError(PenstockError):
    """Another process owns a processor's store."""

    code = "store_held"
    retry = True


class StoreMismatchError(PenstockError):
    """A processor's store belongs to another question, was written by a newer format, or cannot be used."""

    code = "wrong_store"


class StoreFencedError(PenstockError):
    """Another process has taken a processor over; the one that gets this can write and call nothing more."""

    code = "store_fenced"


class StoreUnavailableError(PenstockError):
    """The database or file that holds a processor's work does not answer, or lets nothing be written."""

    code = "store_unavailable"
    retry = True


class CallRefusedError(PenstockError):
    """The other side refused an outgoing call: it had no effect."""

    code = "call_refused"
    retry = True


class CallCutOffError(PenstockError):
    """An outgoing call was not answered: nobody knows whether it took effect."""

    code = "call_cut_off"
    retry = True


class HandlerDivergedError(PenstockError):
    """A handler made other calls than in an earlier run of the same task."""

    code = "handler_diverged"


# Log


class CorruptBlockError(PenstockError):
    """A block's checksum does not match its bytes: the disk returned something else than was written."""

    code = "corrupt_block"


class PositionGoneError(PenstockError):
    """A reader asked for events that retention has removed, or for an epoch that is no more."""

    code = "position_gone"
    status = 410


class DiskFullError(PenstockError):
    """The disk has no room; nothing of this append was taken."""

    code = "disk_full"
    status = 507
    retry = True


class LogUnavailableError(PenstockError):
    """The log cannot take appends now."""

    code = "log_unavailable"
    status = 503
    retry = True


class OutcomeUnknownError(PenstockError):
    """A commit takes longer than anybody waits: what was sent may be taken yet, or not."""

    code = "outcome_unknown"
    status = 503
    retry = True


class StaleTermError(PenstockError):
    """A newer writer has taken this log over; the writer that gets this must stop."""

    code = "stale_term"


class LeaseLostError(PenstockError):
    """Another edge runs this pull by now; nothing of the commit was written."""

    code = "lease_lost"
    retry = True


class ConditionError(PenstockError):
    """An append was made under a condition that does not hold; nothing of it was taken."""

    code = "condition_failed"
    status = 412


class FencedError(PenstockError):
    """A producer wrote with an epoch that a newer instance of it has replaced."""

    code = "producer_fenced"
    status = 403


class SequenceGapError(PenstockError):
    """A producer's sequence number skips ahead of the expected one, which `expected` holds."""

    code = "sequence_gap"
    status = 409

    def __init__(self, message: str, *, detail: str | None = None, hint: str | None = None, expected: int = 0) -> None:
        super().__init__(message, detail=detail, hint=hint)
        self.expected = expected


# Rights


class NoKeyError(PenstockError):
    """The server would be open to other machines, and no key or JWT option says who may do what."""

    code = "no_key"


class SecretError(PenstockError):
    """A file or variable that should hold a secret or public key is missing, or does not hold one."""

    code = "bad_secret"


class CertificateError(PenstockError):
    """The certificate or private key for TLS cannot be used."""

    code = "bad_certificate"


class KeyMissingError(PenstockError):
    """No key has this id or name."""

    code = "unknown_key"


class NotTakenError(PenstockError):
    """The running edge did not take an instruction in time."""

    code = "not_taken"
    retry = True


class UnauthorizedError(PenstockError):
    """No credential, or one that is unknown, revoked or expired."""

    code = "unauthorized"
    status = 401


class SignatureError(PenstockError):
    """A webhook's signature is missing, wrong or too old; nothing of the request was looked at."""

    code = "bad_signature"
    status = 401


class ForbiddenError(PenstockError):
    """The credential is good, but does not have the right for this."""

    code = "forbidden"
    status = 403


class OriginError(PenstockError):
    """A page of another origin asked, and this origin is not allowed."""

    code = "foreign_origin"
    status = 403


# Requests


class BadRequestError(PenstockError):
    """A header, parameter or message is not what the contract says."""

    code = "bad_request"
    status = 400


class NotAcceptableError(PenstockError):
    """The header `Accept` leaves out the one kind of content that a path has."""

    code = "not_acceptable"
    status = 406


class UpgradeError(PenstockError):
    """A path that only speaks WebSocket was asked in another way."""

    code = "upgrade_required"
    status = 426


class NameTakenError(PenstockError):
    """A named subscription was opened with another view, stream or query than the name stands for."""

    code = "name_taken"
    status = 409


class UnknownNameError(PenstockError):
    """No subscription of this name is remembered for this credential."""

    code = "unknown_name"
    status = 404


class PolicyError(PenstockError):
    """A subscription that gets every change was asked to leave some out."""

    code = "every_change"
    status = 409


class BadBodyError(PenstockError):
    """The body as a whole cannot be read; its raw bytes are kept in `dead`."""

    code = "bad_body"
    status = 400


class BadQueryError(PenstockError):
    """A `where`, `select`, `order_by` or `limit` that is not allowed or not meaningful."""

    code = "bad_query"
    status = 400


class BadPositionError(PenstockError):
    """A token that is no position, or a position of another kind or name."""

    code = "bad_position"
    status = 400


class UnknownStreamError(PenstockError):
    """No stream has this name."""

    code = "unknown_stream"
    status = 404


class UnknownChannelError(PenstockError):
    """The app has no channel of this name."""

    code = "unknown_channel"
    status = 404


class UnknownViewError(PenstockError):
    """No view has this name."""

    code = "unknown_view"
    status = 404


class UnknownAckError(PenstockError):
    """No request is known under this ack token."""

    code = "unknown_ack"
    status = 404


class UnknownWebhookError(PenstockError):
    """No webhook has this id, or it belongs to somebody else."""

    code = "unknown_webhook"
    status = 404


class AddressError(PenstockError):
    """Deliveries of a webhook may not go to this address."""

    code = "bad_address"
    status = 400


class TooManyWebhooksError(PenstockError):
    """The server has as many webhooks as it may."""

    code = "too_many_webhooks"
    status = 409


class SpoolFullError(PenstockError):
    """The snapshots that webhooks are taking leave no room for another; it is tried again."""

    code = "spool_full"
    status = 503
    retry = True


class EndedRightError(PenstockError):
    """A webhook cannot be enabled because the right of who made it has ended."""

    code = "right_ended"
    status = 409


class UnknownLetterError(PenstockError):
    """There is no dead letter of this name, or retention has removed it."""

    code = "unknown_letter"
    status = 404


class UnknownVersionError(PenstockError):
    """A stream's schema has no version of this number."""

    code = "unknown_version"
    status = 404


class UnknownPathError(PenstockError):
    """Nothing is served at this path."""

    code = "not_found"
    status = 404


class MethodError(PenstockError):
    """The path exists, but not for this method."""

    code = "method_not_allowed"
    status = 405


class ReadOnlyStreamError(PenstockError):
    """Events cannot be posted to a flow's stream or to a ledger."""

    code = "read_only_stream"
    status = 409


class ReadOnlyEdgeError(PenstockError):
    """This edge reads beside the one that writes; only that one can do what was asked. `detail` has its address."""

    code = "read_only_edge"
    status = 409


class TooLargeError(PenstockError):
    """A body or an event is larger than the declared limit."""

    code = "too_large"
    status = 413


class UnsupportedContentError(PenstockError):
    """The content type or encoding is not one that this endpoint takes."""

    code = "unsupported_content"
    status = 415


class EventsRejectedError(PenstockError):
    """Every event of a request was rejected; `rejected` in the same body says why."""

    code = "events_rejected"
    status = 422


class SlowBodyError(PenstockError):
    """A request's body came slower than the server waits for; nothing of it was taken."""

    code = "too_slow"
    status = 408
    retry = True


class TooManyError(PenstockError):
    """More than a stream's rate or a credential's limits allow; nothing of this request was done."""

    code = "too_many"
    status = 429
    retry = True


class LaggingError(PenstockError):
    """A view is further behind than its declared `max_lag`; nothing of this request was taken."""

    code = "lagging"
    status = 503
    retry = True


class IdempotencyReusedError(PenstockError):
    """An Idempotency-Key came again with another body."""

    code = "idempotency_key_reused"
    status = 422


class IdempotencyBusyError(PenstockError):
    """A request with the same Idempotency-Key is still under way."""

    code = "idempotency_key_in_use"
    status = 409
    retry = True


class OverloadedError(PenstockError):
    """The server holds as much unwritten data as it may; nothing of this request was taken."""

    code = "overloaded"
    status = 503
    retry = True


class NotReadyError(PenstockError):
    """The server or the view is still loading."""

    code = "not_ready"
    status = 503
    retry = True


class NotYetError(PenstockError):
    """The view had not absorbed the event when the wait ended."""

    code = "not_yet"
    status = 504
    retry = True


class OverBudgetError(PenstockError):
    """A view needs more memory than its budget allows; it is not served until it is made smaller."""

    code = "over_budget"
    status = 507


# Flows


class PlanError(PenstockError):
    """A flow's function returns a plan that cannot be run or trusted as a stream."""

    code = "bad_plan"


class FlowError(PenstockError):
    """A flow's function failed on its data; the message names the flow, the line, the batch and the offsets."""

    code = "flow_failed"
    retry = True


class DuplicateKeyError(PenstockError):
    """A batch holds two rows of one key, so that no one of them is the view's row."""

    code = "duplicate_key"


class BatchRangeError(PenstockError):
    """Spark replays a batch with other offsets than those already committed: the build must start anew."""

    code = "batch_range"


class CheckpointError(PenstockError):
    """Spark cannot load a flow's checkpoint and the log no longer reaches back far enough to rebuild."""

    code = "checkpoint_lost"
