"""Chooses the source that reads an origin, by its scheme: the one place that knows them all."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from penstock.clock import Clock
from penstock.collect.pulling.source import Source
from penstock.collect.pulling.sources.file import FileSource
from penstock.collect.pulling.sources.folder import FolderSource
from penstock.collect.pulling.sources.generator import GeneratorSource
from penstock.collect.pulling.sources.http import HttpSource
from penstock.collect.pulling.sources.kafka import KafkaSource
from penstock.collect.pulling.sources.ndjson import NdjsonSource
from penstock.collect.pulling.sources.penstock import PenstockStreamSource, PenstockViewSource
from penstock.collect.pulling.sources.poll import PollSource
from penstock.collect.pulling.sources.sse import SseSource
from penstock.collect.pulling.sources.tcp import TcpSource
from penstock.collect.pulling.sources.websocket import WebSocketSource
from penstock.config import Limits
from penstock.declaration import StreamDef
from penstock.origin import Origin, file_path

Make = Callable[[Origin, StreamDef, Limits, Clock, Callable[[float], Awaitable[Any]]], Source]


def source_of(
    origin: Origin, stream: StreamDef, limits: Limits, clock: Clock, sleep: Callable[[float], Awaitable[Any]]
) -> Source:
    """What reads it; nothing is opened yet."""
    return _SOURCES[origin.scheme.name](origin, stream, limits, clock, sleep)


def _file(origin: Origin, stream: StreamDef, limits: Limits, clock: Clock, sleep: Any) -> Source:
    path = file_path(origin.url)
    many = path.endswith("/") or any(sign in path for sign in "*?[")
    return (FolderSource if many else FileSource)(origin, limits.event_bytes, clock, sleep)


def _penstock(origin: Origin, stream: StreamDef, limits: Limits, clock: Clock, sleep: Any) -> Source:
    if "/views/" in origin.url:
        return PenstockViewSource(origin, clock)
    return PenstockStreamSource(origin, stream, clock)


_SOURCES: dict[str, Make] = {
    "ws": lambda origin, stream, limits, clock, sleep: WebSocketSource(origin, limits.body_bytes),
    "sse+http": lambda origin, stream, limits, clock, sleep: SseSource(origin, limits.event_bytes),
    "ndjson+http": lambda origin, stream, limits, clock, sleep: NdjsonSource(
        origin, limits.event_bytes, limits.body_bytes, sleep
    ),
    "poll+http": lambda origin, stream, limits, clock, sleep: PollSource(origin, limits.body_bytes, sleep),
    "http": lambda origin, stream, limits, clock, sleep: HttpSource(origin, limits, sleep),
    "penstock+http": _penstock,
    "tcp": lambda origin, stream, limits, clock, sleep: TcpSource(origin, limits.event_bytes),
    "kafka": lambda origin, stream, limits, clock, sleep: KafkaSource(origin, clock),
    "file": _file,
    "function": lambda origin, stream, limits, clock, sleep: GeneratorSource(origin),
}
