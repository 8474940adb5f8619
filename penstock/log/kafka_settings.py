"""Settings of the Kafka client that a user gives: certificates, passwords and the like, in a file that is never shown.

`PENSTOCK_KAFKA_SETTINGS` names a file of `name=value` lines, with the names of librdkafka. A value `env:NAME` is that
of a variable. Every process that opens a log on Kafka reads it, and nothing of it is passed on, written down or told:
whatever the client says goes through `redact`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from penstock.errors import BadLogError

FILE = "PENSTOCK_KAFKA_SETTINGS"
RECORD_BYTES = 16 * 1024**2
OURS = {
    "acks": "all",
    "enable.idempotence": True,
    "allow.auto.create.topics": False,
    "isolation.level": "read_uncommitted",
    "enable.auto.commit": False,
    "auto.offset.reset": "error",
    "message.max.bytes": RECORD_BYTES,
}
"""Settings that the protocol rests on; nobody may give others."""
_REFUSED = {
    **dict.fromkeys((*OURS, "request.required.acks"), "what the log promises rests on it"),
    **dict.fromkeys(("transactional.id", "group.id", "enable.auto.offset.store"), "what the log promises rests on it"),
    **dict.fromkeys(("bootstrap.servers", "metadata.broker.list"), "--log names the brokers"),
    "security.protocol": "kafka:// or kafkas:// says whether it is TLS, and sasl.mechanism that there is a password",
    **dict.fromkeys(("log_level", "debug"), "the client's own words may hold secrets"),
}
_SECRET = re.compile(r"password|secret|token|jaas|oauthbearer\.config|\.pem$|sasl\.username", re.IGNORECASE)
_ENV = "env:"
_LEAST = 3
"""Shorter values are not looked for in texts: they would hide half of every message."""


@dataclass(frozen=True)
class ClientSettings:
    """What the client is given beside what is ours."""

    values: Mapping[str, str] = field(default_factory=dict, repr=False)
    secrets: frozenset[str] = field(default_factory=frozenset, repr=False)

    def redact(self, text: str) -> str:
        """The text without any of the secrets."""
        for secret in sorted(self.secrets, key=len, reverse=True):
            text = text.replace(secret, "***")
        return text


def client_settings(*, secure: bool, environment: Mapping[str, str] = os.environ) -> ClientSettings:
    """Those of the file, if one is named. Raises `BadLogError`, which tells names and lines and no values."""
    file = environment.get(FILE)
    written = _read(Path(file)) if file else {}
    given = {name: _value(Path(file or ""), name, value, environment) for name, value in written.items()}
    sasl = any(name.startswith("sasl.") for name in given)
    protocol = ("SASL_" if sasl else "") + ("SSL" if secure else "PLAINTEXT")
    hidden = {value for name, value in given.items() if _SECRET.search(name) or written[name].startswith(_ENV)}
    secrets = frozenset(value for value in hidden if len(value) >= _LEAST)
    return ClientSettings({**given, "security.protocol": protocol}, secrets)


def _read(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise _refused(path, f"cannot be read: {why}", "write name=value lines into it") from None
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, equals, value = (part.strip() for part in line.partition("="))
        if not equals or not name:
            what = f"line {number} is not name=value"
            raise _refused(path, what, "write one setting a line, such as sasl.mechanism=PLAIN")
        if name in _REFUSED:
            what = f"line {number} names '{name}', which is not yours to set"
            raise _refused(path, what, f"take it out: {_REFUSED[name]}")
        found[name] = value
    return found


def _value(path: Path, name: str, value: str, environment: Mapping[str, str]) -> str:
    if not value.startswith(_ENV):
        return value
    if not (variable := environment.get(value.removeprefix(_ENV))):
        what = f"'{name}' is taken from the variable {value.removeprefix(_ENV)}, which is not set"
        raise _refused(path, what, "set it for every process of the app")
    return variable


def _refused(path: Path, what: str, hint: str) -> BadLogError:
    return BadLogError(f"the settings of Kafka's client in '{path}' are not usable", detail=what, hint=hint)
