"""`penstock kafka fetch|run|mend`: a Kafka broker on this machine without Docker, and topics put right."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.options import AppArgument, DataOption, LogOption
from penstock.errors import BadLogError
from penstock.log.opening import mend as mend_place
from penstock.run import broker_jars
from penstock.run.app_file import load
from penstock.run.broker import BrokerNode, free_port, log_folder, run_alone
from penstock.run.terminal import Terminal

app = typer.Typer(help="A Kafka broker of one node on this machine, and topics put right.", no_args_is_help=True)
terminal = Terminal()


@app.command()
def fetch() -> None:
    """Bring the jars of Kafka from Maven Central into this user's cache, once; 43 MB."""
    fresh = broker_jars.fetch()
    terminal.note(f"Kafka {broker_jars.VERSION} is {'now' if fresh else 'already'} in {broker_jars.folder()}")


@app.command()
def run(
    data: Annotated[Path, typer.Option("--data", help="Folder of the broker; it is made if need be.")] = Path(
        ".penstock/kafka"
    ),
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0: any free one.")] = 9092,
) -> None:
    """Run one broker in the foreground, on this machine's loopback address; prints `ready <address>` when it is."""
    raise typer.Exit(run_alone(BrokerNode(data, port or free_port()), terminal.data))


@app.command()
def mend(target: AppArgument, log: LogOption, data: DataOption = None) -> None:
    """Give an app's topics the settings that they should have, where somebody has changed them."""
    with log_folder(load(target), data, log, makes=False) as folder:
        if folder.log is None:
            raise BadLogError("the embedded log has no topics", hint="name the log: --log kafka://host:9092")
        changed = [line for place in (folder.edge_log, folder.flows_log) for line in mend_place(place)]
    for line in changed:
        terminal.note(line)
    terminal.note(f"{len(changed)} settings were changed" if changed else "every topic is as it should be", "")
