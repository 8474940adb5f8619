"""Describes the paths of dead letters for the OpenAPI document."""

from __future__ import annotations

from penstock.serve.openapi_parts import Spec, also, answers, array, obj, parameter, record, text

_NULLABLE: Spec = {"type": ["string", "null"]}
_FLAG: Spec = {"type": "string", "enum": ["true", "false"]}
_EVENT: Spec = {
    "description": "Judged as a new event of the stream is: what does not fit is told in the letter's result."
}
_LETTER = record(
    letter=text("Its name: side and offset, such as 0-17."),
    stream=text("Where it was meant to go."),
    reason=text(),
    detail=_NULLABLE,
    received=text(),
    sent_at=_NULLABLE,
    sender=_NULLABLE,
    flow=_NULLABLE,
    replayed={"type": "boolean"},
    cut={"type": "boolean", "description": "Only the first MiB was kept."},
    raw={"type": "string", "contentEncoding": "base64"},
)
_RESULT = also(
    record(
        letter=text(),
        result={
            "type": "string",
            "enum": ["replayed", "acceptable", "already_replayed", "rejected", "unknown_letter"],
        },
        stream=_NULLABLE,
    ),
    reason=text(),
    detail=_NULLABLE,
)


def dead_paths() -> Spec:
    """`/dead`, `/dead/{letter}` and `/dead/replay`."""
    letter: Spec = {"type": "string", "pattern": "^[01]-[0-9]{1,15}$"}
    name: Spec = {"name": "letter", "in": "path", "required": True, "schema": letter}
    asked = obj(
        letters=array(
            obj(letter=letter, events={"type": ["array", "null"], "items": _EVENT}) | {"required": ["letter"]}
        ),
        dry_run={"type": "boolean", "default": False},
    )
    done = record(
        letters=array(_RESULT),
        accepted={"type": "integer"},
        duplicates={"type": "integer"},
        acks={"type": "object", "additionalProperties": text()},
    )
    return {
        "/dead": {
            "get": {
                "operationId": "dead_letters",
                "summary": "Dead letters, oldest first",
                "parameters": [
                    parameter("stream", text("Only letters meant for this stream.")),
                    parameter("reason", text("Only letters with this reason.")),
                    parameter(
                        "since",
                        {"type": "string", "format": "date-time", "description": "Only letters from this time on."},
                    ),
                    parameter("replayed", _FLAG),
                    parameter("masked", _FLAG | {"description": "false: private fields are shown."}),
                    parameter("after", text("`next` of the page before.")),
                    parameter("limit", {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100}),
                ],
                "responses": answers(record(letters=array(_LETTER), next=text(), more={"type": "boolean"}), 400, 410),
            }
        },
        "/dead/{letter}": {
            "get": {
                "operationId": "dead_letter",
                "summary": "Everything of one dead letter",
                "parameters": [name],
                "responses": answers(_LETTER, 400, 404),
            }
        },
        "/dead/replay": {
            "post": {
                "operationId": "replay_dead_letters",
                "summary": "Send dead letters again, each once; `events` replaces what a letter holds",
                "requestBody": {"required": True, "content": {"application/json": {"schema": asked}}},
                "responses": answers(done, 400, 413, 415, 503, 507),
            }
        },
    }
