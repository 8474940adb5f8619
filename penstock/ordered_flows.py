"""Declares what sees the events of a key one after the other: classes with state, and what is built on the same way."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar, get_args

from penstock.config import duration_us
from penstock.declaration import AlertDef, FlowDef, Order, OrderedDef, Place, TableDef, ViewDef
from penstock.errors import DeclarationError
from penstock.option_checks import Names, at, at_least, caller, names
from penstock.patterns import AfterMatch, DeclaredPattern, check_pattern
from penstock.stateful import Script, script_of

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)


class OrderedFlows:
    """The part of `App` that declares ordered flows."""

    _flows: list[FlowDef]
    _views: list[ViewDef]
    _tables: list[TableDef]

    def stateful(
        self,
        *,
        reads: Any,
        key: Names,
        name: str | None = None,
        order: Order = "log",
        keep: str | timedelta | None = None,
        state: bool = False,
        time: str | None = None,
        partitions: int = 1,
        late_after: str | timedelta | None = None,
        visible_where: str | None = None,
    ) -> Callable[[C], C]:
        """A class that sees the events of each `key` one after the other, with a state in Python; what it emits makes a
        new stream. `reads` names the streams and flows, all of which have the key's columns.

        `order="log"` hands events over as they came, late ones too (`event.late`); `order="time"` as they happened,
        once nothing older is taken any more. `keep` lets the state of a key go when it has had no event for so long.
        With `state=True` its states are the view `NAME_state`. `time`, `partitions`, `late_after` and
        `visible_where` are those of a flow's stream.

        >>> from penstock import App, Event, Struct
        >>> app = App("bank")
        >>> class Payment(Event):
        ...     card: str
        ...     amount: float
        >>> payments = app.stream("payments", Payment, key="card")
        >>> @app.stateful(reads=payments, key="card", state=True)
        ... class large:
        ...     class State(Struct):
        ...         n: int = 0
        ...         mean: float = 0.0
        ...     class Output(Struct):
        ...         card: str
        ...         amount: float
        ...     def on_event(self, state, event, out):
        ...         if state.n >= 10 and event.amount > 5 * state.mean:
        ...             out.emit(amount=event.amount)
        ...         state.n += 1
        ...         state.mean += (event.amount - state.mean) / state.n
        """

        def declare(cls: C) -> C:
            place = _line_of(cls)
            with at(place):
                called = name or cls.__name__
                at_least(1, f"partitions={partitions!r} of '{called}'", partitions)
                if order not in get_args(Order):
                    raise DeclarationError(f"order={order!r} of '{called}'", hint="use 'log' or 'time'")
                columns = names(key)
                if not columns:
                    raise DeclarationError(
                        f"'{called}' needs a key", hint="name the columns whose events belong together: key="
                    )
                script = script_of(cls, called, columns)
                rows = [] if script.rows is None else script.rows.names
                flow = FlowDef(
                    name=called,
                    function=cls.on_event,  # type: ignore[attr-defined]
                    parameters=input_names(reads),
                    key=columns if all(column in rows for column in columns) else (),
                    time=time,
                    partitions=partitions,
                    late_after_us=None if late_after is None else duration_us(late_after),
                    deterministic=False,
                    place=place,
                    doc=inspect.cleandoc(cls.__doc__ or ""),
                    visible_where=visible_where,
                    ordered=OrderedDef(
                        script=script,
                        key=columns,
                        order=order,
                        keep_us=None if keep is None else duration_us(keep),
                        state=f"{called}_state" if state else f"{called}.state",
                    ),
                )
                self._flows.append(flow)
                if state:
                    self._views.append(state_view(flow))
            return cls

        return declare

    def pattern(
        self,
        *,
        key: Names,
        within: str | timedelta | None = None,
        name: str | None = None,
        order: Order = "time",
        after_match: AfterMatch = "skip_past_last",
        partitions: int = 1,
        visible_where: str | None = None,
    ) -> Callable[[F], F]:
        """A function that returns a pattern (`penstock.patterns`): each match in the events of a `key` is one event of
        a new stream, with the events that matched in it. Its parameter names the stream or flow that it reads.

        A match takes less than `within` from its first event to its last. `order="time"` looks at events as they
        happened, once nothing older is taken any more; `order="log"` as they came. `after_match` says what becomes of
        the key's other partial matches: those that began before the end of this one go ("skip_past_last"), those that
        began with the same event ("skip_to_next"), or none.

        >>> from penstock import App, Event
        >>> from penstock.patterns import begin
        >>> app = App("roads")
        >>> class Report(Event):
        ...     road: str
        ...     speed: float
        >>> reports = app.stream("reports", Report, key="road", late_after="10 seconds")
        >>> @app.pattern(key="road", within="5 minutes")
        ... def jam(reports):
        ...     return begin("a", "speed < 20").followed_by("b", "speed < a.speed")
        """

        def declare(f: F) -> F:
            code = inspect.unwrap(f).__code__
            place = Place(code.co_filename, code.co_firstlineno)
            with at(place):
                called, columns = name or f.__name__, names(key)
                inputs = tuple(inspect.signature(f).parameters)
                if len(inputs) != 1:
                    raise DeclarationError(f"'{called}' has {len(inputs)} parameters", hint="name one stream or flow")
                if not columns:
                    raise DeclarationError(
                        f"'{called}' needs a key", hint="name the columns whose events belong together"
                    )
                if order not in get_args(Order):
                    raise DeclarationError(f"order={order!r} of '{called}'", hint="use 'log' or 'time'")
                within_us = None if within is None else duration_us(within)
                found = check_pattern(f(inputs[0]), called, within_us, after_match)
                self._flows.append(
                    FlowDef(
                        name=called,
                        function=f,
                        parameters=inputs,
                        key=columns,
                        time=None,
                        partitions=partitions,
                        late_after_us=None,
                        deterministic=False,
                        place=place,
                        doc=inspect.getdoc(f) or "",
                        visible_where=visible_where,
                        ordered=OrderedDef(
                            script=Script(DeclaredPattern(found, within_us, after_match), called),
                            key=columns,
                            order=order,
                            keep_us=within_us,
                            state=f"{called}.state",
                        ),
                    )
                )
            return f

        return declare

    def alert(
        self,
        name: str,
        view: Any,
        *,
        when: str,
        until: str | None = None,
        hold: str | timedelta | None = None,
        on: str = "row",
        doc: str = "",
        visible_where: str | None = None,
    ) -> FlowDef:
        """An alert on rows of a view: raised for a key when `when` (SQL) is true of its row, and cleared when `until`
        is, or without it when `when` is not true any more, or when the row goes. Each is told once.

        The view `name` shows what is raised now, the stream `NAME_events` each that was raised or cleared, with its
        row. With `hold` the condition must be true for so long, by the clock. `on="row"`: every row that is published
        counts.

        >>> from penstock import App, Event
        >>> app = App("servers")
        >>> class Sample(Event):
        ...     server: str
        ...     cpu: float
        >>> samples = app.stream("samples", Sample, key="server")
        >>> @app.view(key="server")
        ... def load(samples):
        ...     return samples.select("server", "cpu")
        >>> app.alert("hot", load, when="cpu > 90", until="cpu < 80").name
        'hot_events'
        """
        place = caller()
        with at(place):
            if on != "row":
                raise DeclarationError(f"on={on!r} of the alert '{name}'", hint='use "row"')
            watched = self._watched(view)
            if set(watched.key) & {"alert", "since", "row"}:
                raise DeclarationError(
                    f"the key of '{watched.name}' has a column 'alert', 'since' or 'row'", hint="give it another name"
                )
            shown = replace(
                _view_of(f"{name}_events", name, watched.key, place, (watched.name,)),
                doc=doc or f"What is raised: {when}",
                visible_where=visible_where,
            )
            flow = FlowDef(
                name=f"{name}_events",
                function=shown.function,
                parameters=(watched.name,),
                key=watched.key,
                time=None,
                partitions=1,
                late_after_us=None,
                deterministic=False,
                place=place,
                doc=f"What {name} has raised and cleared.",
                visible_where=visible_where,
                alert=AlertDef(when, until, 0 if hold is None else duration_us(hold), shown),
            )
        self._flows.append(flow)
        self._views.append(shown)
        return flow

    def _watched(self, view: Any) -> ViewDef | TableDef:
        name = view if isinstance(view, str) else getattr(view, "name", None) or getattr(view, "__name__", None)
        known: list[ViewDef | TableDef] = [*self._views, *self._tables]
        for shown in known:
            if shown.name == name or (not isinstance(view, str) and getattr(shown, "function", None) is view):
                return shown
        raise DeclarationError(f"{name!r} is no view or table of this app", hint="declare it above the alert")


def _view_of(flow: str, name: str, key: tuple[str, ...], place: Place, inputs: tuple[str, ...]) -> ViewDef:
    """A view that a flow keeps."""
    return ViewDef(
        name=name,
        function=_kept_by_a_flow,
        parameters=inputs,
        key=key,
        where=None,
        order_by=(),
        limit=None,
        keep_us=None,
        deterministic=False,
        place=place,
        doc="",
        how="ordered",
        state_of=flow,
    )


def _kept_by_a_flow(**_: Any) -> None:
    """The function of a view that no query computes."""


def state_view(flow: FlowDef) -> ViewDef:
    """The view of an ordered flow's states."""
    assert flow.ordered is not None
    return replace(
        _view_of(flow.name, flow.ordered.state, flow.ordered.key, flow.place, flow.parameters),
        function=flow.function,
        doc=f"The state of {flow.name}, key by key.",
        visible_where=flow.visible_where,
    )


def input_names(reads: Any) -> tuple[str, ...]:
    """The names of streams and flows, given as such, as functions or classes, or as texts."""
    many = reads if isinstance(reads, list | tuple) else [reads]
    found = tuple(one if isinstance(one, str) else getattr(one, "name", getattr(one, "__name__", "")) for one in many)
    if not found or not all(isinstance(one, str) and one for one in found):
        raise DeclarationError(f"reads={reads!r} names no stream or flow", hint="give what app.stream returned")
    if len(set(found)) != len(found):
        raise DeclarationError(f"reads={reads!r} names one stream twice", hint="name it once")
    return found


def _line_of(cls: type) -> Place:
    """Where the class begins; a method's line serves where the source is not to be had."""
    function = getattr(cls, "on_event", None)
    if not inspect.isfunction(function):
        function = next((part for part in vars(cls).values() if inspect.isfunction(part)), None)
    if function is None:
        return Place(getattr(inspect.getmodule(cls), "__file__", None) or "", 1)
    file = function.__code__.co_filename
    try:
        return Place(file, inspect.getsourcelines(cls)[1])
    except (OSError, TypeError):
        return Place(file, function.__code__.co_firstlineno)
