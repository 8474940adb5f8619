"""Stands before every handler of the edge: no request gets further without the right that its route needs.

1. What a request needs stands in the table of routes (`route.py`). A path that is in no table needs `admin`: a new
   route is closed until somebody has thought about it.
2. Rights are judged before names: who may not read a stream is not told whether there is one.
3. What an address says and its route does not take is refused, after rights: a misspelt `where` would show everything.
4. The handlers find who asks with `credential_of(request)`, and ask it about what only they know (a view that a message
   names, the rows of a list).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Container, Iterable
from dataclasses import replace
from typing import Any, NoReturn, TypeVar

from aiohttp import web

from penstock.errors import BadPositionError, ForbiddenError, PenstockError, UnauthorizedError
from penstock.observe.signals import AccessRefused, Signals
from penstock.position import Position
from penstock.rights.credential import ANONYMOUS, NOBODY, Credential, forbidden, heard_by, leave
from penstock.rights.rights import Rights
from penstock.rights.scope import Verb
from penstock.rights.web_origins import WebOrigins
from penstock.route import Right, Route

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
H = TypeVar("H", bound=Callable[..., Any])
PIXEL = "/pixel.gif"
SUBPROTOCOL = "penstock"
"""A browser cannot set a header on a WebSocket, so it may offer the subprotocols `penstock` and `bearer.<key>`."""
_READS = frozenset({"GET", "HEAD"})
_BOUND: web.AppKey[dict[web.AbstractRoute, Route]] = web.AppKey("routes", dict)
_UNKNOWN = Route("", "admin", "")


def bind(app: web.Application, routes: Iterable[Route], **handlers: Handler) -> None:
    """Serve these routes with these handlers, each under its route's name. A route without a handler is not served."""
    by_name = {route.name: route for route in routes}
    bound = app.setdefault(_BOUND, {})
    for name, handler in handlers.items():
        route = by_name[name]
        for method in route.methods:
            bound[app.router.add_route(method, route.pattern, handler)] = route


def refuse(app: web.Application, routes: Iterable[Route], handler: Handler) -> None:
    """Answer those that are not served with one handler: for whoever has the right to ask, and described to nobody."""
    bound = app.setdefault(_BOUND, {})
    served = {(route.method, route.pattern) for route in bound.values()}
    for route in (route for route in routes if (route.method, route.pattern) not in served):
        for method in route.methods:
            bound[app.router.add_route(method, route.pattern, handler)] = replace(route, summary="")


def routes_of(app: web.Application) -> Iterable[Route]:
    """All that is served."""
    return dict.fromkeys(route for route in app.get(_BOUND, {}).values() if route.summary)


def refused_with(reply: Callable[[PenstockError], web.Response]) -> Callable[[H], H]:
    """Give a handler its own form of a refusal, also of one that it never hears of, where JSON is of no use."""

    def marked(handler: H) -> H:
        handler.refused_with = reply  # type: ignore[attr-defined]
        return handler

    return marked


def route_of(request: web.Request) -> Route:
    """The entry of the table that a request is answered by; of what is in no table, one that needs `admin`."""
    return request.app.get(_BOUND, {}).get(request.match_info.route, _UNKNOWN)


class Guard:
    """The middleware, and what it needs to know."""

    def __init__(
        self,
        rights: Rights,
        *,
        origins: WebOrigins | None = None,
        signatures: Container[str] = (),
        signals: Signals = lambda signal: None,
        on_refused: Callable[[str, str], None] = lambda stream, code: None,
        filtered: Collection[str] = (),
    ) -> None:
        """`on_refused` hears of every write that was turned away: the stream's name as it was asked for, and why.

        `signatures` are the streams and tables that take signed requests, `filtered` those of which each reader sees
        its own events only.
        """
        self.rights = rights
        self._filtered = frozenset(filtered)
        self._origins, self._signatures = origins or WebOrigins(), signatures
        self._signals, self._on_refused = signals, on_refused

    def add_to(self, app: web.Application) -> None:
        """Behind the middlewares that are there, before every handler."""
        app.middlewares.append(self._middleware())
        app.on_response_prepare.append(self._mark)

    def _middleware(self) -> Any:
        @web.middleware
        async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
            try:
                if (answer := self._origins.preflight(request)) is not None:
                    return answer
                credential = self._admitted(request)
                self.rights.allowances.ask(credential)
            except PenstockError as error:
                self._count(request, error)
                raise
            leave(request, credential)
            try:
                return await self._handled(request, handler, credential)
            except ForbiddenError:  # what only the handler could know: a claim, a column
                self._signals(AccessRefused("scope"))
                raise
            except PenstockError as error:
                raise heard_by(credential, error) from None

        return guard

    async def _handled(self, request: web.Request, handler: Handler, credential: Credential) -> web.StreamResponse:
        if _stays(request):
            with self.rights.allowances.held(credential, _over(request)):
                reply = await handler(request)
        else:
            reply = await handler(request)
        if request.method in _READS and not reply.prepared:  # a long poll may have waited past the end of a right
            self.rights.still(credential)
        return reply

    async def _mark(self, request: web.Request, response: web.StreamResponse) -> None:
        self._origins.mark(request, response)
        if request.method in _READS:  # what does not say that it may be kept is of this moment, errors too
            response.headers.setdefault("Cache-Control", "no-store")
        if response.status == 401:
            response.headers["WWW-Authenticate"] = 'Bearer realm="penstock"'
        if response.status in (400, 401, 403, 409) and not request.content.is_eof():
            response.force_close()  # nobody reads the rest of the body

    # Whoever posts a plain request, without a look at the request

    def writer(self, stream: str, host: str, authorization: str | None) -> Credential | None:
        """Who writes to a stream with a request that has no `Origin` and comes from no browser; None when that is not
        certain: then the middleware must say what is wrong, and count it."""
        if stream in self._signatures:
            return None
        if self.rights.is_open:
            return ANONYMOUS if self._origins.is_here(host) else None
        scheme, _, secret = (authorization or "").partition(" ")
        credential = self.rights.find(secret.strip()) if scheme.lower() == "bearer" else None
        return credential if isinstance(credential, Credential) and credential.may("write", stream) else None

    def grants(self, credential: Credential) -> bool:
        """One request of this credential's rate, if there is one."""
        return self.rights.allowances.grants(credential)

    def plain_marks(self) -> dict[str, str]:
        """What `_mark` adds to the reply to such a request."""
        return {"Vary": "Origin"} if self._origins.varies else {}

    # May it

    def _admitted(self, request: web.Request) -> Credential:
        """Who asks, if they may. What does not exist is nobody's secret: 404 and 405 come before 401."""
        if request.match_info.http_exception is not None:
            return NOBODY
        route = route_of(request)
        if route.right == "open":
            return self._known_or_nobody(request)
        writes = route.right == "write"
        self._origins.check(request, anonymous=self.rights.is_open, writes=writes)
        if writes and _named(request) in self._signatures:
            credential = self._signed(request)
        else:
            credential = self._identify(request)
            self._check(credential, route.right, request)
        route.check(request.query)
        return credential

    def _signed(self, request: web.Request) -> Credential:
        """A stream with signed webhooks takes a key, or a signature over a body, which the door will check."""
        if _shows_something(request) and not self.rights.is_open:
            credential = self._identify(request)
            self._check(credential, "write", request)
            return credential
        if request.method == "POST":
            return NOBODY
        raise UnauthorizedError(
            f"'{_named(request)}' takes signed requests",
            hint="send a signed POST, or use a key",
        )

    def _check(self, credential: Credential, wanted: Right, request: web.Request) -> None:
        if wanted in ("read", "write"):
            verb: Verb = "read" if wanted == "read" else "write"
            credential.require(verb, _named(request))
        elif wanted == "all":
            credential.require("read", "*")
        elif wanted == "admin":
            credential.require("admin")
        elif wanted == "some" and not credential.may_some("read"):
            raise forbidden(credential, "read:<name>")
        elif wanted == "ack":
            self._check_ack(credential, request.match_info["token"])

    def _check_ack(self, credential: Credential, token: str) -> None:
        """Whoever may write the stream, or read all of it, may know what became of a request to it."""
        try:
            name = Position.parse(token).name
        except BadPositionError:
            return  # the handler says what is wrong with it
        if not credential.may("write", name):
            credential.require("read", name)
            if name in self._filtered and not credential.sees_all:
                raise forbidden(credential, f"write:{name}")

    # Who is it

    def _identify(self, request: web.Request) -> Credential:
        if self.rights.is_open:
            return self.rights.nobody()
        header = request.headers.get("Authorization")
        if header is not None:
            return self.rights.bearer(_bearer(header))
        if (offered := _offered(request)) is not None:
            return self.rights.bearer(offered)
        if takes_key_in_query(request) and (key := request.query.get("key")):
            return self._of_query(key)
        if "ticket" in route_of(request).taken and (ticket := request.query.get("ticket")):
            return self.rights.ticket(ticket)
        return self.rights.nobody()

    def _of_query(self, key: str) -> Credential:
        """An address is remembered in many places, so a key in it may write and nothing else."""
        credential = self.rights.bearer(key)
        if not credential.only_writes:
            raise ForbiddenError(
                f"the key '{credential.name}' may do more than write, so it must not stand in an address",
                hint="make one for this: penstock keys create APP --scope write:<stream>, and revoke this one",
            )
        return credential

    def _known_or_nobody(self, request: web.Request) -> Credential:
        """At what is open to all a credential is welcome and a bad one no reason to refuse."""
        try:
            return self._identify(request) if self.rights.is_open or _shows_something(request) else NOBODY
        except PenstockError:
            return NOBODY

    def _count(self, request: web.Request, error: PenstockError) -> None:
        if error.status == 403:
            self._signals(AccessRefused("origin" if error.code == "foreign_origin" else "scope"))
        if route_of(request).right == "write":
            self._on_refused(_named(request), error.code)


def _named(request: web.Request) -> str:
    """What the path of a request names."""
    named = request.match_info
    return next(named[kind] for kind in ("view", "stream", "table", "channel") if kind in named)


def takes_key_in_query(request: web.BaseRequest) -> bool:
    """Whether this is a way in that cannot set a header: a pixel, or `navigator.sendBeacon` (text/plain)."""
    if request.path.endswith(PIXEL):
        return True
    kind = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    return request.method == "POST" and kind == "text/plain"


def _over(request: web.Request) -> Callable[[], bool]:
    """Whether the connection of this request is gone."""
    transport = request.transport
    return lambda: transport is None or transport.is_closing()


def _stays(request: web.Request) -> bool:
    """Whether a connection is held for long: a socket, a stream of events, or a request that waits."""
    route = route_of(request)
    if request.method not in _READS or route.stays:
        return route.stays
    if "wait" in request.query:
        return request.query["wait"] != "0"
    return not route.waits_with.isdisjoint(request.query)


def _shows_something(request: web.Request) -> bool:
    by_header = "Authorization" in request.headers or _offered(request) is not None
    return by_header or (takes_key_in_query(request) and "key" in request.query)


def _offered(request: web.BaseRequest) -> str | None:
    """The key among the subprotocols that a WebSocket offers."""
    if request.headers.get("Upgrade", "").lower() != "websocket":
        return None
    offers = [offer.strip() for offer in request.headers.get("Sec-WebSocket-Protocol", "").split(",")]
    return next((offer.removeprefix("bearer.") for offer in offers if offer.startswith("bearer.")), None)


def _bearer(header: str) -> str:
    scheme, _, secret = header.partition(" ")
    if scheme.lower() != "bearer" or not secret.strip():
        _bad_header()
    return secret.strip()


def _bad_header() -> NoReturn:
    raise UnauthorizedError("the header Authorization is not understood", hint="send Authorization: Bearer <key>")
