"""The documents name what the one who asks may read and write, and nothing else."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import test_openapi
from edge import eventually
from fake_flows import topic
from jsonschema import Draft7Validator
from openapi_spec_validator import OpenAPIV31SpecValidator
from test_asyncapi import OFFICIAL
from test_openapi import DOCUMENTS, Edge, described_app, running

from penstock import App
from penstock.rights.inbox import Instruction
from penstock.rights.keys import make_key
from tests.memory_folder import memory_folder


def narrow_app() -> App:
    app = described_app()
    app.channel("brief", "topics", select=["rsvps"])
    return app


@pytest.fixture
async def edge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Edge]:
    monkeypatch.setattr(test_openapi, "described_app", narrow_app)
    async with running(memory_folder(tmp_path)) as edge:
        edge.flows.commit(edge.flows.build(), [topic("a", 1)])
        edge.flows.emit(edge.flows.flow(), ["a"], {})
        await eventually(lambda: edge.views.view("topics").content is not None, "loaded")
        yield edge


async def key_for(edge: Edge, *scopes: str) -> dict[str, str]:
    key, record = make_key("", scopes, {}, 0, None)
    await edge.rights.obey(Instruction("create", record.id, record))
    return {"Authorization": f"Bearer {key}"}


async def documents(edge: Edge, *scopes: str) -> tuple[Any, Any]:
    headers = await key_for(edge, *scopes)
    openapi, asyncapi = [await edge.ask("GET", path, headers=headers) for path in DOCUMENTS]
    assert [error.message for error in OpenAPIV31SpecValidator(openapi).iter_errors()] == []
    assert [e.message for e in Draft7Validator(json.loads(OFFICIAL.read_text())).iter_errors(asyncapi)] == []
    return openapi, asyncapi


def named(document: Any, *names: str) -> set[str]:
    """Which of these stand in a document as a name: of a property, a path, a column in a list, a constant."""
    found: set[str] = set()

    def look(part: Any) -> None:
        if isinstance(part, dict):
            for key, value in part.items():
                found.update(key.replace("/", ".").split("."))
                look(value)
        elif isinstance(part, list):
            for value in part:
                look(value)
        elif isinstance(part, str):
            found.update(part.removeprefix("-").split("."))

    look(document["components"]["schemas"])
    look(document.get("paths") or document["channels"])
    return found & set(names)


NAMES = ("topics", "countries", "elsewhere", "rsvps", "others", "yes", "jazz", "yeses", "over", "brief")


async def test_who_may_do_everything_sees_everything(edge: Edge) -> None:
    for document in await documents(edge, "admin"):
        assert named(document, *NAMES) == set(NAMES)
        assert named(document, "topic", "group", "n") == {"topic", "group", "n"}


async def test_a_list_of_columns_hides_the_names_of_the_others(edge: Edge) -> None:
    for document in await documents(edge, "read:topics(topic,group)"):
        assert named(document, *NAMES) == {"topics"}
        assert named(document, "topic", "group") == {"topic", "group"}
        row = document["components"]["schemas"]["view.topics"]
        assert list(row["properties"]) == ["topic", "group"]


async def test_a_list_of_columns_of_a_stream_hides_its_class(edge: Edge) -> None:
    for document in await documents(edge, "read:rsvps(topic)"):
        assert named(document, *NAMES) == {"rsvps"}
        assert named(document, "n", "_id", "Rsvp") == set()
        assert list(document["components"]["schemas"]["stream.rsvps"]["properties"]) == ["_position", "topic"]


async def test_a_channel_shows_what_it_selects_and_not_what_it_is_of(edge: Edge) -> None:
    for document in await documents(edge, "read:brief"):
        assert named(document, "brief", "jazz", "group") == {"brief"}
        assert "view.topics" not in document["components"]["schemas"]
        assert list(document["components"]["schemas"]["channel.brief"]["properties"]) == ["topic", "rsvps"]


async def test_who_may_only_send_sees_what_to_send(edge: Edge) -> None:
    openapi, asyncapi = await documents(edge, "write:rsvps")
    assert set(openapi["paths"]["/streams/rsvps"]) == {"post"}
    assert "/streams/rsvps/pixel.gif" in openapi["paths"]
    assert named(openapi, *NAMES) == named(asyncapi, *NAMES) == {"rsvps"}
    assert "event.Rsvp" in openapi["components"]["schemas"]
    assert "stream.rsvps" not in openapi["components"]["schemas"]


async def test_a_document_is_kept_by_its_owner_alone_and_told_when_it_is_the_same(edge: Edge) -> None:
    for path in DOCUMENTS:
        async with edge.http.get(path) as reply:
            assert reply.headers["Cache-Control"] == "public, no-cache"
    first, second = await key_for(edge, "read:topics"), await key_for(edge, "read:brief")
    for path in DOCUMENTS:
        async with edge.http.get(path, headers=first) as reply:
            assert (reply.headers["Cache-Control"], reply.headers["Vary"]) == ("private, no-cache", "Authorization")
            tag = {"If-None-Match": reply.headers["ETag"]}
        async with edge.http.get(path, headers=first | tag) as reply:
            assert reply.status == 304
        async with edge.http.get(path, headers=second | tag) as reply:
            assert reply.status == 200
