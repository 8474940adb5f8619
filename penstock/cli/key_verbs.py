"""`penstock keys create|list|revoke`: changes the keys in a data folder, through the edge that holds it if one does."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from penstock.cli.options import AppArgument, DataOption, JsonOption, LogOption
from penstock.clock import SystemClock, rfc3339
from penstock.config import Folder, duration_us
from penstock.declaration import LEDGERS, Application
from penstock.errors import BadRequestError, KeyMissingError, LogHeldError, NotTakenError, PenstockError
from penstock.log.control import ControlMap
from penstock.log.log import Log
from penstock.log.opening import open_log, open_reader
from penstock.rights.inbox import Inbox, Instruction
from penstock.rights.keys import KeyBook, KeyRecord, make_key
from penstock.rights.rights import Rights
from penstock.rights.scope import parse_scope
from penstock.run.app_file import Loaded, load
from penstock.run.broker import log_folder
from penstock.run.ownership import check_folder, flock, holder
from penstock.run.security import request_rate
from penstock.run.terminal import Terminal

WAIT_S = 5.0
"""How long a running edge gets to take an instruction; it looks five times a second."""

app = typer.Typer(help="Create, list and revoke the keys of an app.", no_args_is_help=True)
terminal = Terminal()


@app.command()
def create(
    target: AppArgument,
    scopes: Annotated[
        list[str],
        typer.Option(
            "--scope", help="read:NAME, read:NAME(COLUMN,...), write:NAME, read:*, write:* or admin; several times."
        ),
    ],
    name: Annotated[str, typer.Option("--name", help="What the key is for; shown in lists.")] = "",
    claims: Annotated[
        list[str] | None,
        typer.Option("--claim", help="NAME=VALUE that the key stands for; several times, one NAME too."),
    ] = None,
    expires: Annotated[str | None, typer.Option("--expires", help='After how long it ends: "30 days".')] = None,
    rate: Annotated[str | None, typer.Option("--rate", help="Requests that may be made under it: 100/s.")] = None,
    connections: Annotated[
        int | None,
        typer.Option("--connections", min=0, help="Sockets and streams of events that may be open under it."),
    ] = None,
    data: DataOption = None,
    log: LogOption = "sqlite",
    as_json: JsonOption = False,
) -> None:
    """Create a key and print it, once: only a hash of it is kept. A running server knows it within a second."""
    now_us = SystemClock().now_us()
    given = tuple(str(parse_scope(scope)) for scope in scopes)
    ends_us = None if expires is None else now_us + duration_us(expires)
    request_rate(rate)
    key, record = make_key(name, given, claims_of(claims or ()), now_us, ends_us, rate=rate, connections=connections)
    with _folder(target, data, log) as (loaded, folder):
        _check_columns(loaded.application, scopes)
        _warn_of_unknown(loaded.application, given)
        hand_over(folder, loaded.application.name, Instruction("create", record.id, record))
    if as_json:
        terminal.data(json.dumps(_body(record, now_us) | {"key": key}))
        return
    ends = f", until {rfc3339(ends_us)}" if ends_us else ""
    terminal.note(f"key {record.id} may {', '.join(given)}{ends}; it is shown this once:")
    terminal.data(key)


@app.command("list")
def list_keys(
    target: AppArgument, data: DataOption = None, log: LogOption = "sqlite", as_json: JsonOption = False
) -> None:
    """Show what keys there are and what they may do, without the keys themselves."""
    now_us = SystemClock().now_us()
    with _folder(target, data, log) as (_, folder):
        bodies = [_body(record, now_us) for record in _records(folder)]
    if as_json:
        terminal.data(json.dumps({"keys": bodies}))
        return
    table = Table("id", "name", "state", "scopes", "claims", "limits", "expires", "created", box=None)
    for body in bodies:
        limits = [body["rate"] or "", "" if body["connections"] is None else f"{body['connections']} connections"]
        cells = (body["id"], body["name"], body["state"], " ".join(body["scopes"]), _claims_text(body["claims"]))
        table.add_row(*cells, ", ".join(filter(None, limits)), body["expires"] or "never", body["created"])
    terminal.out.print(table)


@app.command()
def revoke(
    target: AppArgument,
    key: Annotated[str, typer.Argument(metavar="KEY", help="The key's id, or its name if only one has it.")],
    data: DataOption = None,
    log: LogOption = "sqlite",
) -> None:
    """End a key for good; subscriptions under it are closed within a second."""
    with _folder(target, data, log) as (loaded, folder):
        record = _find(_records(folder), key)
        if record.revoked_us is None:
            instruction = Instruction("revoke", record.id, at_us=SystemClock().now_us())
            hand_over(folder, loaded.application.name, instruction)
    terminal.note(f"key {record.id} ('{record.name}') is revoked")


# The data folder


def hand_over(folder: Folder, name: str, instruction: Instruction, wait_s: float = WAIT_S) -> None:
    """Return when the instruction is in the log: taken by the edge that holds the folder, or written here.

    Raises `NotTakenError`. A key that was to be created is then withdrawn; one that was to be revoked still will be.
    """
    inbox = Inbox(folder.inbox)
    path = inbox.post(instruction)
    deadline = time.monotonic() + wait_s
    while path.exists():
        try:
            if _took(folder, name, inbox):
                break
        except PenstockError:
            path.unlink(missing_ok=True)  # nobody else is to do what was refused
            raise
        if time.monotonic() > deadline:
            if instruction.do == "create":
                path.unlink(missing_ok=True)
            raise _not_taken(folder, instruction)
        time.sleep(0.05)
    if path.with_name(f"{path.name}.refused").exists():
        raise NotTakenError("the edge could not read the instruction", hint="its log says why")


def _took(folder: Folder, name: str, inbox: Inbox) -> bool:
    """Do what waits in the inbox ourselves, if no edge holds the folder."""
    with folder.edge_lock.open("a+") as lock:
        if not flock(lock):
            return False
        with closing(_opened(folder, name)) as log:

            async def remember(values: Mapping[str, Any]) -> None:
                log.append([], values)

            asyncio.run(Rights(log.memory(), inbox=inbox, remember=remember).tick())
    return True


def _opened(folder: Folder, name: str) -> Log:
    """Never in the place of an edge: one that works on another folder has an inbox there."""
    try:
        return open_log(folder.edge_log, app=name, turn="free")
    except LogHeldError as error:
        raise LogHeldError(
            error.message, detail=error.detail, hint="run `penstock keys` on that machine, with its --data folder"
        ) from None


def _not_taken(folder: Folder, instruction: Instruction) -> NotTakenError:
    done = "no key was created" if instruction.do == "create" else "it is revoked as soon as the edge takes it"
    return NotTakenError(
        f"the edge that holds '{folder.root}' did not take the instruction within {WAIT_S:g} s; {done}",
        detail=f"process {holder(folder.edge_lock)} holds it",
        hint="see whether it hangs: penstock status, logs/edge.log; then try again",
    )


@contextmanager
def _folder(target: str, data: Path | None, log: str) -> Iterator[tuple[Loaded, Folder]]:
    loaded = load(target)
    with log_folder(loaded, data, log) as folder:
        check_folder(folder, loaded.application.name)
        yield loaded, folder


def _records(folder: Folder) -> list[KeyRecord]:
    with closing(open_reader(folder.edge_log)) as reader:
        return KeyBook(ControlMap(reader.memory())).records()


# What was given


def claims_of(texts: Sequence[str]) -> dict[str, str | list[str]]:
    """A name that is given several times is a list.

    >>> claims_of(["sub=ann", "groups=a", "groups=b"])
    {'sub': 'ann', 'groups': ['a', 'b']}
    """
    found: dict[str, list[str]] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if not name or not value:
            raise BadRequestError(f"'{text}' is not a claim", hint="write --claim sub=ann")
        found.setdefault(name, []).append(value)
    return {name: values[0] if len(values) == 1 else values for name, values in found.items()}


def _claims_text(claims: Mapping[str, str | list[str]]) -> str:
    pairs = [
        (name, value) for name, values in claims.items() for value in ([values] if isinstance(values, str) else values)
    ]
    return " ".join(f"{name}={value}" for name, value in pairs)


def _check_columns(application: Application, scopes: Sequence[str]) -> None:
    """A list of columns without a view's key would open nothing."""
    for scope in map(parse_scope, scopes):
        view = application.view(scope.name)
        missing = [name for name in view.key if name not in scope.columns] if view and scope.columns else []
        if missing:
            raise BadRequestError(
                f"'{scope}' leaves out the key of the view, {', '.join(missing)}, by which rows are told apart",
                hint=f"write read:{scope.name}({','.join((*missing, *(scope.columns or ())))})",
            )


def _warn_of_unknown(application: Application, scopes: Sequence[str]) -> None:
    """A right for what the app does not have is allowed, since apps grow, but it may be a slip."""
    there = {*(s.name for s in application.streams), *(n.name for n in application.nodes), *LEDGERS}
    there |= {channel.name for channel in application.channels}
    for scope in map(parse_scope, scopes):
        if not scope.name.endswith("*") and scope.name not in there:
            terminal.warn(f"the app has no stream, view or channel '{scope.name}'")


def _find(records: Sequence[KeyRecord], wanted: str) -> KeyRecord:
    found = [record for record in records if record.id == wanted] or [
        record for record in records if record.name == wanted and record.revoked_us is None
    ]
    if len(found) == 1:
        return found[0]
    if found:
        ids = ", ".join(record.id for record in found)
        raise KeyMissingError(f"{len(found)} keys have the name '{wanted}'", hint=f"give the id, one of: {ids}")
    raise KeyMissingError(f"there is no key '{wanted[:40]}'", hint="`penstock keys list` shows them")


def _body(record: KeyRecord, now_us: int) -> dict[str, Any]:
    return {
        "id": record.id,
        "name": record.name,
        "state": record.state(now_us),
        "scopes": list(record.scopes),
        "claims": record.claims,
        "rate": record.rate,
        "connections": record.connections,
        "created": rfc3339(record.created_us),
        "expires": rfc3339(record.expires_us) if record.expires_us else None,
        "revoked": rfc3339(record.revoked_us) if record.revoked_us else None,
    }
