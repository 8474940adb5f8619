"""A publishing socket needs the right to write, and stops writing when its key ends; status shows what may be read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import WSServerHandshakeError
from secure_edge import HOOK_SECRET, SecureEdge, secure_edge, shop

from penstock.rights.credential import Credential
from penstock.rights.scope import Scope
from penstock.serve.status_filter import StatusFilter


@pytest_asyncio.fixture
async def edge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SecureEdge]:
    monkeypatch.setenv("HOOK_SECRET", HOOK_SECRET)
    async with secure_edge(tmp_path) as made:
        yield made


async def test_a_key_that_may_not_write_opens_no_publishing_socket(edge: SecureEdge) -> None:
    await edge.key("admin", name="admin")
    reader = await edge.key("read:rsvps")
    for key, status in ((reader, 403), ("nothing", 401)):
        with pytest.raises(WSServerHandshakeError) as refused:
            await edge.http.ws_connect(f"{edge.url}/streams/rsvps/publish", headers={"Authorization": f"Bearer {key}"})
        assert refused.value.status == status


async def test_a_revoked_key_writes_nothing_more_over_a_socket_that_is_open(edge: SecureEdge) -> None:
    await edge.key("admin", name="admin")
    key = await edge.key("write:rsvps", name="phone")
    headers = {"Authorization": f"Bearer {key}"}
    async with edge.http.ws_connect(f"{edge.url}/streams/rsvps/publish", headers=headers) as socket:
        await socket.receive_json(timeout=60)
        await socket.send_json({"type": "publish", "id": 1, "event": {"topic": "a"}})
        assert (await socket.receive_json(timeout=60))["accepted"] == 1
        await edge.revoke(key)
        await socket.send_json({"type": "publish", "id": 2, "event": {"topic": "a"}})
        told = await socket.receive_json(timeout=60)
        assert (told["type"], told["id"], told["error"]["code"]) == ("error", 2, "unauthorized")
    stream = edge.log.find("rsvps")
    assert stream is not None
    assert edge.log.bounds(stream).ends == (1,)


def test_status_says_who_waits_only_of_what_may_be_read() -> None:
    reader = Credential("key/1", "reader", (Scope("read", "rsvps"),))
    body: dict[str, Any] = {
        "streams": [],
        "views": [],
        "flows": [],
        "udp": [{"stream": "rsvps"}, {"stream": "orders"}],
        "pressure": {
            "state": "limiting",
            "because": [{"stream": "rsvps", "view": "hidden"}, {"stream": "rsvps", "shed": "random"}, {"room": "full"}],
            "room": {"bytes": 5},
        },
    }
    shown = StatusFilter(shop().declared(), reader).status(body)
    assert shown["udp"] == [{"stream": "rsvps"}]
    assert shown["pressure"]["because"] == [{"stream": "rsvps", "shed": "random"}, {"room": "full"}]
    assert shown["pressure"]["room"] == {}
