"""`penstock kafka fetch|run`: a Kafka broker on this machine without Docker, for trying things out and for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.run import broker_jars
from penstock.run.broker import BrokerNode, free_port, run_alone
from penstock.run.terminal import Terminal

app = typer.Typer(help="A Kafka broker of one node on this machine, without Docker.", no_args_is_help=True)
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
