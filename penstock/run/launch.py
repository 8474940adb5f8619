"""`penstock run`, step by step: what can be known to fail is checked before a process is started."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from penstock import plain
from penstock.config import Folder
from penstock.declaration import Application, Problem
from penstock.flows.engine.scratch import PLACE, RUN, ended
from penstock.run.announcement import address
from penstock.run.app_file import Loaded
from penstock.run.broker import OWN, BrokerNode, BrokerProbe, node_of
from penstock.run.broker_jars import jars
from penstock.run.exit_codes import FAILED
from penstock.run.keeper import ChildPlan
from penstock.run.ownership import RunLock, check_folder, wait_for_children
from penstock.run.preflight import check_java, check_port
from penstock.run.probe import Address, EdgeProbe, beat
from penstock.run.security import OPEN, PROBE, Security, has_keys, refuse_open
from penstock.run.supervisor import Supervisor
from penstock.run.terminal import Terminal

EDGE_HUNG_S = 10.0
FLOWS_HUNG_S = 20.0
BROKER_HUNG_S = 60.0
"""While it does not answer nothing is lost and nothing is taken; a disk that stalls may be back by then."""


@dataclass(frozen=True)
class Request:
    """What `run` was asked to run."""

    loaded: Loaded
    folder: Folder
    host: str
    port: int
    security: Security = field(default_factory=Security)
    broker: BrokerNode | None = None
    """That of the folder's own, where the log lies on one."""

    @classmethod
    def of(
        cls,
        loaded: Loaded,
        data: Path | None,
        log: str,
        host: str,
        port: int,
        security: Security,
        checkpoint: Path | None = None,
    ) -> Request:
        """With the data folder and the log that `--data` and `--log` name."""
        if log != OWN:
            return cls(loaded, loaded.folder(data, log, checkpoint), host, port, security)
        broker = node_of(loaded.root(data))
        folder = loaded.folder(data, f"kafka://{broker.address}", checkpoint)
        return cls(loaded, folder, host, port, security, broker)


def run(request: Request, terminal: Terminal) -> int:
    """Check, lock, start, and stay until asked to stop; returns the exit code."""
    application, folder = request.loaded.application, request.folder
    problems = [*application.problems(), *_filter_problems(application)]
    terminal.problems(p for p in problems if p.level != "note")
    if any(problem.level == "error" for problem in problems):
        return FAILED
    plain.parts_off()
    check_java()
    os.environ[RUN] = secrets.token_hex(8)  # children of one run know each other by it
    if request.broker is not None:
        jars()
    check_folder(
        folder, application.name, ask=request.broker is None, tell=terminal.warn
    )  # edge and flows ask when it is up
    lock = RunLock(folder)
    lock.take(_who(request, request.port))
    try:
        wait_for_children(folder, terminal.note)
        shutil.rmtree(folder.scratch, ignore_errors=True)
        os.environ[PLACE] = str(folder.scratch)
        _secure(request, terminal)
        check_port(request.host, request.port)
        terminal.note(f"penstock runs '{application.name}' on {folder.root}")
        if request.broker is not None:
            request.broker.prepare()
            terminal.note(f"its log is a Kafka broker of its own on {request.broker.address}")
        return _supervise(request, terminal, lock)
    finally:
        shutil.rmtree(folder.scratch, ignore_errors=True)
        ended(os.environ[RUN])
        lock.release()


def _filter_problems(application: Application) -> list[Problem]:
    """What of the app's own filters is wrong, as far as it shows without Spark."""
    if not application.filtered() and not application.channels:
        return []
    from penstock.views.read_rule import rule_problems, stream_columns  # a parser of SQL, where there is SQL

    return list(rule_problems(application, stream_columns(application)))


def _secure(request: Request, terminal: Terminal) -> None:
    """See that nobody is let in by mistake, and say who is let in. Keys lie in the log, which a broker of our own must
    be up for: then it is seen to before the edge is started."""
    security, folder = request.security, request.folder
    if request.broker is None:
        _refuse_open(request, terminal)
    certificate = security.certificate(folder, request.host)
    if certificate is not None:
        certificate.context()
        if security.tls:
            terminal.note(f"self-made certificate {certificate.cert}, SHA-256 {certificate.fingerprint()}")
    os.environ[PROBE] = secrets.token_hex(32)


def _refuse_open(request: Request, terminal: Terminal) -> None:
    is_open = not request.security.tokens and not has_keys(request.folder)
    refuse_open(request.host, is_open)
    if is_open:
        terminal.note(OPEN)


def _who(request: Request, port: int) -> dict[str, Any]:
    started = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    scheme = request.security.scheme
    return {"pid": os.getpid(), "scheme": scheme, "host": request.host, "port": port, "started": started}


def _supervise(request: Request, terminal: Terminal, lock: RunLock) -> int:
    door = DoorAddress(request)
    probe = EdgeProbe(door.address, secret=os.environ.get(PROBE), tls=request.security.scheme == "https")
    edge = _edge_plan(request, door, probe)
    plans = [edge, _flows_plan(request)]
    with ExitStack() as opened:
        if request.broker is not None:
            watched = BrokerProbe(request.broker)
            watched.start()
            opened.callback(watched.close)
            first = iter([True])

            def command() -> Sequence[str]:
                if next(first, False):
                    _refuse_open(request, terminal)
                return edge.command()

            plans[0] = replace(edge, command=command)
            plans = [_broker_plan(request.broker, request.folder, watched), *(replace(p, needs=OWN) for p in plans)]
        return Supervisor(
            plans,
            state=request.folder.run / "supervisor.json",
            probe=probe,
            terminal=terminal,
            url=door.url,
            tell=lambda state: lock.describe(_who(request, door.port)),
        ).run()


class DoorAddress:
    """Where the edge listens: known once it has bound its port, and the same for every edge of this run."""

    def __init__(self, request: Request) -> None:
        self._host = request.host
        self._scheme = request.security.scheme
        self._file = request.folder.run / "edge.json"
        self._file.unlink(missing_ok=True)
        self.port = request.port

    def address(self) -> Address | None:
        """For the probe: an address that can be connected to, also when the edge listens on all of them."""
        if self.port == 0:
            self.port = self._bound()
        here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self._host, self._host)
        return (here, self.port) if self.port else None

    def _bound(self) -> int:
        try:
            return int(json.loads(self._file.read_text())["port"])
        except (OSError, ValueError, KeyError):
            return 0

    def url(self) -> str | None:
        where = self.address()
        return None if where is None else address(self._scheme, *where)


def _edge_plan(request: Request, door: DoorAddress, probe: EdgeProbe) -> ChildPlan:
    def command() -> Sequence[str]:
        where = ("--host", request.host, "--port", str(door.port))
        return _command("edge", request, *where, *request.security.words())

    return _plan("edge", request.folder, command, probe.pulse, EDGE_HUNG_S)


def _flows_plan(request: Request) -> ChildPlan:
    file = request.folder.run / "flows.beat"
    return _plan("flows", request.folder, lambda: _command("flows", request), lambda: beat(file), FLOWS_HUNG_S)


def _broker_plan(broker: BrokerNode, folder: Folder, probe: BrokerProbe) -> ChildPlan:
    return _plan(OWN, folder, broker.command, probe.pulse, BROKER_HUNG_S)


def _plan(name: str, folder: Folder, command: Any, pulse: Any, hung_s: float) -> ChildPlan:
    return ChildPlan(
        name=name,
        command=command,
        log=folder.logs / f"{name}.log",
        error=folder.run / f"{name}.error.json",
        pulse=pulse,
        hung_s=hung_s,
    )


def _command(verb: str, request: Request, *options: str) -> list[str]:
    """A child is this very program with another verb. `-P`: the folder it was started in is not searched
    for modules."""
    python = [sys.executable, "-P", "-m", "penstock.cli.boot"]
    data = ["--data", str(request.folder.root), "--parent", str(os.getpid())]
    log = ["--log", request.folder.log.rpartition("/")[0]] if request.folder.log else []
    return [*python, verb, _absolute(request.loaded), *data, *log, *options]


def _absolute(loaded: Loaded) -> str:
    """The words that named the app, so that they mean the same whatever the child's folder is."""
    path, colon, name = loaded.target.rpartition(":")
    is_file = Path(path if colon and name.isidentifier() else loaded.target).exists()
    if not is_file:
        return loaded.target
    return f"{loaded.file}:{name}" if colon and name.isidentifier() and path else str(loaded.file)
