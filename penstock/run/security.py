"""What `run` and `edge` are told of security: options of file names only, which a supervisor hands on to its edge.

A server that anybody may use listens on loopback alone; on any other address it is refused before the port is bound.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.config import Folder, Limits
from penstock.errors import BadRequestError, NoKeyError, PenstockError
from penstock.log.control import ControlMap
from penstock.log.opening import open_reader
from penstock.overload import Rate, parse_rate
from penstock.rights.credential import TokenOptions
from penstock.rights.keys import KeyBook
from penstock.rights.web_origins import WebOrigins, is_loopback_name

if TYPE_CHECKING:
    from penstock.rights.tls import Certificate
    from penstock.serve.webhooks.webhook_registry import WebhookOptions

PROBE = "PENSTOCK_PROBE"
"""The variable by which a supervisor and its edge share a secret, so that it may ask how the flows are."""
SELF = "self"
OPEN = "open on loopback only, to everybody on this machine, because no key exists (penstock keys create makes one)"


@dataclass(frozen=True)
class Security:
    """TLS, tokens and allowed origins of one edge. Making one raises what is wrong with the options."""

    tokens: TokenOptions = field(default_factory=TokenOptions)
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls: str | None = None
    cors: Sequence[str] = ()
    webhook_hosts: Sequence[str] = ()
    webhook_ca: Path | None = None
    key_rate: str | None = None
    """Requests that each credential may make which has no rate of its own: `"100/s"`."""
    key_connections: int | None = None
    """Sockets and streams of events that each may have open."""
    max_connections: int | None = None
    """Connections of all together."""

    def __post_init__(self) -> None:
        WebOrigins(self.cors)
        request_rate(self.key_rate)
        if self.webhook_hosts:
            from penstock.serve.webhooks.address_rules import AddressRules  # aiohttp: not for every command

            AddressRules(allowed=self.webhook_hosts)
        if (self.tls_cert is None) != (self.tls_key is None):
            raise BadRequestError("TLS needs a certificate and its key", hint="pass --tls-cert and --tls-key together")
        if self.tls is not None and (self.tls != SELF or self.tls_cert is not None):
            raise BadRequestError(
                f"--tls {self.tls}", hint="--tls self makes a certificate; --tls-cert and --tls-key name one"
            )

    @property
    def scheme(self) -> str:
        return "https" if self.tls or self.tls_cert else "http"

    @property
    def limits(self) -> Limits:
        return Limits() if self.max_connections is None else Limits(connections=self.max_connections)

    def certificate(self, folder: Folder, host: str) -> Certificate | None:
        """The certificate to serve with; a self-made one is made here if need be."""
        from penstock.rights.tls import Certificate, self_made  # cryptography: for who serves, not for every command

        if self.tls == SELF:
            return self_made(folder.tls, host)
        return Certificate(self.tls_cert, self.tls_key) if self.tls_cert and self.tls_key else None

    def webhooks(self, host: str) -> WebhookOptions:
        """Where deliveries may go: anywhere, if nobody but this machine can ask for them."""
        from penstock.serve.webhooks.address_rules import AddressRules
        from penstock.serve.webhooks.webhook_registry import WebhookOptions

        rules = AddressRules(anywhere=is_loopback(host), allowed=self.webhook_hosts)
        return WebhookOptions(rules, self.webhook_ca)

    def words(self) -> list[str]:
        """The same options for a child's command line: names of files, never what is in them."""
        named = {
            "--jwt-secret-file": self.tokens.secret_file,
            "--jwt-public-key": self.tokens.public_key,
            "--jwks": self.tokens.jwks,
            "--tls-cert": self.tls_cert,
            "--tls-key": self.tls_key,
            "--webhook-ca": self.webhook_ca,
        }
        files = [word for name, path in named.items() if path for word in (name, str(path.absolute()))]
        single = {
            "--jwt-audience": self.tokens.audience,
            "--jwt-issuer": self.tokens.issuer,
            "--tls": self.tls,
            "--key-rate": self.key_rate,
            "--key-connections": None if self.key_connections is None else str(self.key_connections),
            "--max-connections": None if self.max_connections is None else str(self.max_connections),
        }
        words = [word for name, text in single.items() if text for word in (name, text)]
        listed = {"--cors": self.cors, "--allow-webhook-hosts": self.webhook_hosts}
        return [*files, *words, *(word for name, texts in listed.items() for text in texts for word in (name, text))]


def request_rate(text: str | None) -> Rate | None:
    """Raises `BadRequestError` for what is no rate."""
    try:
        return parse_rate(text, None)
    except PenstockError:
        raise BadRequestError(f"'{text}' is not a rate of requests", hint="write 100/s or 600/minute") from None


def has_keys(folder: Folder) -> bool:
    """Whether a key was ever made on this folder; for who does not hold its log."""
    with closing(open_reader(folder.edge_log)) as reader:
        return len(KeyBook(ControlMap(reader.memory()))) > 0


def refuse_open(host: str, is_open: bool) -> None:
    """Raise `NoKeyError` when everybody could reach a server that asks nobody who they are."""
    if is_open and not is_loopback(host):
        raise NoKeyError(
            f"--host {host} would open this server to other machines, and no key says who may do what",
            hint="create a key first: penstock keys create APP --scope read:* --scope write:*; or pass --jwks, "
            "--jwt-public-key or --jwt-secret-file; or leave out --host",
        )


def is_loopback(host: str) -> bool:
    """Whether every address that this name stands for is this machine's alone."""
    if is_loopback_name(host):
        return True
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM) if host else []
    except OSError:
        return False
    return bool(found) and all(is_loopback_name(str(address[0])) for *_, address in found)
