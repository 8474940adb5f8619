"""A dead letter is the business of those who may read dead letters; to write to its stream is not enough."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from secure_edge import HOOK_SECRET, SecureEdge, secure_edge

from penstock.collect.letters.letter_office import DeadLetterOffice
from penstock.config import Limits

JSON = {"Content_Type": "application/json"}


def office(edge: SecureEdge) -> None:
    memory, intakes = edge.log.memory(), edge.collect.intakes
    DeadLetterOffice(edge.reader, memory, intakes, Limits(), edge.clock, edge.observer.emit).add_routes(edge.site)


@pytest.mark.parametrize(
    ("scopes", "result"),
    [
        (("write:orders",), "unknown_letter"),
        (("write:orders", "read:orders"), "unknown_letter"),
        (("read:dead",), "unknown_letter"),
        (("write:rsvps", "read:dead"), "unknown_letter"),
        (("write:orders", "read:dead"), "replayed"),
        (("admin",), "replayed"),
    ],
)
async def test_a_letter_is_replayed_by_those_who_may_read_it_and_write_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scopes: tuple[str, ...], result: str
) -> None:
    monkeypatch.setenv("HOOK_SECRET", HOOK_SECRET)
    async with secure_edge(tmp_path, site=office) as edge:
        key = await edge.key("write:orders")
        assert (await edge.post("orders", key, b'{"amount": "many", "email": "ann@example.org"}')).status == 422
        asked = json.dumps({"letters": [{"letter": "0-0", "events": [{"amount": 2}]}, {"letter": "0-9"}]}).encode()
        reply = await edge.ask("POST", "/dead/replay", await edge.key(*scopes, name="other"), asked, **JSON)
        assert reply.status == 200, reply.raw
        mine, none = reply.body["letters"]
        assert (reply.status, mine["result"], none["result"]) == (200, result, "unknown_letter")
        if result == "unknown_letter":
            assert {**none, "letter": "0-0", "detail": none["detail"].replace("0-9", "0-0")} == mine
