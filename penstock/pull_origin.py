"""What an app may pull from: the schemes of addresses, the options that each takes, and what each holds in a crash.

An address never holds a secret: a password in it is refused, and what looks like one in its query is not shown.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from penstock.errors import DeclarationError

Holds = Literal["exact", "repeats", "loses", "depends"]
"""After a crash or a break: each event once; some twice; some never; or as the source itself decides."""


@dataclass(frozen=True)
class Scheme:
    """One way of reading a source; `resumed` is what holds when `resume=` is given."""

    name: str
    secure: str
    holds: Holds
    options: frozenset[str]
    resumed: Holds | None = None


_HTTP = frozenset({"key", "headers", "ca"})
_RESUMABLE = _HTTP | {"resume"}
SCHEMES: tuple[Scheme, ...] = (
    Scheme("ws", "wss", "loses", _RESUMABLE, "repeats"),
    Scheme("sse+http", "sse+https", "exact", _HTTP),
    Scheme("ndjson+http", "ndjson+https", "loses", _RESUMABLE | {"every"}, "repeats"),
    Scheme("poll+http", "poll+https", "repeats", _RESUMABLE | {"every"}, "repeats"),
    Scheme("http", "https", "repeats", _RESUMABLE | {"every"}, "repeats"),
    Scheme("penstock+http", "penstock+https", "exact", _HTTP),
    Scheme("tcp", "tcps", "loses", frozenset({"ca"})),
    Scheme("kafka", "kafkas", "exact", frozenset({"settings", "ca"})),
    Scheme("file", "file", "exact", frozenset()),
)
TABLE_SCHEMES: tuple[Scheme, ...] = (
    Scheme("file", "file", "exact", frozenset({"every"})),
    Scheme("postgresql", "postgresql", "exact", frozenset({"query", "every", "key", "settings"})),
)
"""Into a table: read whole again and again."""
TABLE_FILES = (".csv", ".parquet", ".json", ".ndjson", ".jsonl")
FUNCTION = Scheme("function", "function", "depends", frozenset())
"""An async generator function of the user's; it has no address."""


@dataclass(frozen=True)
class Origin:
    """Where a pull reads, and how. `name` is what is shown and what positions are stored under."""

    scheme: Scheme
    name: str
    url: str = field(default="", repr=False)
    secure: bool = False
    function: Callable[..., Any] | None = field(default=None, repr=False, compare=False)
    resume: str | None = None
    every_us: int | None = None
    key: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    ca: str | None = None
    """A PEM file of authorities to trust besides the system's, or `env:NAME`."""
    query: str | None = None
    """What a database is asked for the rows of a table."""

    @property
    def holds(self) -> Holds:
        return self.scheme.resumed if self.resume and self.scheme.resumed else self.scheme.holds

    @property
    def plain_url(self) -> str:
        """The address as the protocol itself writes it: `sse+https://x` is read from `https://x`."""
        scheme, _, rest = self.url.partition("://")
        return f"{scheme.rpartition('+')[2]}://{rest}"


def origin(source: str | Callable[..., Any], **options: Any) -> Origin:
    """What `app.pull` was given, judged. Raises `DeclarationError`."""
    plain = _addressed(source, SCHEMES) if isinstance(source, str) else _function(source)
    return _with_options(plain, options)


def table_origin(source: str | Callable[..., Any], **options: Any) -> Origin:
    """The same for what is read into a table."""
    if not isinstance(source, str):
        raise DeclarationError(
            f"{source!r} is no address of a table's rows", hint=f"use {' or '.join(s.name for s in TABLE_SCHEMES)}://"
        )
    reads = _with_options(_addressed(source, TABLE_SCHEMES), options)
    if reads.scheme.name == "postgresql" and not reads.query:
        raise DeclarationError(
            f"the pull of '{reads.name}' does not say which rows", hint='add query="SELECT id, name FROM users"'
        )
    if reads.scheme.name == "file" and not file_path(reads.url).lower().endswith(TABLE_FILES):
        raise DeclarationError(
            f"the pull address '{reads.name}' is no file of a table's rows", hint=f"use {', '.join(TABLE_FILES)}"
        )
    return reads


def _addressed(source: str, schemes: tuple[Scheme, ...]) -> Origin:
    scheme, secure = _scheme(source, schemes)
    _well_formed(scheme, source)
    return Origin(scheme, shown(source), source, secure)


def _with_options(plain: Origin, options: Mapping[str, Any]) -> Origin:
    options = {name: value for name, value in options.items() if value is not None}
    for name in options:
        option = name if name != "every_us" else "every"
        if option not in plain.scheme.options:
            allowed = ", ".join(sorted(plain.scheme.options)) or "none but map"
            raise DeclarationError(
                f"a pull from '{plain.scheme.name}' takes no option '{option}'", hint=f"its options are: {allowed}"
            )
    _check_options(options)
    if "ca" in options and not plain.secure:
        raise DeclarationError(
            f"the pull address '{plain.name}' is without TLS, and ca= is about certificates",
            hint=f"write {plain.scheme.secure}://",
        )
    return replace(plain, **options)


def _function(source: Any) -> Origin:
    if not inspect.isasyncgenfunction(source) or len(inspect.signature(source).parameters) > 1:
        raise DeclarationError(
            f"{source!r} is neither an address nor an async generator function",
            hint="write async def source(since): yield event (or: yield position, event)",
        )
    return Origin(FUNCTION, f"function:{source.__qualname__}", function=source)


def _scheme(url: str, schemes: tuple[Scheme, ...]) -> tuple[Scheme, bool]:
    name = url.partition(":")[0].lower()
    for scheme in schemes:
        if name in (scheme.name, scheme.secure):
            return scheme, name == scheme.secure != scheme.name
    names = ", ".join(scheme.name for scheme in schemes)
    raise DeclarationError(
        f"the pull address '{shown(url)}' has a scheme that is not known",
        hint=f"use {names}, or the s form of one" if schemes is SCHEMES else f"into a table use {names}",
    )


def _well_formed(scheme: Scheme, url: str) -> None:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port if scheme.name != "kafka" else 0
    except ValueError as error:
        raise DeclarationError(f"the pull address '{shown(url)}' cannot be read", detail=str(error)) from None
    if parts.password or (parts.username and scheme.name not in ("file", "postgresql")):
        raise DeclarationError(
            f"the pull address '{shown(url)}' holds a credential",
            hint="put it into an environment variable and name that: key='FEED_KEY', or headers={'X-Key': 'env:KEY'}",
        )
    wrong = {
        "file": (host is not None or not parts.path.startswith("/"), "file:///folder/file.ndjson, file:///folder/"),
        "postgresql": (not host or len(parts.path) < 2, "postgresql://user@host:port/database"),
        "tcp": (not host or not port, "tcp://host:port"),
        "kafka": (not parts.netloc or not re.fullmatch(r"/[\w.-]+", parts.path), "kafka://host:port/topic"),
        "penstock+http": (
            not host or not re.fullmatch(r"/(streams|views)/[\w-]+", parts.path),
            "penstock+http://host:port/streams/name or /views/name",
        ),
    }.get(scheme.name, (not host, f"{scheme.name}://host/path"))
    if wrong[0]:
        raise DeclarationError(f"the pull address '{shown(url)}' is not complete", hint=f"write {wrong[1]}")


def _check_options(given: Mapping[str, Any]) -> None:
    resume = given.get("resume")
    if resume is not None and not re.fullmatch(r"[^=\s]+=\w+", resume):
        raise DeclarationError(f"resume='{resume}'", hint="write 'parameter=field'")
    key = given.get("key")
    if key is not None and not re.fullmatch(r"[A-Za-z_]\w*", key):
        raise DeclarationError(
            "key= is not the name of an environment variable",
            hint="key='FEED_KEY' sends the value of the environment variable FEED_KEY; never write the key itself",
        )


def file_path(url: str) -> str:
    """The path in a `file://` address; a `?` in it stands for one character, as in any pattern."""
    return unquote(url.partition("://")[2])


_SECRET = re.compile(
    r"(?P<name>[?&;][\w.-]*(?:key|token|secret|pass|passwd|password|auth|sig|signature|credential)[\w.-]*=)[^&;#\s'\"]+",
    re.IGNORECASE,
)
_USER = re.compile(r"(?<=://)[^/@\s'\"]+@")


def shown(text: str) -> str:
    """An address, or a text with addresses in it, without what looks like a credential.

    >>> shown("wss://feed.example/v1?symbol=x&api_key=123")
    'wss://feed.example/v1?symbol=x&api_key=...'
    """
    return _USER.sub("...@", _SECRET.sub(r"\g<name>...", text))
