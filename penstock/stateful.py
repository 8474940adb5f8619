"""What a class with state is: its typed state, what it emits, its timers, and what of it can be known when declared.

A *script* is an object with `State` and `Output` (classes of fields), `version`, `on_event`, `on_timer` and `migrate`.
A user's class makes one, and so do patterns, numbers and sessions: whatever sees the events of a key one after the
other. Nothing here needs Spark.
"""

from __future__ import annotations

import datetime as dt
import inspect
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import msgspec
import pyarrow as pa

from penstock.config import duration_us
from penstock.errors import DeclarationError
from penstock.event import Struct
from penstock.schema import TIMESTAMP, EventSchema

SEEN = "_seen"
"""The newest `_time` of a key's events."""
TIMERS = "_timers"
TIMER = pa.struct([("name", pa.string()), ("at", TIMESTAMP), ("clock", pa.bool_())])
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class Timer(msgspec.Struct, frozen=True):
    """A timer that has come due, as `on_timer` gets it."""

    name: str
    at: dt.datetime
    """When it was due: in event time, or of a clock timer by the clock."""
    clock: bool = False


class Out:
    """What a script does beside changing its state: it emits rows, and sets and cancels timers.

    One object serves all keys of a batch; whoever folds looks at it after each call.
    """

    __slots__ = (
        "_now_us",
        "_output",
        "_stamped",
        "_timed",
        "changed",
        "emitted",
        "forgotten",
        "key",
        "rejected",
        "timers",
    )

    def __init__(
        self, output: type[msgspec.Struct] | None, key: tuple[str, ...], now_us: int, *, timed: bool = True
    ) -> None:
        self._output = output
        self._timed = timed
        fields = output.__struct_fields__ if output is not None else ()
        self._stamped = tuple((at, name) for at, name in enumerate(key) if name in fields)
        self._now_us = now_us
        self.key: tuple[Any, ...] = ()
        """The values of the key whose event or timer this is."""
        self.emitted: list[Any] = []
        self.rejected: list[tuple[str, str]] = []
        """Reasons and words of letters that the script writes itself."""
        self.timers: dict[tuple[str, bool], int] = {}
        """When each is due, by its name and whether the clock decides."""
        self.changed = False
        self.forgotten = False

    def emit(self, row: Any = None, /, **fields: Any) -> None:
        """Append a row to the flow's stream: an instance of `Output`, or its fields; those of the key are filled in."""
        if self._output is None:
            raise TypeError("the class emits rows and has no Output: write class Output(Struct) in it")
        if row is None:
            for at, name in self._stamped:
                fields.setdefault(name, self.key[at])
            row = self._output(**fields)
        elif not isinstance(row, self._output):
            raise TypeError(f"emit() takes fields or an Output, not {type(row).__name__}")
        self.emitted.append(row)

    def timer(self, name: str, at: dt.datetime | None) -> None:
        """Set a timer of the key in event time, in place of one of the same name; None: cancel it. One that lies in
        the past fires at once."""
        if not self._timed:
            raise RuntimeError("a timer needs late_after= of the stream: without it no time is ever complete")
        self._set((name, False), None if at is None else moment_us(at))

    def clock(self, name: str, after: str | dt.timedelta | None) -> None:
        """Set a timer by the clock, this long from now, in place of one of the same name; None: cancel it."""
        self._set((name, True), None if after is None else self._now_us + duration_us(after))

    def forget(self) -> None:
        """Let go of the key's state and of its timers, once this call is over."""
        self.forgotten = True

    def reject(self, reason: str, said: str) -> None:
        """Put the event into `dead`, although the script has not failed."""
        self.rejected.append((reason, said))

    def reset(self) -> None:
        """Forget what a call that failed has left."""
        self.emitted, self.rejected, self.changed, self.forgotten = [], [], False, False

    def _set(self, timer: tuple[str, bool], due_us: int | None) -> None:
        self.changed = True
        if due_us is None:
            self.timers.pop(timer, None)
        else:
            self.timers[timer] = due_us


def moment_us(moment: dt.datetime) -> int:
    """A time in microseconds since 1970; one without a zone is in UTC."""
    if not isinstance(moment, dt.datetime):
        raise TypeError(f"at= is a datetime, not {type(moment).__name__}")
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.UTC)
    return (aware - EPOCH) // dt.timedelta(microseconds=1)


class Script:
    """A script with the columns of its state and of what it emits. Travels to executors."""

    def __init__(self, script: Any, name: str) -> None:
        self.script = script
        self.name = name

    @property
    def version(self) -> int:
        return int(getattr(self.script, "version", 1))

    @cached_property
    def state(self) -> EventSchema:
        return EventSchema(self.kind)

    @cached_property
    def kind(self) -> type[msgspec.Struct]:
        """The class of states, which a script may change in place although a `Struct` is frozen."""
        declared = self.script.State
        if not declared.__struct_config__.frozen:
            return declared  # type: ignore[no-any-return]
        return type(declared)("State", (declared,), {"__module__": declared.__module__}, frozen=False)  # type: ignore[no-any-return]

    @property
    def output(self) -> type[msgspec.Struct] | None:
        return getattr(self.script, "Output", None)

    @cached_property
    def rows(self) -> EventSchema | None:
        """The columns of what it emits; None: it emits nothing."""
        return None if self.output is None else EventSchema(self.output)

    @property
    def on_timer(self) -> Any:
        return getattr(self.script, "on_timer", None)

    @property
    def migrate(self) -> Any:
        return getattr(self.script, "migrate", None)

    def migrated(self, old: Mapping[str, Any], version: int) -> msgspec.Struct:
        """The state that a row of an older version becomes."""
        fresh = self.migrate(dict(old), version)
        return self.kind(**{name: getattr(fresh, name) for name in fresh.__struct_fields__})

    def __getstate__(self) -> dict[str, Any]:
        return {"script": self.script, "name": self.name}


class _Nothing(Struct):
    """The state of a class that has none."""


def script_of(cls: type, name: str, key: tuple[str, ...]) -> Script:
    """The script of a user's class. Raises `DeclarationError` where it cannot be one."""
    if not inspect.isclass(cls):
        raise DeclarationError(f"'{name}' is no class", hint="put @app.stateful above a class with on_event")
    if not callable(getattr(cls, "on_event", None)):
        hint = "write def on_event(self, state, event, out): ..."
        raise DeclarationError(f"the class '{name}' has no on_event", hint=hint)
    if not hasattr(cls, "State"):
        cls.State = _Nothing  # type: ignore[attr-defined]
    for part in ("State", "Output"):
        declared = getattr(cls, part, None)
        if declared is not None and not isinstance(declared, msgspec.StructMeta):
            raise DeclarationError(f"{part} of '{name}' is no Struct", hint=f"write class {part}(Struct): ...")
    version = getattr(cls, "version", 1)
    if not isinstance(version, int) or version < 1:
        raise DeclarationError(f"version={version!r} of '{name}'", hint="use a whole number, 1 or more")
    for field in msgspec.structs.fields(cls.State):  # type: ignore[attr-defined]
        if field.name in key:
            hint = "leave it out of State: out.key has the key's values, and each row of the state has its key"
            raise DeclarationError(f"State of '{name}' has the key's field '{field.name}'", hint=hint)
        if field.default is msgspec.NODEFAULT and field.default_factory is msgspec.NODEFAULT:
            hint = "give it one: a key begins with the defaults"
            raise DeclarationError(f"'{field.name}' of the State of '{name}' has no default", hint=hint)
    try:
        script = Script(cls(), name)
    except TypeError as error:
        hint = "leave out __init__, or let it take nothing: there is one object for all keys"
        raise DeclarationError(f"'{name}' cannot be made: {error}", hint=hint) from None
    _ = script.state, script.rows  # raises where a field cannot be a column
    return script
