"""API keys: 256 random bits that are shown once; what is kept is a hash, under `key/<id>` in the log's control stream.

1. One SHA-256 is enough: nobody can try out 2^256 keys, so a slow hash would only slow down requests.
2. A key carries its id, so that it is found without a search and can be named where the key itself must not appear.
3. A revoked key stays in the log: a server that once had a key never becomes open again by losing its last one.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from penstock.log import control_keys
from penstock.log.control import ControlMap
from penstock.overload import parse_rate
from penstock.rights.credential import Credential
from penstock.rights.scope import known_scopes

PREFIX = control_keys.key.prefix
"""Of a credential's id, too."""
START = "psk_"
"""Every key begins with it, so that scanners for leaked secrets can find one."""
_BYTES = 32

Fault = Literal["unknown", "revoked", "expired"]


class KeyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a key."""

    id: str
    name: str
    hash: str
    scopes: tuple[str, ...]
    claims: dict[str, str | list[str]] = {}
    created_us: int
    expires_us: int | None = None
    revoked_us: int | None = None
    rate: str | None = None
    """Requests that may be made under it: `"100/s"`."""
    connections: int | None = None
    """Sockets and streams of events that may be open under it."""

    def state(self, now_us: int) -> Literal["valid", "revoked", "expired"]:
        if self.revoked_us is not None:
            return "revoked"
        return "expired" if self.expires_us is not None and now_us >= self.expires_us else "valid"

    def credential(self) -> Credential:
        return Credential(
            PREFIX + self.id,
            self.name,
            tuple(known_scopes(self.scopes)),
            self.claims,
            self.expires_us,
            rate=parse_rate(self.rate, None),
            connections=self.connections,
        )


def make_key(
    name: str,
    scopes: tuple[str, ...],
    claims: Mapping[str, str | list[str]],
    now_us: int,
    expires_us: int | None,
    random: Callable[[int], bytes] = secrets.token_bytes,
    *,
    rate: str | None = None,
    connections: int | None = None,
) -> tuple[str, KeyRecord]:
    """A new key as its user must keep it, and what is kept of it here."""
    id = random(4).hex()
    key = f"{START}{id}_{random(_BYTES).hex()}"
    record = KeyRecord(
        id=id,
        name=name or id,
        hash=_hash(key),
        scopes=scopes,
        claims=dict(claims),
        created_us=now_us,
        expires_us=expires_us,
        rate=rate,
        connections=connections,
    )
    return key, record


def _hash(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


class KeyBook:
    """All keys, as the log's memory has them; lives on the edge's loop."""

    def __init__(self, memory: ControlMap) -> None:
        self._memory = memory
        self._read: dict[str, tuple[Any, KeyRecord, Credential]] = {}
        """By id: what is stored, which is another object when it changes, and what was read from it."""

    def __len__(self) -> int:
        """Also those that were revoked."""
        return self._memory.size(control_keys.key)

    def get(self, id: str) -> KeyRecord | None:
        found = self._found(id)
        return found[1] if found else None

    def records(self) -> list[KeyRecord]:
        stored = self._memory.family(control_keys.key).values()
        return sorted((msgspec.convert(each, KeyRecord) for each in stored), key=lambda record: record.created_us)

    def find(self, key: str, now_us: int) -> Credential | Fault:
        """Whose key this is, or what is wrong with it."""
        found = self._found(key[len(START) :].partition("_")[0])
        if found is None or not hmac.compare_digest(found[1].hash, _hash(key)):
            return "unknown"
        _, record, credential = found
        state = record.state(now_us)
        return credential if state == "valid" else state

    def _found(self, id: str) -> tuple[Any, KeyRecord, Credential] | None:
        stored, read = self._memory.get(control_keys.key(id)), self._read.get(id)
        if stored is None or (read is not None and read[0] is stored):
            return read if stored is not None else None
        record = msgspec.convert(stored, KeyRecord)
        read = self._read[id] = (stored, record, record.credential())
        return read


def stored(record: KeyRecord) -> dict[str, Any]:
    """As it stands in the control stream."""
    return {control_keys.key(record.id): msgspec.to_builtins(record)}
