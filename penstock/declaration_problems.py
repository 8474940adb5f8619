"""Finds what is wrong with an app's declarations, as far as it shows without Spark, and says what to write instead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec

import msgspec
import pyarrow as pa

from penstock import schema
from penstock.declaration import (
    LEDGERS,
    Application,
    ChannelDef,
    FlowDef,
    Node,
    Place,
    Problem,
    StreamDef,
    TableDef,
    ViewDef,
)


def problems_of(app: Application) -> list[Problem]:
    return [
        *_name_problems(app),
        *_stream_problems(app),
        *_table_problems(app),
        *_pull_problems(app),
        *_input_problems(app),
        *_channel_problems(app),
        *_filter_problems(app),
        *_cycle_problems(app),
        *_topic_problems(app),
    ]


def unpublished(app: Application) -> list[Problem]:
    """What `check` says of topics where the log is the embedded one."""
    return [
        Problem(
            "note",
            "topic_unused",
            f"'{thing.name}' is published to the topic '{thing.topic}' only when the log is on Kafka",
            thing.place,
            "keep the log there: --log kafka://host:9092",
        )
        for thing in app.published
    ]


def _topic_problems(app: Application) -> Iterator[Problem]:
    names: dict[str | None, str] = {}
    for thing in app.published:
        if (other := names.setdefault(thing.topic, thing.name)) != thing.name:
            text = f"'{thing.name}' and '{other}' are published to one topic, '{thing.topic}'"
            yield _error("same_topic", text, thing.place, "give each a topic of its own")


def _error(code: str, message: str, place: Place, hint: str) -> Problem:
    return Problem("error", code, message, place, hint)


def _name_problems(app: Application) -> Iterator[Problem]:
    first: dict[str, Place] = {}
    things: tuple[StreamDef | Node | ChannelDef, ...] = (*app.entries, *app.nodes, *app.channels)
    for thing in things:
        if thing.name in first:
            yield _error(
                "name_taken",
                f"'{thing.name}' is declared twice; the first is at {first[thing.name]}",
                thing.place,
                "give one of them another name",
            )
        first.setdefault(thing.name, thing.place)
        if thing.name in LEDGERS or thing.name.startswith("_") or thing.name == "spark":
            yield _error("name_reserved", f"the name '{thing.name}' is reserved", thing.place, "choose another name")
        elif not thing.name.replace("-", "_").isidentifier() or not thing.name.isascii():
            yield _error(
                "bad_name",
                f"'{thing.name}' is not a name",
                thing.place,
                "use letters, digits, _ and -, and no digit first",
            )


def _stream_problems(app: Application) -> Iterator[Problem]:
    for stream in app.streams:
        fields = {f.name: f.type for f in stream.events.fields}
        ids = () if stream.identified_by_envelope or stream.fingerprinted else stream.id
        times = [(role, (name,)) for role, name in (("time", stream.time), ("sent", stream.sent)) if name]
        for role, names in (("key", stream.key), ("id", ids), *times):
            for name in names:
                if name not in fields:
                    yield _error(
                        "unknown_field",
                        f"{role}='{name}' of the stream '{stream.name}' is not a field of "
                        f"{stream.events.kind.__name__}",
                        stream.place,
                        f"its fields are {', '.join(fields)}",
                    )
        yield from _priority_problems(stream, fields)
        if "key" in fields:
            yield Problem(
                "warning",
                "secret_name",
                f"the field 'key' of {stream.events.kind.__name__} cannot come in the address of a pixel of "
                f"'{stream.name}': there `key` is the API key",
                stream.place,
                "give the field another name, if pixels are to send it",
            )
        for role, (name,) in times:
            kind = fields.get(name)
            if kind is not None and not (pa.types.is_integer(kind) or pa.types.is_timestamp(kind)):
                yield _error(
                    "bad_time",
                    f"{role}='{name}' of the stream '{stream.name}' is {schema.simple_type(kind)}",
                    stream.place,
                    "a time is an int (milliseconds since 1970) or a datetime",
                )
        if stream.max_skew_us is not None and stream.time is None:
            yield _error(
                "nothing_to_correct",
                f"the stream '{stream.name}' has sent= or max_skew= but no time=: there is no time to correct",
                stream.place,
                "name the field with the time of the event: time=...",
            )
        if stream.late_after_us is None and any(True for _ in app.downstream(stream.name)):
            yield Problem(
                "note",
                "never_late",
                f"the stream '{stream.name}' has no late_after: nothing is late, and state grows with the data",
                stream.place,
                'add late_after="10 minutes" to let windows close',
            )


_KEY_TYPES = ("string", "bigint", "boolean", "date", "timestamp", "decimal")


def _may_be_key(field: pa.Field) -> bool:
    """Whether it stands in an address as one text, and is never left out."""
    return schema.simple_type(field.type).partition("(")[0] in _KEY_TYPES and schema.DEFAULT not in (
        field.metadata or {}
    )


def _table_problems(app: Application) -> Iterator[Problem]:
    for table in app.tables:
        kind, fields = table.events.kind.__name__, {f.name: f for f in table.events.fields}
        for name in table.key:
            if name not in fields:
                yield _error(
                    "unknown_field",
                    f"key='{name}' of the table '{table.name}' is not a field of {kind}",
                    table.place,
                    f"its fields are {', '.join(fields)}",
                )
            elif not _may_be_key(fields[name]):
                yield _error(
                    "bad_key",
                    f"the field '{name}' of {kind} cannot be the key of the table '{table.name}'",
                    table.place,
                    "a key is a text, a whole number, a truth value, a date, a time or a decimal, without a default",
                )
        yield from _priority_problems(table.entry, {name: field.type for name, field in fields.items()})
        yield from _table_time_problems(table, fields)
        if {"op", "key"} <= {f.encode_name for f in msgspec.structs.fields(table.events.kind)}:
            yield _error(
                "reserved_fields",
                f'{kind} has the fields \'op\' and \'key\', and {{"op": "delete", "key": ...}} deletes a row of '
                f"'{table.name}'",
                table.place,
                "give one of them another name",
            )


def _table_time_problems(table: TableDef, fields: Mapping[str, pa.Field]) -> Iterator[Problem]:
    if table.time is None:
        return
    if table.time not in fields:
        text = f"time='{table.time}' of the table '{table.name}' is not a field of {table.events.kind.__name__}"
        yield _error("unknown_field", text, table.place, f"its fields are {', '.join(fields)}")
        return
    kind = fields[table.time].type
    if not (pa.types.is_integer(kind) or pa.types.is_timestamp(kind)):
        text = f"time='{table.time}' of the table '{table.name}' is {schema.simple_type(kind)}"
        yield _error("bad_time", text, table.place, "a time is an int (milliseconds since 1970) or a datetime")


_NEEDS = {
    "kafka": ("confluent_kafka", "confluent-kafka", "kafka"),
    "postgresql": ("psycopg", "psycopg", "postgres"),
}
"""By the scheme of a pull: the module, its package, and the extra of ours that brings it."""


def _pull_problems(app: Application) -> Iterator[Problem]:
    places: dict[tuple[str, str], Place] = {}
    tables: dict[str, Place] = {}
    for pull in app.pulls:
        stream = app.stream(pull.stream)
        if first := places.get((pull.stream, pull.url)):
            yield _error(
                "pull_twice",
                f"'{pull.url}' is pulled into '{pull.stream}' twice; the first is at {first}",
                pull.place,
                "remove one of them: they would share one position",
            )
        places.setdefault((pull.stream, pull.url), pull.place)
        if app.table(pull.stream) and (first := tables.get(pull.stream)):
            yield _error(
                "pull_twice",
                f"two sources are pulled into the table '{pull.stream}'; the first is at {first}",
                pull.place,
                "make a table of each, and join them: what one source does not have is deleted",
            )
        tables.setdefault(pull.stream, pull.place)
        module, package, extra = _NEEDS.get(pull.origin.scheme.name, ("sys", "", ""))
        if find_spec(module) is None:
            yield _error(
                "missing_package",
                f"the pull of '{pull.url}' needs the package {package}",
                pull.place,
                f"pip install 'penstock[{extra}]'",
            )
        if stream is None:
            continue
        resumed = pull.origin.resume and pull.origin.resume.partition("=")[2]
        if resumed and resumed not in stream.events.names:
            yield _error(
                "unknown_field",
                f"resume='{pull.origin.resume}' of the pull into '{stream.name}' names no field of "
                f"{stream.events.kind.__name__}",
                pull.place,
                f"its fields are {', '.join(stream.events.names)}",
            )
        if pull.origin.holds == "repeats" and not stream.id:
            yield Problem(
                "warning",
                "pull_repeats",
                f"the pull of '{pull.url}' into '{pull.stream}' may bring an event again, and the stream has no id",
                pull.place,
                'add id=... to the stream, or id="fingerprint" where events have none',
            )
        if pull.origin.holds == "loses":
            yield Problem(
                "note",
                "pull_loses",
                f"the pull of '{pull.url}' into '{pull.stream}' loses what is sent while this app is down",
                pull.place,
                "add resume= if the source can be asked from a point"
                if "resume" in pull.origin.scheme.options
                else "read a source that can be asked again where that matters",
            )


def _priority_problems(stream: StreamDef, fields: Mapping[str, pa.DataType]) -> Iterator[Problem]:
    name = stream.shed.field if stream.shed else None
    kind = fields.get(name) if name else None
    if name and (kind is None or not (pa.types.is_integer(kind) or pa.types.is_floating(kind))):
        target = "no field" if kind is None else f"a field of type {schema.simple_type(kind)}"
        yield _error(
            "bad_priority",
            f"shed='priority:{name}' of '{stream.name}' names {target} of {stream.events.kind.__name__}",
            stream.place,
            "a priority is a field that holds a number",
        )


def _input_problems(app: Application) -> Iterator[Problem]:
    for node in app.nodes:
        known = [*(s.name for s in app.streams), *(f.name for f in app.flows)]
        if isinstance(node, ViewDef) or node.alert is not None:
            known += [shown.name for shown in app.shown if shown is not node]
        if not node.inputs:
            yield _error(
                "no_input",
                f"'{node.name}' has no input",
                node.place,
                f"name a parameter, or a relation of its SQL, after one of: {', '.join(known)}",
            )
        for name in node.inputs:
            if isinstance(node, FlowDef) and node.alert is None and any(shown.name == name for shown in app.shown):
                yield _error(
                    "view_as_input",
                    f"the flow '{node.name}' reads '{name}', whose rows change; a flow's are final",
                    node.place,
                    "make it a @app.view, or let it read streams and flows",
                )
            elif name not in known and name != node.name:
                yield _error(
                    "unknown_input",
                    f"'{node.name}' reads '{name}', which is no stream, table, flow or view",
                    getattr(node.function, "places", {}).get(name, node.place),
                    f"name it after one of: {', '.join(known) or 'nothing is declared yet'}",
                )


def _channel_problems(app: Application) -> Iterator[Problem]:
    names = [*(s.name for s in app.entries), *(n.name for n in app.nodes)]
    for channel in app.channels:
        if channel.target not in names:
            yield _error(
                "unknown_target",
                f"the channel '{channel.name}' shows '{channel.target}', which is no view, stream or flow",
                channel.place,
                f"name one of: {', '.join(names) or 'nothing is declared yet'}",
            )


def _filter_problems(app: Application) -> Iterator[Problem]:
    """Whoever may read what is made of hidden events sees what is made of all of them."""
    filtered = app.filtered()
    for node in app.nodes:
        above = [name for name in node.inputs if name in filtered]
        if above and node.visible_where is None:
            yield Problem(
                "note",
                "open_below",
                f"'{node.name}' is made from {', '.join(above)}, of which each reader sees its own events only, and "
                "itself shows every row to whoever may read it",
                node.place,
                "add visible_where= where its rows belong to someone",
            )


def _cycle_problems(app: Application) -> Iterator[Problem]:
    for node in app.nodes:
        above, seen = set(node.inputs), set[str]()
        while above - seen:
            seen |= above
            above = {i for n in app.nodes if n.name in seen for i in n.inputs}
        if node.name in seen:
            hint = "let one of those in the circle read a stream instead"
            yield _error("cycle", f"'{node.name}' reads what is made from itself", node.place, hint)
