"""One spelling and one meaning of each option, whichever verb takes it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.rights.credential import TokenOptions
from penstock.run.security import Security

AppArgument = Annotated[
    str, typer.Argument(metavar="APP", help="The app: a file (app.py), app.py:app, or a module pkg.mod:app.")
]
DataOption = Annotated[
    Path | None, typer.Option("--data", help="Data folder; default: .penstock/<app name> beside the app file.")
]
HostOption = Annotated[str, typer.Option("--host", help="Address to listen on.")]
PortOption = Annotated[int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0: any free one.")]
ReadOnlyOption = Annotated[
    bool, typer.Option("--read-only", help="Write nothing: serve readers beside the edge that writes this data folder.")
]
StandbyOption = Annotated[
    bool,
    typer.Option("--standby", help="Where another process writes the log on Kafka, wait until it is silent."),
]
LogOption = Annotated[
    str,
    typer.Option(
        "--log",
        envvar="PENSTOCK_LOG",
        help="The log that holds the streams: sqlite, kafka (a broker of its own), or kafka://host:9092[,host:9092].",
    ),
]
MasterOption = Annotated[
    str | None,
    typer.Option(
        "--master",
        envvar="PENSTOCK_MASTER",
        help="Where Spark computes: spark://host:7077, k8s://..., yarn, or local[4]; default: this machine.",
    ),
]
CheckpointOption = Annotated[
    Path | None,
    typer.Option(
        "--checkpoint",
        envvar="PENSTOCK_CHECKPOINT",
        help="Folder for the state of flows, which driver and workers see; default: in the data folder.",
    ),
]
KeyOption = Annotated[
    str | None,
    typer.Option("--key", envvar="PENSTOCK_KEY", help="Key or token to show; better in PENSTOCK_KEY, which ps hides."),
]
CaOption = Annotated[
    Path | None, typer.Option("--ca", help="PEM certificate to trust instead of the system's authorities.")
]
WhereOption = Annotated[str | None, typer.Option("--where", help="Only rows or events that meet this SQL condition.")]
ParamsOption = Annotated[
    str | None, typer.Option("--params", help="JSON object with what :names in the condition stand for.")
]
UrlOption = Annotated[str, typer.Option("--url", help="The server to talk to.")]
ParentOption = Annotated[int | None, typer.Option("--parent", hidden=True, help="End with this process.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]


def security_of(
    jwt_secret_file: Annotated[
        Path | None, typer.Option("--jwt-secret-file", help="File with the shared secret of tokens (HS256).")
    ] = None,
    jwt_public_key: Annotated[
        Path | None, typer.Option("--jwt-public-key", help="PEM file with the RSA public key of tokens (RS256).")
    ] = None,
    jwks: Annotated[
        Path | None, typer.Option("--jwks", help="JSON Web Key Set of tokens; read again when it changes.")
    ] = None,
    jwt_audience: Annotated[str | None, typer.Option("--jwt-audience", help="What a token's aud must name.")] = None,
    jwt_issuer: Annotated[str | None, typer.Option("--jwt-issuer", help="What a token's iss must be.")] = None,
    tls_cert: Annotated[Path | None, typer.Option("--tls-cert", help="PEM certificate, with its chain.")] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", help="PEM private key of the certificate.")] = None,
    tls: Annotated[str | None, typer.Option("--tls", help="self: a self-made certificate, for development.")] = None,
    cors: Annotated[
        list[str] | None, typer.Option("--cors", help="Origin whose pages may ask from a browser; several times.")
    ] = None,
    key_rate: Annotated[
        str | None,
        typer.Option("--key-rate", help="Requests that each credential may make: 100/s; a key's own rate comes first."),
    ] = None,
    key_connections: Annotated[
        int | None,
        typer.Option(
            "--key-connections", min=0, help="Sockets and streams of events that each credential may have open."
        ),
    ] = None,
    max_connections: Annotated[
        int | None, typer.Option("--max-connections", min=1, help="Connections of all together; default: 15000.")
    ] = None,
    allow_webhook_hosts: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-webhook-hosts",
            help="Host or network that webhooks may post to though it is not of the public internet; several times.",
        ),
    ] = None,
    webhook_ca: Annotated[
        Path | None, typer.Option("--webhook-ca", help="PEM certificates that webhooks trust besides the system's.")
    ] = None,
) -> Security:
    """The options of every verb that serves."""
    return Security(
        TokenOptions(jwt_secret_file, jwt_public_key, jwks, jwt_audience, jwt_issuer),
        tls_cert,
        tls_key,
        tls,
        cors or (),
        allow_webhook_hosts or (),
        webhook_ca,
        key_rate,
        key_connections,
        max_connections,
    )


def secured(verb: Callable[..., None]) -> Callable[..., None]:
    """Give a verb the options of `security_of`; it gets as `security` what they amount to."""
    own, shared = (inspect.signature(function, eval_str=True).parameters for function in (verb, security_of))

    def asked(**given: Any) -> None:
        security = security_of(**{name: given.pop(name) for name in shared})
        verb(**given, security=security)

    kept = [parameter for parameter in own.values() if parameter.name != "security"]
    asked.__signature__ = inspect.Signature([*kept, *shared.values()])  # type: ignore[attr-defined]
    asked.__name__, asked.__doc__ = verb.__name__, verb.__doc__
    return asked
