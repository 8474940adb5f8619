"""The door of the package: an app file makes one `App` and says on it what streams, flows and views there are.

Declaring runs nothing. `App` notes frozen definitions with the user's file and line; `check` and `run` read them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, TypeVar, get_args, overload

import msgspec

from penstock.config import MIN_IDLE_US, WHOLE_ROWS, duration_us, rows_count, size_bytes
from penstock.declaration import (
    Application,
    ChannelDef,
    Completeness,
    FlowDef,
    How,
    Place,
    Policy,
    PullDef,
    Retention,
    StreamDef,
    TableDef,
    UdpDef,
    Unknown,
    ViewDef,
    topic_name,
)
from penstock.errors import DeclarationError
from penstock.horizon import parse_horizon
from penstock.option_checks import Names
from penstock.option_checks import at as _at
from penstock.option_checks import at_least as _at_least
from penstock.option_checks import caller as _caller
from penstock.option_checks import names as _names
from penstock.ordered_flows import OrderedFlows
from penstock.overload import parse_max_lag, parse_rate, parse_shed
from penstock.pull_origin import origin, table_origin
from penstock.schema import EventSchema
from penstock.signed import Signed
from penstock.split_flows import SplitFlows
from penstock.view_query import ViewQuery

F = TypeVar("F", bound=Callable[..., Any])


class App(OrderedFlows, SplitFlows):
    """One application: streams, flows and views that belong together.

    >>> from penstock import App, Event
    >>> app = App("shop")
    >>> class Order(Event):
    ...     order_id: int
    ...     amount: float
    >>> orders = app.stream("orders", Order, key="order_id", id="order_id")
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._file = _caller().file
        self._streams: list[StreamDef] = []
        self._tables: list[TableDef] = []
        self._flows: list[FlowDef] = []
        self._views: list[ViewDef] = []
        self._pulls: list[PullDef] = []
        self._udps: list[UdpDef] = []
        self._channels: list[ChannelDef] = []
        if not name.replace("-", "_").isidentifier():
            raise DeclarationError(f"{_caller()}: '{name}' is not an app name", hint="use letters, digits, - and _")

    def stream(
        self,
        name: str,
        type: type[msgspec.Struct],
        *,
        key: Names = None,
        time: str | None = None,
        id: Names = None,
        partitions: int = 1,
        late_after: str | timedelta | None = None,
        idle_after: str | timedelta | None = None,
        complete: Completeness = "events",
        future: str | timedelta = "10 minutes",
        retain: str | timedelta | None = None,
        unknown: Unknown = "ignore",
        rate: str | None = None,
        burst: int | None = None,
        overload: str = "refuse",
        shed: str | None = None,
        sent: str | None = None,
        max_skew: str | timedelta | None = None,
        signed: Signed | None = None,
        horizon: int | str | timedelta | None = None,
        visible_where: str | None = None,
        topic: bool | str = False,
    ) -> StreamDef:
        """A stream of events that come in from outside.

        `key` chooses the partition, `time` is the field with the event's time (int: milliseconds), `id` the field or
        fields that make an event unique (`"fingerprint"`: a hash of its content). An event more than `late_after`
        behind the newest is late; one further ahead than `future` goes to `dead`. After `idle_after` without events
        time goes on by the clock, so that what waits for it closes; `complete="producers"` goes by what numbered
        producers promise instead of by the newest event. `retain` is an age ("7 days") or a size ("10 GB"). `unknown`
        fields are ignored, kept in the JSON column `_unknown`, or a reason to reject. `rate` ("1000/s") is what one
        account may send, `burst` how many events at once. `overload="shed"` drops events where others would get 503, by
        the rule `shed`: "newest", "random", "sample" (keeps whole keys) or "priority:<field>". `signed` says how
        webhooks into this stream are signed (`penstock.signed`); nothing else is taken then but what comes with a key.

        `id="cloudevent"` takes a CloudEvent's source and id. `sent` is the field in which the sender's clock says when
        it sent (or the header `Penstock-Sent` does): `_time` is then corrected by how wrong that clock is, up to
        `max_skew` ("1 day" unless given). With neither of the two nothing is corrected.

        `horizon` says how far back an event that is sent again is known by its `id`: a number of ids (10 million unless
        given, each takes 20 to 40 bytes of memory) or a duration ("24 hours" unless given), whichever ends first.

        `visible_where` (SQL) says which events a reader sees: `"user_id = :sub"`, where `:sub` is a claim of its
        credential. `topic=True`, or a name, publishes events to a topic of Kafka too, for other programs.
        """
        place = _caller()
        with _at(place):
            _at_least(1, f"partitions={partitions!r} of '{name}'", partitions)
            if unknown not in ("ignore", "keep", "reject"):
                raise DeclarationError(f"unknown='{unknown}' of '{name}'", hint="use 'ignore', 'keep' or 'reject'")
            if not inspect.isclass(type):
                raise DeclarationError(f"{type!r} is not an Event class", hint="write class X(Event): ...")
            _check_times(name, late_after, idle_after, complete)
            if horizon is not None and id is None:
                raise DeclarationError(
                    f"horizon= of '{name}' without an id", hint="say what makes an event unique: id="
                )
            stream = StreamDef(
                name=name,
                events=EventSchema(type),
                key=_names(key),
                time=time,
                id=_names(id),
                partitions=partitions,
                late_after_us=None if late_after is None else duration_us(late_after),
                idle_after_us=None if idle_after is None else duration_us(idle_after),
                complete=complete,
                future_us=duration_us(future),
                retain=_retention(retain),
                unknown=unknown,
                place=place,
                rate=parse_rate(rate, burst),
                shed=parse_shed(overload, shed, keyed=key is not None),
                sent=sent,
                max_skew_us=_skew(sent, max_skew),
                signed=signed,
                horizon=parse_horizon(horizon),
                visible_where=visible_where,
                topic=topic_name(self.name, name, topic),
            )
        self._streams.append(stream)
        return stream

    def table(
        self,
        name: str,
        type: type[msgspec.Struct],
        *,
        key: Names,
        time: str | None = None,
        versions: str | timedelta | None = None,
        unknown: Unknown = "ignore",
        rate: str | None = None,
        burst: int | None = None,
        overload: str = "refuse",
        shed: str | None = None,
        signed: Signed | None = None,
        visible_where: str | None = None,
        topic: bool | str = False,
    ) -> TableDef:
        """Rows by `key` that come in from outside: each is set, changed and deleted by itself, and only what is current
        counts. It is read like a view, and views join it.

        `versions` ("30 days") says how long a row is kept that a newer one has replaced, and `time` is the field from
        which on a row holds (int: milliseconds): `penstock.joins.as_of` joins events with the row of their time.

        `unknown` fields are ignored or a reason to reject. `rate` ("1000/s") is what one account may send, `burst` how
        many rows at once. `overload="shed"` drops changes where others would get 503, by the rule `shed`, as for a
        stream. `signed` says how webhooks into this table are signed (`penstock.signed`): a `POST` of rows; nothing
        else is taken then but what comes with a key. `visible_where` (SQL) says which rows a reader sees:
        `"user_id = :sub"`, where `:sub` is a claim of its credential. `topic` publishes its rows, as for a stream.

        >>> from penstock import App, Event
        >>> app = App("shop")
        >>> class User(Event):
        ...     id: int
        ...     country: str
        >>> users = app.table("users", User, key="id")
        """
        place = _caller()
        with _at(place):
            if unknown not in ("ignore", "reject"):
                raise DeclarationError(f"unknown='{unknown}' of '{name}'", hint="use 'ignore' or 'reject'")
            if not inspect.isclass(type):
                raise DeclarationError(f"{type!r} is not an Event class", hint="write class X(Event): ...")
            if not _names(key):
                raise DeclarationError(
                    f"the table '{name}' needs a key", hint="name the fields that make a row unique: key="
                )
            made = TableDef(
                name=name,
                events=EventSchema(type),
                key=_names(key),
                unknown=unknown,
                place=place,
                doc=inspect.cleandoc(type.__dict__.get("__doc__") or ""),
                rate=parse_rate(rate, burst),
                shed=parse_shed(overload, shed, keyed=True),
                signed=signed,
                visible_where=visible_where,
                topic=topic_name(self.name, name, topic),
                time=time,
                versions_us=None if versions is None else duration_us(versions),
            )
        self._tables.append(made)
        return made

    def pull(
        self,
        stream: StreamDef | TableDef,
        source: str | Callable[..., Any],
        *,
        map: Callable[[Any], Any] | None = None,
        resume: str | None = None,
        every: str | timedelta | None = None,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        settings: Mapping[str, str] | None = None,
        ca: str | None = None,
        query: str | None = None,
    ) -> None:
        """Read a source outside into a stream; the scheme of the address says how (`ws`, `sse+http`, `file`, ...).

        `map` turns what the source sends into an event (or None, to leave it out). `resume="since=field"` asks the
        source, after a reconnect, from the largest value of that field so far, in the query parameter `since`.
        `every` is how often a polled source is asked. `key` names an environment variable that holds a bearer key;
        a value `"env:NAME"` in `headers` or `settings` (Kafka's) is taken from the environment too. `ca` is a file of
        certificates (PEM) to trust besides the system's, or `"env:NAME"`. Instead of an address an async generator
        function will do: it is called with the last stored position.

        A table is read whole again `every` so often ("1 minute" unless given), from a `file` of CSV, Parquet or JSON,
        or from `postgresql` with `query` and the password in the variable `key`: what differs becomes changes, and a
        row that is gone is deleted.

        >>> from penstock import App, Event
        >>> app = App("shop")
        >>> class Order(Event):
        ...     order_id: int
        >>> orders = app.stream("orders", Order, id="order_id")
        >>> app.pull(orders, "poll+https://shop.example/orders.json", every="30 seconds", key="SHOP_KEY")
        """
        place = _caller()
        with _at(place):
            if not isinstance(stream, StreamDef | TableDef):
                raise DeclarationError(
                    f"{stream!r} is no stream to pull into", hint="give what app.stream or app.table returned"
                )
            if isinstance(stream, TableDef) and map is not None:
                raise DeclarationError(
                    f"a pull into the table '{stream.name}' takes no option 'map'",
                    hint="write the rows as the class has them, or shape them in query=",
                )
            reads = (table_origin if isinstance(stream, TableDef) else origin)(
                source,
                resume=resume,
                every_us=None if every is None else duration_us(every),
                key=key,
                headers=headers,
                settings=settings,
                ca=ca,
                query=query,
            )
        self._pulls.append(PullDef(stream.name, reads, map, place))

    def udp(self, stream: StreamDef, *, port: int, host: str = "127.0.0.1", open: bool = False) -> None:
        """Read datagrams into a stream: each holds one JSON event, or several, one per line.

        A datagram carries no key, so whoever reaches the port may write. `open=True` says that this is meant; without
        it the port must be on loopback, and is not opened at all once the app has keys.

        >>> from penstock import App, Event
        >>> app = App("plant")
        >>> class Reading(Event):
        ...     sensor: str
        >>> readings = app.stream("readings", Reading)
        >>> app.udp(readings, port=9125)
        """
        place = _caller()
        with _at(place):
            if not 0 <= port <= 65_535:
                raise DeclarationError(f"port={port} of the UDP way into '{stream.name}'", hint="use 1 to 65535")
            if not open and host not in ("127.0.0.1", "::1", "localhost"):
                raise DeclarationError(
                    f"the UDP port on '{host}' takes events from whoever reaches it",
                    hint="add open=True if that is meant, or leave host= out to listen on loopback only",
                )
        self._udps.append(UdpDef(stream.name, host, port, open, place))

    @overload
    def flow(self, function: F) -> F: ...

    @overload
    def flow(
        self,
        *,
        name: str | None = None,
        key: Names = None,
        time: str | None = None,
        partitions: int = 1,
        late_after: str | timedelta | None = None,
        deterministic: bool = False,
        visible_where: str | None = None,
        topic: bool | str = False,
    ) -> Callable[[F], F]: ...

    def flow(
        self,
        function: Any = None,
        *,
        name: str | None = None,
        key: Names = None,
        time: str | None = None,
        partitions: int = 1,
        late_after: str | timedelta | None = None,
        deterministic: bool = False,
        visible_where: str | None = None,
        topic: bool | str = False,
    ) -> Any:
        """A function whose rows make a new stream. Its parameters name its inputs.

        `visible_where` (SQL) says which of its events a reader sees, and `topic` publishes them, as for a stream.

        >>> from penstock import App, Event
        >>> app = App("shop")
        >>> class Order(Event):
        ...     amount: float
        >>> orders = app.stream("orders", Order)
        >>> @app.flow(key="amount")
        ... def large(orders):
        ...     return orders.where("amount > 100")
        """

        def declare(f: F) -> F:
            place = _of(f)
            with _at(place):
                _at_least(1, f"partitions={partitions!r} of '{f.__name__}'", partitions)
                self._flows.append(
                    FlowDef(
                        name=name or f.__name__,
                        function=f,
                        parameters=_parameters(f),
                        key=_names(key),
                        time=time,
                        partitions=partitions,
                        late_after_us=None if late_after is None else duration_us(late_after),
                        deterministic=deterministic,
                        place=place,
                        doc=inspect.getdoc(f) or "",
                        visible_where=visible_where,
                        topic=topic_name(self.name, name or f.__name__, topic),
                    )
                )
            return f

        return declare(function) if function is not None else declare

    def view(
        self,
        *,
        key: Names,
        name: str | None = None,
        where: str | None = None,
        order_by: Names = None,
        limit: int | None = None,
        keep: str | timedelta | None = None,
        max_lag: str | timedelta | int | None = None,
        deterministic: bool = False,
        visible_where: str | None = None,
        topic: bool | str = False,
        how: How | None = None,
        whole: int | str | None = None,
        within: str | timedelta | None = None,
        correct: str | timedelta | None = None,
        final: bool = False,
    ) -> Callable[[F], F]:
        """A function whose rows are kept current by `key` and served. Its parameters name its inputs: streams, flows
        and other views.

        `where` (SQL) decides which rows are in the view, `order_by` and `limit` are defaults of a read, `keep` lets
        rows go that are older than this against the newest event. `deterministic=True` is your word that a function
        which `verify` cannot prove always gives the same rows for the same events. Above `max_lag` (a duration, or
        a number of events) senders of its inputs have to wait. `visible_where` (SQL) says which rows a reader sees:
        `"user_id = :sub"`, with `:sub` a claim of its credential; no reader can widen it, and one without that claim
        sees nothing. `how` insists on one way to keep it current (`penstock check` tells which one it has), and
        `whole` says up to how many rows of its inputs it may be computed as a whole: `"1 million rows"`. `within` is
        part of the query: an event of a stream counts while it is at most this far behind the newest one of its stream,
        so that a view can join events with tables, views and other events. `correct` lets events that are late change
        windows that have closed, up to this far behind. `final=True` adds a column `is_final`: a row of a window that
        cannot change any more is sent once more, with true. `topic` publishes its rows for other programs, as for a
        stream.

        >>> from penstock import App, Event
        >>> app = App("shop")
        >>> class Order(Event):
        ...     country: str
        >>> orders = app.stream("orders", Order)
        >>> @app.view(key="country", order_by="-count", limit=10)
        ... def countries(orders):
        ...     return orders.groupBy("country").count()
        """

        def declare(f: F) -> F:
            place = _of(f)
            with _at(place):
                if limit is not None:
                    _at_least(0, f"limit={limit!r}", limit)
                if where is not None and not isinstance(where, str):
                    raise DeclarationError(f"where={where!r} is no text", hint='write it as SQL: where="orders >= 3"')
                if not _names(key):
                    raise DeclarationError("a view needs a key", hint="name the columns that make a row unique")
                self._views.append(
                    ViewDef(
                        name=name or f.__name__,
                        function=f,
                        parameters=_parameters(f),
                        key=_names(key),
                        where=where,
                        order_by=_names(order_by),
                        limit=limit,
                        keep_us=None if keep is None else duration_us(keep),
                        deterministic=deterministic,
                        place=place,
                        doc=_doc(f),
                        max_lag=parse_max_lag(max_lag),
                        visible_where=visible_where,
                        topic=topic_name(self.name, name or f.__name__, topic),
                        how=_how(how),
                        whole_rows=WHOLE_ROWS if whole is None else rows_count(whole),
                        within_us=None if within is None else duration_us(within),
                        correct_us=None if correct is None else duration_us(correct),
                        final=final,
                    )
                )
            return f

        return declare

    def sql(self, name: str, *, key: Names, query: str, doc: str = "", **options: Any) -> ViewDef:
        """A view as a query of Spark's SQL. What it reads it names: streams, flows, tables and other views.

        `options` are those of `@app.view`: `where`, `order_by`, `limit`, `keep` and the others. `doc` says what it
        shows, as a function's docstring does.

        >>> from penstock import App, Event
        >>> app = App("shop")
        >>> class Order(Event):
        ...     country: str
        >>> orders = app.stream("orders", Order)
        >>> query = "SELECT country, count(*) AS n FROM orders GROUP BY country"
        >>> app.sql("countries", key="country", query=query, order_by="-n").inputs
        ('orders',)
        """
        place = _caller()
        with _at(place):
            query_ = ViewQuery(name, query, place, doc)
        self.view(key=key, name=name, **options)(query_)
        return self._views[-1]

    def channel(
        self,
        name: str,
        view_or_stream: StreamDef | TableDef | ViewDef | Callable[..., Any] | str,
        *,
        where: str | None = None,
        select: Names = None,
        policy: Policy = "conflate",
    ) -> ChannelDef:
        """A view or stream under a name of its own, for those who may read no more of it than this.

        `where` (SQL) and `select` are the channel's: a reader's own `where` is added to it, and it chooses among these
        columns. The scope `read:<channel>` opens it without opening the view. A subscriber that is too slow gets the
        latest of each key (`policy="conflate"`), or is cut and resumes (`"every_change"`: nothing is ever left out).

        >>> from penstock import App, Event
        >>> app = App("shop")
        >>> class Order(Event):
        ...     country: str
        >>> orders = app.stream("orders", Order)
        >>> norwegian = app.channel("norwegian", orders, where="country = 'NO'", policy="every_change")
        """
        place = _caller()
        with _at(place):
            if policy not in ("conflate", "every_change"):
                raise DeclarationError(
                    f"policy='{policy}' of the channel '{name}'", hint="use 'conflate' or 'every_change'"
                )
            if select is not None and not _names(select):
                raise DeclarationError(f"select= of the channel '{name}' names no column", hint="leave it out for all")
            chosen = None if select is None else _names(select)
            channel = ChannelDef(name, self._named(view_or_stream), where, chosen, policy, place)
        self._channels.append(channel)
        return channel

    def _named(self, thing: StreamDef | TableDef | ViewDef | Callable[..., Any] | str) -> str:
        """The name under which a stream, a table, or the function of a view or flow, was declared."""
        if isinstance(thing, str):
            return thing
        if isinstance(thing, StreamDef | TableDef | ViewDef):
            return thing.name
        nodes: list[FlowDef | ViewDef] = [*self._views, *self._flows]
        for node in nodes:
            if node.function is thing:
                return node.name
        raise DeclarationError(
            f"{getattr(thing, '__name__', thing)!r} is no view, stream or flow of this app",
            hint="declare it above with app.stream, @app.view or @app.flow, or give its name as a text",
        )

    def declared(self) -> Application:
        """All that was declared, frozen."""
        return Application(
            self.name,
            self._file,
            tuple(self._streams),
            tuple(self._flows),
            tuple(self._views),
            tuple(self._pulls),
            tuple(self._udps),
            tuple(self._channels),
            tuple(self._tables),
        )


def _of(function: Callable[..., Any]) -> Place:
    if isinstance(function, ViewQuery):
        return function.place
    code = inspect.unwrap(function).__code__
    return Place(code.co_filename, code.co_firstlineno)


def _doc(function: Callable[..., Any]) -> str:
    return function.doc if isinstance(function, ViewQuery) else inspect.getdoc(function) or ""


def _parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    if isinstance(function, ViewQuery):
        return function.inputs
    return tuple(inspect.signature(function).parameters)


def _how(how: How | None) -> How | None:
    if how is not None and how not in get_args(How):
        raise DeclarationError(f"how={how!r} is no way to keep a view", hint=f"use one of {', '.join(get_args(How))}")
    return how


def _skew(sent: str | None, max_skew: str | timedelta | None) -> int | None:
    if max_skew is not None:
        return duration_us(max_skew)
    return None if sent is None else duration_us("1 day")


def _check_times(
    name: str, late_after: str | timedelta | None, idle_after: str | timedelta | None, complete: str
) -> None:
    """What moves time needs to know how far behind it events may come."""
    if complete not in get_args(Completeness):
        raise DeclarationError(f"complete='{complete}' of '{name}'", hint="use 'events' or 'producers'")
    for option, given in (("idle_after=", idle_after is not None), ("complete='producers'", complete == "producers")):
        if given and late_after is None:
            raise DeclarationError(
                f"{option} of '{name}' without late_after=", hint="say how late an event may be: late_after="
            )
    if idle_after is not None and duration_us(idle_after) < MIN_IDLE_US:
        raise DeclarationError(f"idle_after='{idle_after}' of '{name}'", hint="use 100 ms or more")


def _retention(retain: str | timedelta | None) -> Retention:
    if retain is None:
        return Retention()
    if isinstance(retain, str) and (size := size_bytes(retain)) is not None:
        return Retention(bytes=size)
    return Retention(age_us=duration_us(retain))
