"""`app.split`: streams out of one, each event in the first whose condition it meets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.declaration import FlowDef, StreamDef
from penstock.errors import DeclarationError
from penstock.option_checks import at as _at
from penstock.option_checks import caller as _caller


class SplitFlows:
    """What an app has of it."""

    _streams: list[StreamDef]
    _flows: list[FlowDef]

    def split(self, source: Any, /, **streams: str | None) -> None:
        """Streams out of one: each event of a stream or flow goes to the first whose condition (SQL) it meets.

        `None` takes whatever is left; without it, that is in none of them. Each is a flow of its own, with the key, the
        partitions and the `_time` of the source.

        >>> from penstock import App, Event
        >>> app = App("shop")
        >>> class Order(Event):
        ...     amount: float
        >>> orders = app.stream("orders", Order)
        >>> app.split(orders, big="amount > 100", rest=None)
        >>> [flow.name for flow in app.declared().flows]
        ['big', 'rest']
        """
        place = _caller()
        with _at(place):
            name = source if isinstance(source, str) else getattr(source, "name", None) or source.__name__
            declared: list[StreamDef | FlowDef] = [*self._streams, *self._flows]
            found = [each for each in declared if each.name == name]
            if not found or not streams:
                raise DeclarationError(f"split: '{name}' is no stream or flow", hint="declare it above this line")
            if None in list(streams.values())[:-1]:
                raise DeclarationError("split: a stream behind the one for the rest gets nothing", hint="put it last")
        before: list[str] = []
        for stream, condition in streams.items():
            self._flows.append(
                FlowDef(
                    name=stream,
                    function=_first_fit(str(name), condition, tuple(before)),
                    parameters=(str(name),),
                    key=found[0].key,
                    time=None,
                    partitions=found[0].partitions,
                    late_after_us=None,
                    deterministic=False,
                    place=place,
                    doc=f"Events of '{name}' where {condition}." if condition else f"All other events of '{name}'.",
                )
            )
            before += [condition] if condition else []


def _first_fit(source: str, condition: str | None, before: tuple[str, ...]) -> Callable[..., Any]:
    """The function of one stream of a split: what meets its condition, and none of those before it."""
    met = [f"NOT coalesce(({other}), false)" for other in before]
    met += [f"coalesce(({condition}), false)"] if condition else []

    def fitting(**frames: Any) -> Any:
        return frames[source].where(" AND ".join(met)) if met else frames[source]

    return fitting
