"""JSON Web Tokens of an identity provider: a good signature by a key that we were given, within its time, for us.

1. The algorithm belongs to the key, not to the token: a token can only choose among the keys of its algorithm. So
   `none` has no key, and a public key is never taken for a shared secret.
2. Times are judged by the injected clock: `exp` strictly, `nbf` with `EARLY_S` of leeway for clocks that differ.
3. A JWKS file that changes is read again within a second; one that cannot be read leaves the keys as they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt.exceptions import InvalidJTIError, InvalidSubjectError

from penstock.clock import Clock
from penstock.errors import SecretError
from penstock.observe.signals import JwksUnreadable, Signals
from penstock.rights.credential import Credential, TokenFault, TokenOptions
from penstock.rights.scope import known_scopes

EARLY_S = 30.0
LOOK_S = 1.0
"""How often the JWKS file is looked at."""
SECRET_BYTES = 32
"""A shared secret shorter than the hash can be guessed from one token."""
_CACHED = 1_000
"""Verified tokens that are remembered: a signature by RSA costs as much as all the rest of a small request."""
_NOT_OURS = {f"verify_{claim}": False for claim in ("exp", "nbf", "iat")}
_FLAWS = (jwt.PyJWTError, ValueError, KeyError, TypeError)


@dataclass(frozen=True, slots=True)
class _Key:
    id: str | None
    algorithm: str
    key: Any


class Tokens:
    """Judges tokens; lives on the edge's loop. Making one reads all files and raises `SecretError`."""

    def __init__(self, options: TokenOptions, clock: Clock, signals: Signals) -> None:
        self._options, self._clock, self._signals = options, clock, signals
        self._fixed = [*_shared(options.secret_file), *_public(options.public_key)]
        self._seen = _stamp(options.jwks)
        self._keys = [*self._fixed, *_set(options.jwks)]
        self._looked_s = clock.monotonic()
        self._cache: dict[str, Credential] = {}

    def credential(self, token: str) -> Credential:
        """Whose token this is. Raises `TokenFault`."""
        self._look()
        credential = self._cache.get(token)
        if credential is None:
            claims = self._verified(token)
            credential = _credential(claims)
            self._check_begun(claims)
            if len(self._cache) >= _CACHED:
                self._cache.clear()
            self._cache[token] = credential
        if credential.expires_us is not None and self._clock.now_us() >= credential.expires_us:
            raise TokenFault("expired", "the token has expired")
        return credential

    def _verified(self, token: str) -> dict[str, Any]:
        try:
            header = jwt.get_unverified_header(token)
        except _FLAWS:
            raise TokenFault("unknown", "it is neither a key nor a token") from None
        why = "no key of this server fits the token's algorithm and key id"
        for key in self._fitting(header):
            try:
                return self._decoded(token, key)
            except jwt.InvalidAudienceError:
                raise TokenFault("unknown", "the token is meant for another audience") from None
            except jwt.InvalidIssuerError:
                raise TokenFault("unknown", "the token is of another issuer") from None
            except jwt.MissingRequiredClaimError as flaw:
                raise TokenFault("unknown", f"the token has no claim '{flaw.claim}'") from None
            except (InvalidSubjectError, InvalidJTIError) as flaw:
                claim = "sub" if isinstance(flaw, InvalidSubjectError) else "jti"
                raise TokenFault("unknown", f"the token's claim '{claim}' is not a text") from None
            except jwt.InvalidSignatureError:
                why = "the token's signature is not good"
            except _FLAWS:
                why = "the token cannot be read"
        raise TokenFault("unknown", why)

    def _fitting(self, header: dict[str, Any]) -> Iterator[_Key]:
        wanted = header.get("kid")
        for key in self._keys:
            if key.algorithm == header.get("alg") and (wanted is None or key.id is None or key.id == wanted):
                yield key

    def _decoded(self, token: str, key: _Key) -> dict[str, Any]:
        options = self._options
        claims: dict[str, Any] = jwt.decode(
            token,
            key.key,
            algorithms=[key.algorithm],
            audience=options.audience,
            issuer=options.issuer,
            options=_NOT_OURS | {"verify_aud": options.audience is not None},  # type: ignore[arg-type]
        )
        return claims

    def _check_begun(self, claims: dict[str, Any]) -> None:
        begins_s = _seconds(claims, "nbf")
        if begins_s is not None and self._clock.now_us() / 1e6 + EARLY_S < begins_s:
            raise TokenFault("early", "the token is not valid yet")

    def _look(self) -> None:
        """Take over a JWKS file that was replaced."""
        if self._options.jwks is None or self._clock.monotonic() - self._looked_s < LOOK_S:
            return
        self._looked_s = self._clock.monotonic()
        stamp = _stamp(self._options.jwks)
        if stamp == self._seen:
            return
        self._seen = stamp
        try:
            self._keys = [*self._fixed, *_set(self._options.jwks)]
        except SecretError as error:
            self._signals(JwksUnreadable(error.message))
        else:
            self._cache.clear()


def _credential(claims: dict[str, Any]) -> Credential:
    given = claims.get("scope", "")
    texts = given.split() if isinstance(given, str) else given if isinstance(given, list) else []
    subject = str(claims.get("sub") or "token")
    ends_s = _seconds(claims, "exp")
    scopes = tuple(known_scopes(text for text in texts if isinstance(text, str)))
    return Credential(f"jwt/{subject}", subject, scopes, claims, None if ends_s is None else round(ends_s * 1e6))


def _seconds(claims: dict[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e11:
        raise TokenFault("unknown", f"the token's claim '{name}' is not a time")
    return float(value)


# Files


def _read(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SecretError(
            f"{what} '{path}' cannot be read", detail=error.strerror, hint="name a file that the server may read"
        ) from None


def _shared(path: Path | None) -> Iterator[_Key]:
    if path is None:
        return
    secret = _read(path, "the JWT secret").strip()
    if secret.startswith(b"-----BEGIN"):
        raise SecretError(
            f"'{path}' holds a key pair's key, not a shared secret",
            detail="whoever knows a public key could sign with it",
            hint="pass a public key with --jwt-public-key",
        )
    if len(secret) < SECRET_BYTES:
        raise SecretError(
            f"the secret in '{path}' is too short",
            detail=f"it has {len(secret)} bytes, HS256 needs {SECRET_BYTES}",
            hint="make one: openssl rand -hex 32",
        )
    yield _Key(None, "HS256", secret)


def _public(path: Path | None) -> Iterator[_Key]:
    if path is None:
        return
    try:
        key = serialization.load_pem_public_key(_read(path, "the public key"))
    except ValueError:
        key = None
    if not isinstance(key, RSAPublicKey):
        raise SecretError(
            f"'{path}' does not hold an RSA public key", hint="it must begin with -----BEGIN PUBLIC KEY-----"
        )
    yield _Key(None, "RS256", key)


def _set(path: Path | None) -> Iterable[_Key]:
    if path is None:
        return []
    try:
        listed = [one for one in json.loads(_read(path, "the JWKS file"))["keys"] if one.get("use", "sig") == "sig"]
    except (*_FLAWS, AttributeError):
        raise SecretError(
            f"'{path}' is not a JSON Web Key Set", hint='it is a JSON object {"keys": [...]} of your identity provider'
        ) from None
    keys = [key for one in listed for key in _usable(one)]
    if listed and not keys:
        raise SecretError(
            f"'{path}' holds no key that signs tokens", hint="tokens are signed by RSA, EC or Ed25519 keys, or by oct"
        )
    return keys


def _usable(listed: dict[str, Any]) -> Iterator[_Key]:
    """Keys of a kind that is not known here are for others (RFC 7517, 5): they must not keep the rest away."""
    with suppress(*_FLAWS):
        key = jwt.PyJWK(listed)
        yield _Key(key.key_id, key.algorithm_name, key.key)


def _stamp(path: Path | None) -> tuple[int, int] | None:
    try:
        facts = path.stat() if path else None
    except OSError:
        return None
    return (facts.st_mtime_ns, facts.st_size) if facts else None
