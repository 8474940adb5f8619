"""The routes on which events come in, and those of their acks and dead letters, with what each takes and answers."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.json_schema import (
    ANYTHING,
    FLAG,
    NUMBER,
    WHOLE,
    Spec,
    also,
    array,
    choice,
    message,
    obj,
    record,
    ref,
    text,
)
from penstock.route import EVENT_FIELDS, WAIT, Body, Link, Parameter, Reply, Route, Subject, Talk, json_body

# What became of events

_REJECTED = array(record("index: whole, reason, detail?"))
_MORE = {
    "shed": WHOLE | {"description": "Events dropped by the stream's rule; only where there are some."},
    "rejected_in_all": WHOLE | {"description": "Where the list of a remembered reply is shorter."},
}
_TAKEN = also(
    record(
        "accepted: whole, duplicates: whole, level: logged|replicated|applied",
        rejected=_REJECTED,
        ack=text("A token: pass it as after=, or to /acks."),
    ),
    **_MORE,
)
_WITH_ROW = also(
    _TAKEN,
    "view, position: Position",
    row={"type": ["object", "null"], "description": "With reply=: the view's row."},
)
_PENDING = record(ack=text("A receipt: pass it to /acks."), level={"const": "pending"})
_LATER = also(
    record("ack, level: pending|logged|applied"),
    "accepted: whole, duplicates: whole, error: Error",
    rejected=_REJECTED,
    **_MORE,
    views={"type": "object", "additionalProperties": record("applied: flag, position?")},
)

# What a POST asks for and carries

_NAME: Spec = {"type": "string", "pattern": "^[!-~]{1,200}$"}
_NUMBER: Spec = {"type": "integer", "minimum": 0, "maximum": 2**53}
_MOMENT: Spec = {
    "oneOf": [
        {"type": "integer", "minimum": 0, "maximum": 4_102_444_800_000},
        {"type": "string", "format": "date-time"},
    ]
}
_HEADERS = tuple(
    Parameter(name, words, schema, place="header")
    for name, words, schema in (
        ("Producer-Id", "Who sends; with the other two, or none of them.", _NAME),
        ("Producer-Epoch", "Which incarnation of it.", _NUMBER),
        ("Producer-Seq", "The number of this request.", _NUMBER),
        ("Idempotency-Key", "Makes this request happen once.", _NAME),
        (
            "Penstock-Sent",
            "When the sender's clock says that it sends: milliseconds since 1970, or RFC 3339.",
            _MOMENT,
        ),
        (
            "Penstock-Complete",
            "Of a numbered producer: nothing older than this comes from it; `end`: nothing more.",
            {"oneOf": [*_MOMENT["oneOf"], {"const": "end"}]},
        ),
        ("Prefer", "`respond-async` is `ack=none`.", text()),
    )
)
_WHEN = "When to answer; `replicated` only on a Kafka cluster that does."
_ACK = Parameter("ack", _WHEN, choice("none", "logged", "replicated", "applied") | {"default": "logged"})
_REPLY = Parameter("reply", "A view: answer with its row at the first commit past the event.")
_KEY = Parameter("key", "A key that may only write, where no header can be set.", is_credential=True)


def _event(subject: Subject) -> Spec:
    strict = subject.stream.unknown == "reject"
    return {"allOf": [subject.event], "unevaluatedProperties": False} if strict else subject.event


def _envelope(subject: Subject) -> Spec:
    """An event of CloudEvents 1.0; further attributes have names of small letters and digits."""
    word: Spec = {"type": "string", "minLength": 1}
    envelope = record(specversion={"const": "1.0"}, id=word, source=word | {"format": "uri-reference"}, type=word)
    envelope["properties"] |= {"time": {"type": "string", "format": "date-time"}, "data": _event(subject)}
    return envelope | {"required": [*envelope["required"], "data"]}


_EVENTS = Body(
    {
        "application/json": lambda s: {"oneOf": [_event(s), array(_event(s))]},
        "application/x-ndjson": text("One event per line."),
        "text/plain": text("JSON or lines of it, as navigator.sendBeacon sends it."),
        "text/csv": text("A header with the names of the fields, then one event per row."),
        "application/vnd.apache.arrow.stream": {"type": "string", "format": "binary"},
        "application/cloudevents+json": _envelope,
        "application/cloudevents-batch+json": lambda s: array(_envelope(s)),
    },
    "Packed with gzip or zstd, if `Content-Encoding` says so.",
)

# Rows of tables

_ONCE = next(header for header in _HEADERS if header.name == "Idempotency-Key")
_ROW_KEY = Parameter(
    "key", "The key: one segment of the path for each of its columns, in their order.", place="path", pattern=".+"
)
_TABLE_ACK = Parameter("ack", _WHEN, choice("logged", "replicated", "applied") | {"default": "logged"})
_IF = (
    Parameter("If-Match", "ETags: the row must have one of them; `*`: it must be there.", place="header"),
    Parameter("If-None-Match", "`*`: the row must not be there.", place="header"),
)
_TAGGED = {"ETag": {"description": "Of the row as it is now.", "schema": text()}}
_ORDERS = {"description": 'A row, or `{"op": "delete", "key": {...}}`.'}


def _table_route(method: str, name: str, summary: str, body: Body | None, *errors: int) -> Route:
    rejected = Reply(422, also(record("error: Error"), **_TAKEN["properties"]), "The row does not fit the table")
    return Route(
        f"{method} /tables/{{table}}/{{key}}",
        "write",
        name,
        summary,
        (_ROW_KEY, _TABLE_ACK, WAIT, *_IF, _ONCE),
        body,
        (Reply(200, _TAKEN, headers={} if method == "DELETE" else _TAGGED), *((rejected,) if body else ())),
        (404, 408, 409, 412, 413, 415, 503, 507, *errors),
        needs_writer=True,
    )


# The socket of a publisher

_ECHO: Spec = {"type": ["integer", "string", "null"], "description": "The id of the message that this is about."}


def _to_publishers(subject: Subject) -> Mapping[str, Spec]:
    limits = subject.limits
    window: Spec = {"const": limits.publish_window, "description": "Messages that may wait for their ack."}
    most: Spec = {"const": limits.publish_bytes, "description": "Bytes of a message, and of those that wait."}
    return _typed(
        welcome=record(stream={"const": subject.thing.target}, window=window, bytes=most),
        resume=record("expected: whole"),
        ack=also(
            record("id: whole, accepted: whole, duplicates: whole, ack: Position", rejected=_REJECTED), "shed: whole"
        ),
        error=also(
            record("error: Error", id=_ECHO),
            retry_after_s=NUMBER | {"description": "Where it is worth sending the message again."},
            expected=WHOLE | {"description": "After a gap: the number that comes next."},
        ),
        pong=record(),
    )


def _from_publishers(subject: Subject) -> Mapping[str, Spec]:
    either = {"oneOf": [{"required": ["event"]}, {"required": ["events"]}]}
    return _typed(
        hello=record("epoch: whole", producer=text() | {"minLength": 1, "maxLength": 200}),
        publish=also(record("id: whole"), event=subject.event, events=array(subject.event)) | either,
        ping=record(),
    )


def _typed(**payloads: Spec) -> Mapping[str, Spec]:
    """Each with its name as its type."""
    typed = {kind: also(payload, type={"const": kind}) for kind, payload in payloads.items()}
    return {kind: message(kind, p | {"required": ["type", *p["required"]]}) for kind, p in typed.items()}


# Dead letters

_LETTER = record(
    "reason, detail?, received, sent_at?, sender?, flow?, replayed: flag",
    letter=text("Its name: side and offset, such as 0-17."),
    stream=text("Where it was meant to go."),
    cut=FLAG | {"description": "Only the first MiB was kept."},
    raw={"type": "string", "contentEncoding": "base64"},
)
_RESULT = also(
    record("letter, stream?, result: replayed|acceptable|already_replayed|rejected|unknown_letter"), "reason, detail?"
)
_EVENT: Spec = {
    "description": "Judged as a new event of the stream is: what does not fit is told in the letter's result."
}
_LETTER_NAME: Spec = {"type": "string", "pattern": "^[01]-[0-9]{1,15}$"}
_REPLAY = obj(
    letters=array(
        obj(letter=_LETTER_NAME, events={"type": ["array", "null"], "items": _EVENT}) | {"required": ["letter"]}
    ),
    dry_run=FLAG | {"default": False},
)
_REPLAYED = record("accepted: integer, duplicates: integer, acks: {text}", letters=array(_RESULT))
_YES_OR_NO = choice("true", "false")


def _image(status: int, words: str) -> Reply:
    headers = {"Penstock-Rejected": {"description": "Why the event was not taken, if so.", "schema": text()}}
    return Reply(status, {"type": "string", "format": "binary"}, words, "image/gif", headers=headers)


ROUTES = (
    Route(
        "POST /streams/{stream}",
        "write",
        "post_to",
        "Send events to {thing}",
        (_ACK, _REPLY, WAIT, *_HEADERS, _KEY),
        _EVENTS,
        (
            Reply(200, _WITH_ROW, links=(Link("later", "token", "ack", "ack"),)),
            Reply(
                202,
                {"oneOf": [_PENDING, _WITH_ROW]},
                "ack=none: taken, not yet durable; reply=: durable, the view not yet there",
            ),
            Reply(204, words="This sequence number of the producer was taken before"),
            Reply(
                422,
                also(record("error: Error"), **_TAKEN["properties"]),
                "All events were rejected, or a key was used for another body",
            ),
        ),
        (404, 408, 409, 413, 415, 503, 507),
        needs_writer=True,
    ),
    Route(
        "GET /streams/{stream}/publish",
        "write",
        "publish",
        "Events into {thing}: each message is acknowledged once its events are on the disk",
        needs_writer=True,
        talk=Talk("publish", _to_publishers, _from_publishers),
    ),
    Route(
        "GET /streams/{stream}/pixel.gif",
        "write",
        "pixel_of",
        "Send one event to {thing} in the address of an image",
        (EVENT_FIELDS,),
        replies=(
            _image(200, "A transparent image, once the event or its dead letter is durable"),
            *(_image(status, "The same image: nothing was kept") for status in (401, 403, 429, 503, 507)),
        ),
        needs_writer=True,
    ),
    Route(
        "POST /tables/{table}",
        "write",
        "post_rows",
        "Set and delete rows of {thing}, in one commit",
        (_TABLE_ACK, WAIT, _ONCE),
        Body(
            {
                "application/json": lambda s: {"oneOf": [_ORDERS, array(_ORDERS)]},
                "application/x-ndjson": text("One row or delete per line."),
            },
            "Packed with gzip or zstd, if `Content-Encoding` says so.",
        ),
        (
            Reply(200, _TAKEN),
            Reply(422, also(record("error: Error"), **_TAKEN["properties"]), "All were rejected"),
        ),
        (404, 408, 409, 413, 415, 503, 507),
        needs_writer=True,
    ),
    Route(
        "GET /tables/{table}/{key}",
        "read",
        "read_row",
        "One row of {thing}",
        (
            _ROW_KEY,
            Parameter("at", "The row that held at this time, where the table keeps versions."),
            Parameter("If-None-Match", "The ETag of an earlier answer.", place="header"),
        ),
        replies=(
            Reply(200, lambda s: ref(f"view.{s.thing.target}"), headers=_TAGGED),
            Reply(304, words="Not changed"),
        ),
        errors=(400, 404, 503, 507),
    ),
    _table_route(
        "PUT",
        "put_row",
        "Set a row of {thing}",
        Body({"application/json": lambda s: s.event}, "The fields of the key may be left out."),
    ),
    _table_route(
        "PATCH",
        "patch_row",
        "Change fields of a row of {thing}, by a merge patch (RFC 7396)",
        Body({"application/merge-patch+json": ANYTHING, "application/json": ANYTHING}),
    ),
    _table_route("DELETE", "delete_row", "Delete a row of {thing}", None),
    Route(
        "GET /acks/{token}",
        "ack",
        "ack",
        "What became of a request",
        (Parameter("token", place="path"), WAIT),
        replies=(Reply(200, _LATER),),
        errors=(404,),
    ),
    Route(
        "GET /dead",
        "admin",
        "dead_letters",
        "Dead letters, oldest first",
        (
            Parameter("stream", "Only letters meant for this stream."),
            Parameter("reason", "Only letters with this reason."),
            Parameter("since", "Only letters from this time on.", {"type": "string", "format": "date-time"}),
            Parameter("replayed", "Only letters that were replayed, or that were not.", _YES_OR_NO),
            Parameter("masked", "false: private fields are shown.", _YES_OR_NO),
            Parameter("after", "`next` of the page before."),
            Parameter("limit", "Letters at most.", {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100}),
        ),
        replies=(Reply(200, record("next, more: flag", letters=array(_LETTER))),),
        errors=(410,),
    ),
    Route(
        "GET /dead/{letter}",
        "admin",
        "dead_letter",
        "Everything of one dead letter",
        (Parameter("letter", schema=_LETTER_NAME, place="path", pattern="[^/]*-[^/]*"),),
        replies=(Reply(200, _LETTER),),
        errors=(404,),
    ),
    Route(
        "POST /dead/replay",
        "any",
        "replay_dead_letters",  # its handler asks for the rights of what a body names
        "Send dead letters again, each once; `events` replaces what a letter holds",
        body=json_body(_REPLAY),
        replies=(Reply(200, _REPLAYED),),
        errors=(413, 415, 503, 507),
        needs_writer=True,
    ),
)
