"""Who may make, see and change webhooks; what is refused and how; and that secrets stay secret."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from edge import eventually
from fake_flows import topic
from hooked import flowing, hooked, taking

from penstock.errors import ForbiddenError
from penstock.rights.credential import Credential
from penstock.rights.scope import Scope
from penstock.serve.webhooks import webhook_registry
from penstock.serve.webhooks.webhook import restored
from penstock.serve.webhooks.webhook_registry import _check_owner

HOOK = {"url": "http://127.0.0.1:9/x", "view": "topics"}


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "bad_request"),
        (b"[]", 400, "bad_request"),
        (b"\xff", 400, "bad_request"),
        (b"[" * 100_000, 400, "bad_request"),
        ({"view": "topics"}, 400, "bad_request"),
        (HOOK | {"stream": "rsvps"}, 400, "bad_request"),
        ({"url": HOOK["url"]}, 400, "bad_request"),
        (HOOK | {"colour": "red"}, 400, "bad_request"),
        (HOOK | {"shape": "round"}, 400, "bad_request"),
        (HOOK | {"digest_s": 5}, 400, "bad_request"),
        (HOOK | {"shape": "digest"}, 400, "bad_request"),
        (HOOK | {"shape": "digest", "digest_s": 0.5}, 400, "bad_request"),
        (HOOK | {"shape": "digest", "digest_s": "NaN"}, 400, "bad_request"),
        (HOOK | {"where": "nothing = 1"}, 400, "bad_query"),
        (HOOK | {"where": "rsvps >"}, 400, "bad_query"),
        (HOOK | {"select": "nothing"}, 400, "bad_query"),
        (HOOK | {"since": "yesterday"}, 400, "bad_position"),
        (HOOK | {"view": "nothing"}, 404, "unknown_view"),
        ({"url": HOOK["url"], "stream": "nothing"}, 404, "unknown_stream"),
        (HOOK | {"url": "ftp://example.com/"}, 400, "bad_address"),
        (HOOK | {"url": "example.com"}, 400, "bad_address"),
        (HOOK | {"url": "http://ann:secret@example.com/"}, 400, "bad_address"),
        (HOOK | {"url": "http://[::1/"}, 400, "bad_address"),
        (HOOK | {"url": "http://example.com:99999/"}, 400, "bad_address"),
        (HOOK | {"url": "http://example.com/" + "x" * 2_000}, 400, "bad_address"),
        (HOOK | {"url": "\ud800"}, 400, "bad_request"),
    ],
    ids=str,
)
async def test_what_cannot_be_meant_is_refused_with_a_hint(tmp_path: Path, body: Any, status: int, code: str) -> None:
    async with flowing(tmp_path) as flows, hooked(tmp_path) as edge:
        build = flows.build()
        flows.commit(build, [topic("jazz", 1)])
        await edge.at_rows(1)
        got, answer = await edge.ask("POST", "/webhooks", body)
        assert (got, answer["error"]["code"]) == (status, code), answer
        assert answer["error"]["hint"] or code == "bad_request"
        assert (await edge.ask("GET", "/webhooks"))[1] == {"webhooks": []}


async def test_a_body_that_is_too_large_is_a_413(tmp_path: Path) -> None:
    async with hooked(tmp_path) as edge:
        assert (await edge.ask("POST", "/webhooks", b" " * 2_000_000))[0] == 413


async def test_a_webhook_is_listed_changed_and_deleted_for_good(tmp_path: Path) -> None:
    async with flowing(tmp_path) as flows, taking() as taker:
        async with hooked(tmp_path) as edge:
            build = flows.build()
            made = await edge.hook(taker, where="rsvps > 10", shape="batch")
            kept = await edge.hook(taker.url("/kept"))
            _, shown = await edge.ask("GET", f"/webhooks/{made['id']}")
            assert shown | {"secret": made["secret"]} == made | {"state": shown["state"]}
            status, changed = await edge.ask(
                "PATCH", f"/webhooks/{made['id']}", {"where": "rsvps > 2", "shape": "change"}
            )
            assert (status, changed["where"], changed["shape"], changed["enabled"]) == (
                200,
                "rsvps > 2",
                "change",
                True,
            )
            flows.commit(build, [topic("jazz", 3)])
            await taker.has(2)
            status, answer = await edge.ask("PATCH", f"/webhooks/{made['id']}", {"where": "no = 1"})
            assert (status, answer["error"]["code"]) == (400, "bad_query")
            status, answer = await edge.ask("PATCH", f"/webhooks/{made['id']}", {"view": "countries"})
            assert (status, answer["error"]["code"]) == (400, "bad_request")
            assert (await edge.ask("DELETE", f"/webhooks/{made['id']}"))[0] == 204
            for method, path in (("GET", ""), ("DELETE", ""), ("PATCH", ""), ("POST", "/test"), ("GET", "/deliveries")):
                status, answer = await edge.ask(method, f"/webhooks/{made['id']}{path}")
                assert (status, answer["error"]["code"]) == (404, "unknown_webhook")
            flows.commit(build, [topic("jazz", 4)])
            await taker.has(3)
        async with hooked(tmp_path) as edge:
            assert [w["id"] for w in (await edge.ask("GET", "/webhooks"))[1]["webhooks"]] == [kept["id"]]
            assert not [key for key in edge.log.memory() if made["id"] in key]


async def test_a_disabled_webhook_waits_and_then_gets_what_it_missed(tmp_path: Path) -> None:
    async with flowing(tmp_path) as flows, taking() as taker, hooked(tmp_path) as edge:
        build = flows.build()
        made = await edge.hook(taker)
        status, off = await edge.ask("PATCH", f"/webhooks/{made['id']}", {"enabled": False})
        assert (status, off["state"], off["disabled"]["reason"]) == (200, "disabled", "owner")
        flows.commit(build, [topic("jazz", 1)])
        flows.commit(build, [topic("jazz", 2)])
        await edge.quiet()
        assert taker.tried == []
        await edge.ask("PATCH", f"/webhooks/{made['id']}", {"enabled": True})
        await taker.has(2)
        assert [b["row"]["rsvps"] for b in taker.bodies] == [1, 2]


async def test_secrets_are_told_once_and_never_written_to_a_log(tmp_path: Path, caplog: Any) -> None:
    caplog.set_level(logging.DEBUG)
    async with flowing(tmp_path) as flows, taking() as taker, hooked(tmp_path) as edge:
        build = flows.build()
        made = await edge.hook(taker.url("/hook?token=hidden"))
        _, new = await edge.ask("POST", f"/webhooks/{made['id']}/secret")
        taker.answers.append(500)
        flows.commit(build, [topic("jazz", 1)])
        await eventually(lambda: len(taker.tried) == 1, "nothing was tried")
        said = [await edge.ask("GET", path) for path in ("/webhooks", f"/webhooks/{made['id']}")]
        said += [await edge.ask("GET", f"/webhooks/{made['id']}/deliveries"), await edge.ask("GET", "/status")]
        texts = json.dumps(said) + caplog.text + repr(edge.endpoint(made["id"]).webhook)
        assert "whsec_" not in texts
        assert made["secret"][6:] not in texts
        assert new["secret"][6:] not in texts
        assert "hidden" not in caplog.text
        known = restored(edge.log.memory(), made["id"])
        assert known is not None
        assert [secret.text for secret in known[0].secrets] == [new["secret"], made["secret"]]


# Rights


async def test_each_sees_its_own_and_an_administrator_all(tmp_path: Path) -> None:
    async with flowing(tmp_path) as flows, taking() as taker, hooked(tmp_path, secured=True) as edge:
        flows.build()
        admin = await edge.new_key("admin", name="root")
        ann, bob = await edge.new_key("read:topics", name="ann"), await edge.new_key("read:*", name="bob")
        writer = await edge.new_key("write:rsvps", name="writer")
        edge.key = ann
        made = await edge.hook(taker)
        assert made["owner"] == "ann"
        for key, count in ((ann, 1), (bob, 0), (admin, 1), (writer, 0)):
            assert len((await edge.ask("GET", "/webhooks", key=key))[1]["webhooks"]) == count
        for key in (bob, writer):
            for method, path in (("GET", ""), ("PATCH", ""), ("DELETE", ""), ("POST", "/secret"), ("POST", "/test")):
                assert (await edge.ask(method, f"/webhooks/{made['id']}{path}", key=key))[0] == 404
        assert (await edge.ask("POST", "/webhooks", HOOK, key=writer))[0] == 403
        assert (await edge.ask("POST", "/webhooks", HOOK | {"view": "countries"}, key=ann))[0] == 403
        assert (await edge.ask("POST", "/webhooks", HOOK | {"view": "unheard"}, key=ann))[0] == 403
        edge.key = None
        assert (await edge.ask("GET", "/webhooks"))[0] == 401
        assert (await edge.ask("POST", "/webhooks", HOOK))[0] == 401
        assert (await edge.ask("DELETE", f"/webhooks/{made['id']}", key=admin))[0] == 204


async def test_one_key_does_not_take_the_place_of_all_others(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(webhook_registry, "MOST_OF_ONE", 2)
    async with flowing(tmp_path) as flows, taking() as taker, hooked(tmp_path, secured=True) as edge:
        flows.build()
        admin = await edge.new_key("admin", name="root")
        ann, bob = await edge.new_key("read:topics", name="ann"), await edge.new_key("read:*", name="bob")
        body = {"url": taker.url(), "view": "topics"}
        at_once = await asyncio.gather(*(edge.ask("POST", "/webhooks", body, key=ann) for _ in range(5)))
        assert sorted(status for status, _ in at_once) == [201, 201, 409, 409, 409]
        assert {answer["error"]["code"] for status, answer in at_once if status == 409} == {"too_many_webhooks"}
        assert edge.observer.value("penstock_rights_limited_total", limit="webhooks") == 3
        assert (await edge.ask("POST", "/webhooks", body, key=bob))[0] == 201
        for _ in range(3):
            assert (await edge.ask("POST", "/webhooks", body, key=admin))[0] == 201
        own = (await edge.ask("GET", "/webhooks", key=ann))[1]["webhooks"]
        assert (await edge.ask("DELETE", f"/webhooks/{own[0]['id']}", key=ann))[0] == 204
        assert (await edge.ask("POST", "/webhooks", body, key=ann))[0] == 201


async def test_a_revoked_key_ends_its_webhooks_and_nobody_can_wake_them(tmp_path: Path) -> None:
    async with flowing(tmp_path) as flows, taking() as taker:
        async with hooked(tmp_path, secured=True) as edge:
            build = flows.build()
            admin, ann = await edge.new_key("admin"), await edge.new_key("read:topics", name="ann")
            edge.key = ann
            made = await edge.hook(taker)
            flows.commit(build, [topic("jazz", 1)])
            await taker.has(1)
            await edge.revoke(ann)
            await eventually(lambda: edge.endpoint(made["id"]).state == "disabled", "it is not disabled")
            flows.commit(build, [topic("jazz", 2)])
            await edge.quiet()
            status, shown = await edge.ask("GET", f"/webhooks/{made['id']}", key=admin)
            assert shown["disabled"]["reason"] == "rights"
            assert "revoked" in shown["disabled"]["detail"]
            status, answer = await edge.ask("PATCH", f"/webhooks/{made['id']}", {"enabled": True}, key=admin)
            assert (status, answer["error"]["code"]) == (409, "right_ended")
        async with hooked(tmp_path, secured=True) as edge:
            await edge.quiet()
            assert edge.endpoint(made["id"]).state == "disabled"
            assert len(taker.tried) == 1


async def test_the_first_key_ends_webhooks_that_were_made_without_one(tmp_path: Path) -> None:
    async with flowing(tmp_path) as flows, taking() as taker, hooked(tmp_path, secured=True) as edge:
        build = flows.build()
        made = await edge.hook(taker)
        flows.commit(build, [topic("jazz", 1)])
        await taker.has(1)
        edge.key = await edge.new_key("admin")
        flows.commit(build, [topic("jazz", 2)])
        await eventually(lambda: edge.endpoint(made["id"]).state == "disabled", "it is not disabled")
        assert len(taker.tried) == 1


@pytest.mark.parametrize("id", ["jwt/ann", "ticket/ann", "signed/hooks", "nobody", "supervisor"])
def test_only_a_key_can_own_a_webhook(id: str) -> None:
    with pytest.raises(ForbiddenError) as refused:
        _check_owner(Credential(id, "ann", (Scope("admin", "*"),)))
    assert "keys create" in str(refused.value.hint)
