"""Decides what of an app its documents show to the one who asks: what it may read, with the columns that it may see.

OpenAPI and AsyncAPI are made for one credential. A view, stream or channel that it may not read is not named, nor is a
column that a list in its scope or a channel hides; the class of a stream's events is for those who may send them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from penstock.change import Column
from penstock.declaration import LEDGERS, Application, ChannelDef, StreamDef
from penstock.rights.credential import Credential


@dataclass(frozen=True)
class Thing:
    """A view or a stream under its own name, or under that of a channel."""

    kind: Literal["view", "stream"]
    target: str
    channel: str | None = None

    @property
    def name(self) -> str:
        """Also that of its schema; those of its messages begin with it."""
        return f"channel.{self.channel}" if self.channel else f"{self.kind}.{self.target}"

    @property
    def address(self) -> str:
        return f"/channels/{self.channel}" if self.channel else f"/{self.kind}s/{self.target}"

    @property
    def words(self) -> str:
        return f"the channel {self.channel}" if self.channel else f"the {self.kind} {self.target}"

    @property
    def needs(self) -> str:
        """What one needs the right to read."""
        return self.channel or self.target


class Documented:
    """What one credential may be told of an app."""

    def __init__(self, application: Application, credential: Credential) -> None:
        self.application, self._credential = application, credential
        self.administers = credential.may("admin")

    def things(self) -> Iterator[Thing]:
        """Views, streams and ledgers, then the channels that show some of them: all that may be read."""
        views = [view.name for view in self.application.views]
        made = [flow.name for flow in self.application.flows]
        streams = [*(stream.name for stream in self.application.streams), *made, *LEDGERS]
        found = [Thing("view", name) for name in views] + [Thing("stream", name) for name in streams]
        channels = self.application.channels
        found += [Thing("view" if c.target in views else "stream", c.target, c.name) for c in channels]
        return (thing for thing in found if self._credential.may("read", thing.needs))

    def written(self) -> list[StreamDef]:
        """The streams that may be sent to."""
        return [stream for stream in self.application.streams if self._credential.may("write", stream.name)]

    def columns(self, thing: Thing, columns: Sequence[Column], key: Sequence[str] = ()) -> list[Column]:
        """Those that may be seen; `key` are the view's, which a channel shows whatever it selects."""
        seen = self._credential.columns(thing.needs)
        chosen = self._chosen(self.application.channel(thing.channel) if thing.channel else None, key)
        return [c for c in columns if (seen is None or c.name in seen) and (chosen is None or c.name in chosen)]

    def _chosen(self, channel: ChannelDef | None, key: Sequence[str]) -> set[str] | None:
        return None if channel is None or channel.select is None else {*key, *channel.select}
