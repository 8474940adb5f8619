"""Decides what of an app its documents show to the one who asks: what it may read, with the columns that it may see.

OpenAPI and AsyncAPI are made for one credential. A view, stream or channel that it may not read is not named, nor is a
column that a list in its scope or a channel hides; the class of a stream's events is for those who may send them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from penstock.change import Column
from penstock.config import Limits
from penstock.declaration import LEDGERS, Application
from penstock.log.folder_log import DEAD, LATE
from penstock.rights.credential import Credential
from penstock.route import Route, Subject, Thing
from penstock.serve.describe.message_schemas import (
    SHARED,
    Columns,
    columns_of,
    event_schemas,
    stream_schemas,
    view_schemas,
)
from penstock.views.views import Views


class Audience:
    """What one credential may be told of an app."""

    def __init__(
        self, application: Application, views: Views, limits: Limits, columns: Columns, credential: Credential
    ) -> None:
        """`columns` are those of the streams in the log."""
        self.application, self._views, self._credential = application, views, credential
        self._columns = self._declared() | dict(columns)
        self.things = tuple(thing for thing in self._all() if credential.may("read", thing.called))
        self._written = [entry for entry in application.entries if credential.may("write", entry.name)]
        self._events, classes = event_schemas(self._written)
        self.schemas = dict(SHARED)
        for thing in self.things:
            self.schemas |= self._schemas(thing)
        self.schemas |= classes
        self._subject = Subject(limits, readable=self.things)

    def subjects(self, route: Route) -> Iterator[Subject]:
        """What a route is described for; one whose path names no thing is described once."""
        if route.of is None:
            yield self._subject
        elif route.right == "write":
            for entry in self._written:
                thing = Thing("table" if self.application.table(entry.name) else "stream", entry.name)
                if thing.kind == route.of:
                    yield replace(self._subject, thing=thing, declared=entry, event=self._events[entry.name])
        elif route.of == "table":
            for table in self.application.tables:
                if self._credential.may("read", table.name):
                    yield replace(self._subject, thing=Thing("table", table.name))
        elif route.right == "admin":
            nodes = self.application.views if route.of == "view" else self.application.nodes
            for node in nodes if self._credential.may("admin") else ():
                yield replace(self._subject, thing=Thing("view" if route.of == "view" else "flow", node.name))
        else:
            for thing in self.things:
                if route.of == ("channel" if thing.channel else thing.kind):
                    yield replace(self._subject, thing=thing, columns=tuple(self.schemas[thing.name]["properties"]))

    def _all(self) -> Iterator[Thing]:
        """Views, streams and ledgers, then the channels that show some of them."""
        app = self.application
        yield from (Thing("view", view.name) for view in app.shown)
        streams = (*(stream.name for stream in app.streams), *(flow.name for flow in app.flows), *LEDGERS)
        yield from (Thing("stream", name) for name in streams)
        for channel in app.channels:
            yield Thing(
                "view" if app.view(channel.target) or app.table(channel.target) else "stream",
                channel.target,
                channel.name,
            )

    def _schemas(self, thing: Thing) -> dict[str, object]:
        if thing.kind == "stream":
            return stream_schemas(thing, self._seen(thing, self._columns.get(thing.target, ())))
        content = self._views.view(thing.target).content
        if content is None:
            return view_schemas(thing, (), None)
        return view_schemas(thing, self._seen(thing, content.columns, content.key), content.key)

    def _seen(self, thing: Thing, columns: Sequence[Column], key: Sequence[str] = ()) -> list[Column]:
        """The columns that may be seen; `key` are the view's, which a channel shows whatever it selects."""
        seen = self._credential.columns(thing.called)
        channel = self.application.channel(thing.channel) if thing.channel else None
        chosen = None if channel is None or channel.select is None else {*key, *channel.select}
        return [c for c in columns if (seen is None or c.name in seen) and (chosen is None or c.name in chosen)]

    def _declared(self) -> dict[str, Sequence[Column]]:
        """A flow's columns are known once it has run; until then its events are objects."""
        ledgers: dict[str, Sequence[Column]] = {"dead": columns_of(DEAD), "late": columns_of(LATE)}
        return ledgers | {stream.name: columns_of(stream.stored) for stream in self.application.streams}
