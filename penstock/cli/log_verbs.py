"""`penstock log copy`: moves a stopped app from the embedded log to Kafka, where everything goes on as it was."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.options import AppArgument, DataOption
from penstock.config import Folder
from penstock.errors import BadLogError, FolderMismatchError
from penstock.log.log_copy import CopyCount, copy_log
from penstock.run.app_file import load
from penstock.run.broker import log_folder
from penstock.run.ownership import RunLock, wait_for_children
from penstock.run.terminal import Terminal

COPIED = "copied"
"""The folder in which the files of a log that was copied lie, in case somebody wants them back."""

app = typer.Typer(help="Move the log of an app.", no_args_is_help=True)
terminal = Terminal()


@app.command()
def copy(
    target: AppArgument,
    to: Annotated[str, typer.Option("--to", help="Where to: kafka://host:9092[,host:9092], kafkas://... or kafka.")],
    data: DataOption = None,
) -> None:
    """Copy the embedded log of a stopped app into an empty Kafka; may be repeated if it was interrupted."""
    if to == "sqlite":
        raise BadLogError("an embedded log is copied to Kafka only", hint="write --to kafka://host:9092")
    loaded = load(target)
    name, embedded = loaded.application.name, Folder(loaded.root(data))
    if not any((embedded.root / file).exists() for file in (*Folder.log_names, COPIED)):
        raise FolderMismatchError(
            f"'{embedded.root}' holds no embedded log", hint="name the folder of the app with --data"
        )
    lock = RunLock(embedded)
    lock.take({"pid": os.getpid()})
    try:
        wait_for_children(embedded, terminal.note, wait_s=1.0)
        with log_folder(loaded, data, to) as folder:
            places = [(embedded.edge_log, folder.edge_log), (embedded.flows_log, folder.flows_log)]
            counts = [copy_log(place, into, name, terminal.note) for place, into in places]
    finally:
        lock.release()
    _set_aside(embedded.root)
    done = [count for count in counts if count is not None] or [CopyCount()]
    terminal.note(
        f"copied {sum(c.streams for c in done)} streams, {sum(c.commits for c in done):,} commits and"
        f" {sum(c.events for c in done):,} events; the files are in {embedded.root / COPIED}",
        "green",
    )
    terminal.note(f"now run the app with --log {to}", "")


def _set_aside(root: Path) -> None:
    """From here on the folder is one of the log on Kafka."""
    (root / COPIED).mkdir(exist_ok=True)
    for name in Folder.log_names:
        for file in (f"{name}-wal", f"{name}-shm", name):  # the file itself last: without it nothing is copied again
            if (root / file).exists():
                (root / file).rename(root / COPIED / file)
