"""How long after its acknowledgement an event is in the hands of whoever must act on it: at a socket, on a screen."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp

from bench import paint, server, waterfall
from bench.options import Options
from bench.probes import Prober, Seen, listening
from bench.results import Figure, Result, of_spread
from bench.server import Server
from bench.waterfall import Moments

VIEW = "sensors"
APPS = {1: "one", 3: "three"}
AIMS = {1: "p50 200, p99 400", 3: "p50 400"}
SETTLE_S = 3.0
"""What a browser that was just opened gets before its probes count."""


def run(options: Options) -> Result:
    figures: list[Figure] = []
    paints = options.paint and paint.chromium() is not None
    if options.paint and not paints:
        options.note("no `chromium` on PATH: nothing is painted")
    for flows, log in itertools.product(options.flows, options.logs):
        with (
            server.data_folder(options.folder, log, APPS[flows]) as folder,
            server.run(APPS[flows], folder) as running,
        ):
            for number, rate in enumerate(options.rates):
                case = Case(flows, rate, paints, first=1 + number * 1_000_000, log=log)
                options.note(f"freshness: {case.name}")
                figures += asyncio.run(case.measure(running, options))
    settings = {"seconds": options.seconds, "warm-up seconds": options.warm_s, "painted": paints}
    return Result("freshness", figures, settings)


class Case:
    """One number of flows at one rate, on a server that runs."""

    def __init__(self, flows: int, rate: int, paints: bool, first: int, log: str = "sqlite") -> None:
        self.name = f"{flows} flow{'s' * (flows > 1)}, {rate:,}/s{server.on(log)}"
        self._flows = flows
        self._rate = rate
        self._paints = paints
        self._first = first

    async def measure(self, running: Server, options: Options) -> list[Figure]:
        """First with a socket alone, then with a browser beside it, which takes its share of the cores."""
        seen = Seen()
        painted: dict[int, int] = {}
        async with (
            aiohttp.ClientSession() as session,
            loaded(running.port, self._rate) as load,
            listening(session, running.url, VIEW, seen),
        ):
            prober = Prober(session, running.url, seen, self._first)
            await prober.arrived(await prober.send(options.warm_s))  # the first batch takes longest
            if not seen.acked_us:
                raise RuntimeError(f"no probe was taken: {seen.refused[:1]}")
            alone = await prober.send(options.seconds)
            await prober.arrived(alone)
            beside = range(0)
            if self._paints:
                async with paint.watching(running.url, VIEW) as tell:
                    await prober.send(SETTLE_S)
                    beside = await prober.send(options.seconds)
                    await prober.arrived(beside)
                    await asyncio.sleep(0.5)
                    painted = await tell()
        known = waterfall.logged(running.folder, VIEW)
        figures = self._told(_joined(alone, known, seen, {}), len(alone), "")
        if self._paints:
            figures += self._told(_joined(beside, known, seen, painted), len(beside), ", browser open")
        return figures + self._load(load, seen)

    def _told(self, probes: list[Moments], sent: int, beside: str) -> list[Figure]:
        case, last = f"{self.name}{beside}", "painted" if beside else "on the wire"
        wire = waterfall.between(probes, "logged", "on the wire")
        screen = waterfall.between(probes, "logged", "painted")
        figures = of_spread(case, "2xx to WebSocket", wire, "ms", "" if beside else AIMS[self._flows])
        figures += of_spread(case, "2xx to paint", screen, "ms")
        for step, found in waterfall.steps(probes).items():
            figures += of_spread(case, f"  {step}", found, "ms")
        return [*figures, Figure(case, "probes that never came", sent - sum(last in p for p in probes), f"of {sent}")]

    def _load(self, load: Load, seen: Seen) -> list[Figure]:
        return [
            Figure(self.name, "load that was accepted", load.told["rate"], "events/s"),
            Figure(self.name, "load that failed", load.told["failed"], "events"),
            Figure(self.name, "CPU of the sender", load.told["cpu_percent"], "%"),
            Figure(self.name, "probes refused", len(seen.refused), ""),
        ]


def _joined(numbers: range, known: dict[int, dict[str, int]], seen: Seen, painted: dict[int, int]) -> list[Moments]:
    """All moments of the probes that were acknowledged."""
    ends = {"logged": seen.acked_us, "on the wire": seen.wire_us, "painted": painted}
    return [
        known.get(n, {}) | {tier: at[n] for tier, at in ends.items() if n in at} for n in numbers if n in seen.acked_us
    ]


class Load:
    """What the sender says of itself, once it has ended."""

    told: dict[str, float]


@asynccontextmanager
async def loaded(port: int, rate: int) -> AsyncIterator[Load]:
    """Background load from a process of its own, while the block runs."""
    command = [sys.executable, "-m", "bench.sender", str(port), str(rate)]
    load = Load()
    with server.started(command, subprocess.PIPE) as (process, _):
        yield load
        server.stop(process)
        assert process.stdout is not None
        text = process.stdout.read().decode()
    try:
        load.told = json.loads(text)
    except ValueError:
        raise RuntimeError(f"the sender ended without a word of its own: {text[-2000:]}") from None
