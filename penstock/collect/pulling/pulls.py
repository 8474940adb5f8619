"""Runs all pulls of an app in one edge: starts them, keeps their leases, pauses them, and says how each is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from random import Random
from typing import Any

from penstock.clock import Clock
from penstock.collect.intake import Intake
from penstock.collect.pulling.lease import RENEW_S, Leases
from penstock.collect.pulling.pull import Pull
from penstock.collect.pulling.pull_events import PullEvents
from penstock.collect.pulling.pull_loop import PullLoop, Sleep
from penstock.collect.pulling.pull_source import Source
from penstock.collect.pulling.resume import ResumePoint
from penstock.collect.pulling.sources.file import FileSource
from penstock.collect.pulling.sources.folder import FolderSource
from penstock.collect.pulling.sources.generator import GeneratorSource
from penstock.collect.pulling.sources.http import HttpSource, NdjsonSource, PollSource, SseSource
from penstock.collect.pulling.sources.kafka import KafkaSource
from penstock.collect.pulling.sources.penstock import PenstockStreamSource, PenstockViewSource
from penstock.collect.pulling.sources.postgresql import PostgresTable
from penstock.collect.pulling.sources.table_file import TableFile
from penstock.collect.pulling.sources.tcp import TcpSource
from penstock.collect.pulling.sources.websocket import WebSocketSource
from penstock.collect.pulling.table_pull import TablePull
from penstock.collect.tables.table_writer import TableWriter
from penstock.config import Limits
from penstock.declaration import Application, PullDef, StreamDef
from penstock.errors import PenstockError
from penstock.log.group_commit import GroupCommit
from penstock.log.log import Log
from penstock.observe.metrics import Observer
from penstock.observe.signals import Signals
from penstock.pull_origin import Origin, file_path

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


class Pulls:
    """All pulls of an app; lives on the edge's loop."""

    def __init__(
        self,
        application: Application,
        intakes: Mapping[str, Intake],
        tables: Mapping[str, TableWriter],
        log: Log,
        group: GroupCommit,
        holder: str,
        limits: Limits,
        clock: Clock,
        signals: Signals,
        random: Random,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._leases = Leases(log, group, holder, clock)

        def into_table(declared: PullDef) -> TablePull:
            source = (TableFile if declared.origin.scheme.name == "file" else PostgresTable)(declared.origin, sleep)
            writer = tables[declared.stream]
            return TablePull(declared, writer, source, log.memory(), self._leases, clock, signals, random, sleep)

        def into_stream(declared: PullDef) -> Pull:
            intake = intakes[declared.stream]
            return Pull(
                declared,
                intake,
                source_of(declared.origin, intake.judge.stream, limits, clock, sleep),
                PullEvents(intake.judge, declared.map, limits.event_bytes),
                ResumePoint(declared, log.memory()),
                self._leases,
                group,
                clock,
                signals,
                random,
                sleep,
            )

        self._pulls: list[PullLoop] = [
            into_table(declared) if declared.stream in tables else into_stream(declared)
            for declared in application.pulls
        ]
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(pull.run()) for pull in self._pulls]
        if self._pulls:
            self._tasks.append(loop.create_task(self._keep_leases()))

    async def close(self) -> None:
        """Stop reading and give the leases back."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._tasks:
            with suppress(PenstockError):
                await self._leases.release([pull.key for pull in self._pulls])

    def pause(self, stream: str, reason: str) -> None:
        """Take nothing more into this stream, until `resume`; `status` says why."""
        for pull in self._into(stream):
            pull.pause(reason)

    def resume(self, stream: str) -> None:
        for pull in self._into(stream):
            pull.resume()

    def status(self) -> list[dict[str, Any]]:
        """For `/status` and `/readyz`: `since` is when the state began, `position` where the source is resumed."""
        return [pull.status() for pull in self._pulls]

    def measure(self, observer: Observer) -> None:
        """Show every pull's lag as metrics."""
        labels = ("stream", "source")
        events, size, seconds = (self._lags(unit) for unit in ("events", "bytes", "seconds"))
        observer.gauge("penstock_collect_pull_lag_events", "Events that a source has and we do not.", labels, events)
        observer.gauge("penstock_collect_pull_lag_bytes", "Bytes that a source has and we do not.", labels, size)
        observer.gauge("penstock_collect_pull_lag_seconds", "Age of the newest event when it came.", labels, seconds)

    def _into(self, stream: str) -> list[PullLoop]:
        return [pull for pull in self._pulls if pull.declared.stream == stream]

    def _lags(self, unit: str) -> Any:
        def reading() -> dict[tuple[str, ...], float]:
            lags = {(pull.declared.stream, pull.declared.url): pull.lag() for pull in self._pulls}
            return {labels: lag[unit] for labels, lag in lags.items() if unit in lag}

        return reading

    async def _keep_leases(self) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            with suppress(PenstockError):  # two more tries before they run out
                await self._leases.renew([pull.key for pull in self._pulls])
