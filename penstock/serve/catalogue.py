"""Decides under which rule somebody reads a view, a stream or a channel: the one way from a request to a `Question`.

1. Every transport asks here. A `Question` that was made without it (its `rule` is None) gets nothing of what shows each
   reader its own rows.
2. An administrator sees all rows; a channel's own filter and columns hold for it too.
3. The ledgers quote events of every stream. To whoever is not an administrator they show nothing of streams of which
   each reader sees its own events only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock.declaration import LEDGERS, Application, ChannelDef, FlowDef, StreamDef, TableDef, ViewDef
from penstock.errors import UnknownChannelError
from penstock.rights.credential import Credential
from penstock.serve.question import Question, question_in
from penstock.views.read_rule import ReadRule, RuleCondition, claims_in, read_rule
from penstock.views.where.sql_types import quoted

_NOTHING = ReadRule(columns=frozenset())


class Catalogue:
    """All that an app lets anybody read, by name."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self._filtered = application.filtered()

    def question(self, fields: Mapping[str, Any], credential: Credential, name: str) -> Question:
        """What query parameters or a message ask of `name`: a view, stream, ledger or channel that it may read."""
        channel = self._application.channel(name)
        return replace(
            question_in(fields),
            masked=not credential.sees_all,
            rule=self.rule(credential, name),
            policy=channel.policy if channel else "conflate",
        )

    def rule(self, credential: Credential, name: str) -> ReadRule:
        """Raises `ForbiddenError` for a credential without a claim that it takes. What there is not is not visible."""
        if name in LEDGERS:
            return self._ledger_rule(credential, name)
        channel = self._application.channel(name)
        thing = self._thing(channel.target if channel else name)
        if thing is None:
            return _NOTHING
        if channel is None:
            return read_rule(credential, name, thing.visible_where)
        key = thing.key if isinstance(thing, ViewDef | TableDef) else ()
        select = None if channel.select is None else (*key, *channel.select)
        return read_rule(credential, name, thing.visible_where, where=channel.where, select=select)

    def channel(self, name: str) -> ChannelDef:
        """Raises `UnknownChannelError`."""
        found = self._application.channel(name)
        if found is None:
            known = ", ".join(channel.name for channel in self._application.channels)
            raise UnknownChannelError(f"there is no channel '{name}'", hint=f"the app has: {known or 'none'}")
        return found

    def is_view(self, channel: ChannelDef) -> bool:
        return any(shown.name == channel.target for shown in self._application.shown)

    def claims(self, credential: Credential, name: str) -> dict[str, Any]:
        """The claims that decide what of `name` is visible to this one: what a ticket must carry."""
        channel = self._application.channel(name)
        thing = self._thing(channel.target if channel else name)
        texts = [channel.where if channel else None, thing.visible_where if thing else None]
        wanted = {claim for text in texts if text is not None for claim in claims_in(text)}
        return {claim: credential.claims[claim] for claim in sorted(wanted) if claim in credential.claims}

    def _thing(self, name: str) -> StreamDef | TableDef | FlowDef | ViewDef | None:
        application = self._application
        table = application.table(name)
        return table or application.view(name) or application.stream(name) or application.flow(name)

    def _ledger_rule(self, credential: Credential, name: str) -> ReadRule:
        columns = credential.columns(name)
        if credential.sees_all or not self._filtered:
            return ReadRule((), columns)
        hidden = ", ".join(quoted(stream) for stream in sorted(self._filtered))
        return ReadRule((RuleCondition(f"stream NOT IN ({hidden})"),), columns)
