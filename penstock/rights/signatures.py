"""Checks that a webhook comes from somebody who shares our secret, over the raw bytes, before anything reads them.

A signature is a credential that may write its one stream. Every comparison takes the same time whether it fails early
or late. Times are judged by the injected clock.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import os
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from standardwebhooks.webhooks import EmptyWebhookSecretError, Webhook

from penstock.clock import Clock
from penstock.declaration import Application, StreamDef
from penstock.errors import SecretError, SignatureError
from penstock.observe.signals import Signals, SignatureRefused
from penstock.rights.credential import Credential
from penstock.rights.scope import Scope
from penstock.signed import Signed

Headers = Mapping[str, str]
_MOST_SIGNATURES = 20
"""More in one header is an attack, not a rotation of secrets."""


class _Unsigned(Exception):
    """Why a signature does not hold; the text is for the sender."""


class Signatures:
    """The signed streams and tables of an app. Making one reads every secret and raises `SecretError`."""

    def __init__(
        self, application: Application, clock: Clock, signals: Signals, env: Mapping[str, str] = os.environ
    ) -> None:
        self._clock, self._signals = clock, signals
        self._streams = {
            stream.name: (stream.signed, _secrets(stream, stream.signed, env))
            for stream in application.entries
            if stream.signed
        }

    def __contains__(self, stream: str) -> bool:
        return stream in self._streams

    def check(self, stream: str, headers: Headers, body: bytes) -> Credential:
        """Who signed this body; raises `SignatureError`, after it was counted."""
        declared, secrets = self._streams[stream]
        try:
            _STYLES[declared.style](declared, secrets, headers, body, self._clock.now_us())
        except _Unsigned as flaw:
            self._signals(SignatureRefused(stream, str(flaw)))
            raise SignatureError(
                f"the request to '{stream}' is not signed as it must be",
                detail=str(flaw),
                hint=f"sign it in the style '{declared.style}' with the secret of this server, or use a key",
            ) from None
        return Credential(f"signed/{stream}", f"signed:{stream}", (Scope("write", stream),))


def _secrets(stream: StreamDef, declared: Signed, env: Mapping[str, str]) -> tuple[bytes, ...]:
    """The secrets as HMAC takes them."""
    text, place = _text(stream, declared, env)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        raise SecretError(
            f"{stream.place}: the secret of the stream '{stream.name}' is not there",
            detail=f"{place} is not set, or empty",
            hint="set it before the app is started; several secrets stand one a line",
        )
    if declared.style != "standard":
        return tuple(line.encode() for line in lines)
    try:
        return tuple(Webhook(line)._whsecret for line in lines)
    except (binascii.Error, ValueError, EmptyWebhookSecretError):
        raise SecretError(
            f"{stream.place}: the secret of the stream '{stream.name}' is not base64",
            detail=f"it comes from {place}",
            hint="a secret of Standard Webhooks looks like whsec_ and base64 behind it",
        ) from None


def _text(stream: StreamDef, declared: Signed, env: Mapping[str, str]) -> tuple[str, str]:
    if declared.secret_env is not None:
        return env.get(declared.secret_env, ""), f"the variable {declared.secret_env}"
    path = Path(stream.place.file).parent / str(declared.secret_file)
    try:
        return path.read_text(), f"the file {path}"
    except (OSError, UnicodeError) as error:
        raise SecretError(
            f"{stream.place}: the secret of the stream '{stream.name}' cannot be read",
            detail=f"{path}: {error.strerror if isinstance(error, OSError) else 'not text'}",
            hint="put it into that file, which only the server's user should be able to read",
        ) from None


# Styles


def _standard(declared: Signed, secrets: Iterable[bytes], headers: Headers, body: bytes, now_us: int) -> None:
    id, stamp = _header(headers, "webhook-id"), _header(headers, "webhook-timestamp")
    moment = datetime.fromtimestamp(_fresh(stamp, declared, now_us), UTC)
    given = [part[3:] for part in _header(headers, "webhook-signature").split(" ") if part.startswith("v1,")]
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise _Unsigned("the body is not UTF-8") from None
    _match((Webhook(secret).sign(id, moment, text)[3:] for secret in secrets), given)


def _github(declared: Signed, secrets: Iterable[bytes], headers: Headers, body: bytes, now_us: int) -> None:
    given = _header(headers, "X-Hub-Signature-256")
    _match((f"sha256={_hex(secret, body)}" for secret in secrets), [given])


def _stripe(declared: Signed, secrets: Iterable[bytes], headers: Headers, body: bytes, now_us: int) -> None:
    parts = [part.strip().partition("=") for part in _header(headers, "Stripe-Signature").split(",")]
    stamp = next((value for name, _, value in parts if name == "t"), "")
    _fresh(stamp, declared, now_us)
    given = [value for name, _, value in parts if name == "v1"]
    _match((_hex(secret, stamp.encode() + b"." + body) for secret in secrets), given)


_STYLES = {"standard": _standard, "github": _github, "stripe": _stripe}


def _header(headers: Headers, name: str) -> str:
    value = headers.get(name)
    if not value or not value.isascii():
        raise _Unsigned(f"the header {name} is missing, or not ASCII")
    return value


def _fresh(stamp: str, declared: Signed, now_us: int) -> int:
    if not (stamp.isascii() and stamp.isdigit() and len(stamp) <= 11):
        raise _Unsigned("the signature's time is not a number of seconds")
    if abs(now_us - int(stamp) * 1_000_000) > declared.tolerance_us:
        raise _Unsigned("the signature's time is too far from this server's")
    return int(stamp)


def _hex(secret: bytes, content: bytes) -> str:
    return hmac.new(secret, content, hashlib.sha256).hexdigest()


def _match(expected: Iterator[str], given: list[str]) -> None:
    """Every pair is compared, whichever fits, so that time tells nothing."""
    given = given[:_MOST_SIGNATURES]
    pairs = [hmac.compare_digest(one.encode(), other.encode()) for one in expected for other in given]
    if not any(pairs):
        raise _Unsigned("the signature is not that of this body under the secret of this server")
