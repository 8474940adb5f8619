"""Describes for AsyncAPI the socket on which events are published, each message with its ack."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from penstock.config import Limits
from penstock.serve.asyncapi_parts import Channel, message
from penstock.serve.openapi_parts import REJECTED, Spec, array, record, ref, text

_WHOLE: Spec = {"type": "integer", "minimum": 0}
_ECHO: Spec = {"type": ["integer", "string", "null"], "description": "The id of the message that this is about."}
_HELLO = record(type={"const": "hello"}, producer=text() | {"minLength": 1, "maxLength": 200}, epoch=_WHOLE)
_ACK = record(
    type={"const": "ack"},
    id=_WHOLE,
    accepted=_WHOLE,
    duplicates=_WHOLE,
    rejected=REJECTED,
    ack=ref("Position"),
)
_ACK["properties"]["shed"] = _WHOLE
_ERROR = record(type={"const": "error"}, id=_ECHO, error=ref("Error"))
_ERROR["properties"] |= {
    "retry_after_s": {"type": "number", "description": "Where it is worth sending the message again."},
    "expected": _WHOLE | {"description": "After a gap: the number that comes next."},
}


def publish_channels(events: Mapping[str, Spec], limits: Limits) -> Iterator[Channel]:
    """`events` has the schema of each stream's class."""
    for stream, event in events.items():
        sends = {
            "welcome": _welcome(stream, limits),
            "resume": record(type={"const": "resume"}, expected=_WHOLE),
            "ack": _ACK,
            "error": _ERROR,
            "pong": record(type={"const": "pong"}),
        }
        takes = {"hello": _HELLO, "publish": _publish(event), "ping": record(type={"const": "ping"})}
        yield Channel(
            f"stream.{stream}.publish",
            f"/streams/{stream}/publish",
            f"Events into the stream {stream}: each message is acknowledged once its events are on the disk",
            "socket",
            {kind: message(kind, payload) for kind, payload in sends.items()},
            {kind: message(kind, payload) for kind, payload in takes.items()},
        )


def _welcome(stream: str, limits: Limits) -> Spec:
    window: Spec = {"const": limits.publish_window, "description": "Messages that may wait for their ack."}
    most: Spec = {"const": limits.publish_bytes, "description": "Bytes of a message, and of those that wait."}
    return record(type={"const": "welcome"}, stream={"const": stream}, window=window, bytes=most)


def _publish(event: Spec) -> Spec:
    sent = record(type={"const": "publish"}, id=_WHOLE)
    sent["properties"] |= {"event": event, "events": array(event)}
    return sent | {"oneOf": [{"required": ["event"]}, {"required": ["events"]}]}
