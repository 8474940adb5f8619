"""A route as data: method, path, right, parameters, body, replies and words, said once for all who must know them.

The guard, the check of parameters, OpenAPI, AsyncAPI and the tables of docs/reference/http.md are derived from routes.
Every area has a table of its own (`collect/collect_routes.py`, `serve/describe/serve_routes.py`,
`serve/webhooks/webhook_routes.py`) and binds its handlers to the entries by name (`bind` in `rights/guard.py`): a new
route is one entry and one handler.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from penstock.config import Limits
from penstock.declaration import StreamDef
from penstock.errors import BadRequestError
from penstock.json_schema import Spec, text

Right = Literal["open", "any", "some", "read", "write", "ack", "all", "admin"]
"""`open`: nobody is asked; `any`: whoever has a credential; `some`: something may be read; `read` and `write`: what the
path names; `ack`: the stream that the token names; `all`: everything may be read."""


@dataclass(frozen=True)
class Thing:
    """A view, stream, table or flow under its own name, or a view or stream under that of a channel."""

    kind: Literal["view", "stream", "table", "flow"]
    target: str
    channel: str | None = None

    @property
    def called(self) -> str:
        """The name in its address, which is the one that a right names."""
        return self.channel or self.target

    @property
    def name(self) -> str:
        """Also that of its schema; those of its messages begin with it."""
        return f"channel.{self.channel}" if self.channel else f"{self.kind}.{self.target}"

    @property
    def words(self) -> str:
        return f"the channel {self.channel}" if self.channel else f"the {self.kind} {self.target}"


@dataclass(frozen=True)
class Subject:
    """What a route is described for: one thing of an app, as the one who asks may see it."""

    limits: Limits = field(default_factory=Limits)
    thing: Thing = Thing("view", "")
    columns: tuple[str, ...] = ()
    """Of its rows or events."""
    declared: StreamDef | None = None
    event: Spec = field(default_factory=dict)
    """The class of a stream that may be written."""
    readable: tuple[Thing, ...] = ()
    """All that may be read."""

    @property
    def stream(self) -> StreamDef:
        assert self.declared is not None, "only a stream that may be written is described by its declaration"
        return self.declared


Schema = Spec | Callable[[Subject], Spec]
"""What depends on the subject is made for it."""


def schema_for(schema: Schema, subject: Subject) -> Spec:
    return schema(subject) if callable(schema) else schema


@dataclass(frozen=True)
class Parameter:
    """A parameter of the address, or a header."""

    name: str
    words: str = ""
    schema: Schema = field(default_factory=text)
    place: Literal["query", "header", "path"] = "query"
    form: Literal["plain", "list", "json"] = "plain"
    """How its value is written: as it is, as a list with commas between, or as JSON."""
    waits: bool = False
    """Whether a request with it may wait, also when it does not say for how long."""
    is_credential: bool = False
    """OpenAPI has it among the security schemes."""
    also_called: str | None = None
    pattern: str = ""
    """Of a part of the path: which texts match it."""


EVENT_FIELDS = Parameter("*", "The fields of the event.")
"""A route with this one takes every parameter."""
WAIT = Parameter(
    "wait",
    "How long to wait at most, in seconds.",
    lambda s: {"type": "number", "minimum": 0, "maximum": s.limits.wait_s},
)


@dataclass(frozen=True)
class Body:
    """What a request carries: a schema for each content type."""

    content: Mapping[str, Schema]
    words: str = ""
    required: bool = True


def json_body(schema: Schema, *, required: bool = True) -> Body:
    return Body({"application/json": schema}, required=required)


@dataclass(frozen=True)
class Link:
    """From a field of a reply to the parameter of another operation."""

    name: str
    parameter: str
    field: str
    operation: str | None = None
    """None: the same operation."""


@dataclass(frozen=True)
class Reply:
    """An answer that is no error."""

    status: int = 200
    schema: Schema | None = None
    words: str = "OK"
    content: str = "application/json"
    links: tuple[Link, ...] = ()
    headers: Spec = field(default_factory=dict)


Messages = Callable[[Subject], Mapping[str, Spec]]
"""By name, as AsyncAPI writes them (`json_schema.message`)."""


@dataclass(frozen=True)
class Talk:
    """What goes over a connection that stays open, or is polled: AsyncAPI's part of a route."""

    way: Literal["socket", "events", "publish", "poll"]
    sends: Messages
    takes: Messages = lambda subject: {}
    words: str = ""
    """Where the summary of the route is about another use."""
    without: frozenset[str] = frozenset()
    """Parameters of the route that are not for this use."""

    @property
    def stays(self) -> bool:
        return self.way != "poll"

    @property
    def server(self) -> str:
        return "socket" if self.way in ("socket", "publish") else "http"


@dataclass(frozen=True, eq=False)
class Route:
    """One entry of the table."""

    request: str
    """Method and path: `GET /views/{view}`."""
    right: Right
    name: str
    """What a handler is bound by. OpenAPI's operation is called so, with the name of its thing behind."""
    summary: str = ""
    """`{thing}` stands for the words of the thing. Without a summary a route is not described."""
    parameters: tuple[Parameter, ...] = ()
    body: Body | None = None
    replies: tuple[Reply, ...] = ()
    errors: tuple[int, ...] = ()
    """Beside 400, 401, 403 and 429, which every closed route may answer with."""
    needs_writer: bool = False
    """Whether only the edge that writes the log can answer; a read-only one says 409 `read_only_edge`."""
    talk: Talk | None = None
    shown_as: Mapping[str, Route] = field(default_factory=dict)
    """Of a channel: the routes of a view and of a stream that it is described and checked as."""

    @property
    def method(self) -> str:
        return self.request.partition(" ")[0]

    @property
    def path(self) -> str:
        return self.request.partition(" ")[2]

    @property
    def pattern(self) -> str:
        """The path as aiohttp's router reads it."""
        path = self.path
        for parameter in self.parameters:
            if parameter.pattern:
                path = path.replace(f"{{{parameter.name}}}", f"{{{parameter.name}:{parameter.pattern}}}")
        return path

    @cached_property
    def of(self) -> str | None:
        """The kind of thing that its path names."""
        return next(
            (kind for kind in ("view", "stream", "table", "channel", "flow") if f"{{{kind}}}" in self.path), None
        )

    @property
    def methods(self) -> tuple[str, ...]:
        """A reply that ends and changes nothing may be asked for without its body."""
        plain = self.method == "GET" and self.right != "write" and not self.stays
        return ("GET", "HEAD") if plain else (self.method,)

    @property
    def stays(self) -> bool:
        """Whether its connections stay open: AsyncAPI describes it, and OpenAPI does not."""
        return self.talk is not None and self.talk.stays

    @cached_property
    def taken(self) -> tuple[str, ...]:
        """The names that its address may have behind the `?`."""
        named = [p for p in self.parameters if p.place == "query"]
        return tuple(dict.fromkeys((*(p.name for p in named), *(p.also_called for p in named if p.also_called))))

    @cached_property
    def waits_with(self) -> frozenset[str]:
        return frozenset(p.name for p in self.parameters if p.waits)

    def check(self, query: Mapping[str, str]) -> None:
        """Raises `BadRequestError` for a parameter that this route does not take."""
        if query and EVENT_FIELDS.name not in self.taken:
            only(query, self.taken)

    def address(self, thing: Thing) -> str:
        return self.path.replace(f"{{{self.of}}}", thing.called) if self.of else self.path


def only(given: Mapping[str, object], taken: tuple[str, ...]) -> None:
    """Raises `BadRequestError` unless each of these is there at most once, and nothing else is but null.

    A misspelt `where` that nobody reads would show everything: `?were=...` would give all rows, and `?afetr=...` would
    give them too early. Names that begin with `_` are let through, because browsers and libraries add them against
    caches.

    >>> only({"where": "n > 3", "_": "1700000000", "more": None}, ("where", "select"))
    """
    seen: set[str] = set()
    for name, value in given.items():  # of a query with a name twice this gives it twice
        if name.startswith("_") or value is None:
            continue
        shown = ascii(name[:40])
        if name not in taken:
            raise BadRequestError(f"{shown} is not taken here", hint=f"what is: {', '.join(taken) or 'nothing'}")
        if name in seen:
            raise BadRequestError(f"{shown} is there twice", hint="send one value")
        seen.add(name)


def waiting(value: object, default_s: float, most_s: float) -> float:
    """The parameter or field `wait`: seconds, as a number or as its text. Raises `BadRequestError`.

    >>> waiting("0.5", 5.0, 60.0), waiting(None, 5.0, 60.0)
    (0.5, 5.0)
    """
    if value is None:
        return default_s
    seconds = -1.0
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value)
    elif isinstance(value, str) and value.isascii() and "_" not in value and value == value.strip():
        with suppress(ValueError):
            seconds = float(value)
    if not 0 <= seconds <= most_s:
        raise BadRequestError(f"wait={str(value)[:40]} is not a time to wait", hint=f"use seconds from 0 to {most_s:g}")
    return seconds
