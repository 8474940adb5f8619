"""One spelling and one meaning of each option, whichever verb takes it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

AppArgument = Annotated[
    str, typer.Argument(metavar="APP", help="The app: a file (app.py), app.py:app, or a module pkg.mod:app.")
]
DataOption = Annotated[
    Path | None, typer.Option("--data", help="Data folder; default: .penstock/<app name> beside the app file.")
]
HostOption = Annotated[str, typer.Option("--host", help="Address to listen on.")]
PortOption = Annotated[int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0: any free one.")]
LogOption = Annotated[Literal["sqlite"], typer.Option("--log", help="The log that holds the streams.")]
UrlOption = Annotated[str, typer.Option("--url", help="The server to talk to.")]
ParentOption = Annotated[int | None, typer.Option("--parent", hidden=True, help="End with this process.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
