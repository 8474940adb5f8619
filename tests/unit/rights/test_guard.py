"""Nothing is done for anybody who may not have it done; whoever may, is not hindered."""

import asyncio
import base64
import gzip
import hashlib
import hmac
import json

import jwt
import pytest
import pytest_asyncio
from aiohttp import WSMsgType, web
from secure_edge import HOOK_SECRET, secure_edge

from penstock.rights.credential import Credential, TokenOptions
from penstock.rights.guard import PIXEL

SECRET = "a shared secret of at least 32 bytes"
OPEN = ("/healthz", "/readyz", "/")


@pytest.fixture(autouse=True)
def hook_secret(monkeypatch):
    monkeypatch.setenv("HOOK_SECRET", HOOK_SECRET)


@pytest_asyncio.fixture
async def edge(tmp_path):
    async with secure_edge(tmp_path, cors=("https://shop.example",), supervisor="the supervisor's own") as made:
        yield made


# Open and closed


async def test_without_a_key_everybody_may_do_everything(edge):
    assert edge.rights.is_open
    assert (await edge.post("orders")).status == 200
    for path in (
        "/streams/orders",
        "/views/topics",
        "/status",
        "/metrics",
        "/graph",
        "/openapi.json",
        "/asyncapi.json",
        *OPEN,
    ):
        assert (await edge.get(path)).status == 200, path
    assert (await edge.ask("POST", "/views/topics/rebuild")).status == 202


NAMES = {"stream": "orders", "view": "topics", "flow": "topics", "channel": "c", "token": "x", "name": "n"}
NAMES |= {"id": "wh_0", "table": "users", "key": "1"}


async def test_every_route_but_the_open_ones_needs_a_credential_from_the_first_key_on(edge):
    await edge.key("read:*")
    routes = [(r.method, r.resource.canonical) for r in edge.site.router.routes() if r.method != "HEAD"]
    assert len(routes) > 15
    for method, path in routes:
        answer = await edge.ask(
            method,
            path.format_map(NAMES),
            body=b"{}",
        )
        file = "." in path.rpartition("/")[2] and not path.endswith("api.json") and not path.endswith(PIXEL)
        if path in OPEN or file:
            assert answer.status == 200, path
        else:
            code = answer.headers["Penstock-Rejected"] if path.endswith(PIXEL) else answer.code
            assert (answer.status, code) == (401, "unauthorized"), path
            assert answer.headers["WWW-Authenticate"] == 'Bearer realm="penstock"'
    assert edge.refused("missing") > 10


async def test_a_route_that_is_in_no_table_needs_admin(tmp_path):
    async def tell(request):
        return web.Response(text="the secret")

    async with secure_edge(tmp_path, site=lambda made: made.site.router.add_get("/secrets", tell)) as edge:
        reader, admin = await edge.key("read:*", "write:*"), await edge.key("admin")
        assert (await edge.get("/secrets", reader)).code == "forbidden"
        assert (await edge.get("/secrets?of=all", admin)).status == 400, "and takes no parameters"
        assert (await edge.get("/secrets", admin)).status == 200


async def test_the_last_key_revoked_leaves_the_door_closed(edge):
    key = await edge.key("write:orders")
    assert (await edge.post("orders", key)).status == 200
    await edge.revoke(key)
    assert (await edge.post("orders", key)).code == "unauthorized"
    assert (await edge.post("orders")).code == "unauthorized"
    assert edge.refused("revoked") == 1


async def test_the_first_key_is_told_once_to_what_lets_anybody_in(edge):
    told = []

    async def tell():
        told.append(edge.rights.is_open)

    edge.rights.on_first_key = tell
    key = await edge.key("write:orders")
    await edge.key("write:orders")
    await edge.revoke(key)
    assert told == [False]


async def test_a_scope_opens_what_it_names(edge):
    writer, reader, admin = await edge.key("write:orders"), await edge.key("read:topics"), await edge.key("admin")
    assert (await edge.post("orders", writer)).status == 200
    assert (await edge.post("orders", reader)).code == "forbidden"
    assert (await edge.post("nothing", writer)).code == "forbidden", "who may not is not told what there is"
    assert (await edge.get("/views/topics", reader)).status == 200
    assert (await edge.get("/views/topics", writer)).code == "forbidden"
    assert (await edge.get("/views/hidden", reader)).code == "forbidden"
    assert (await edge.get("/streams/dead", reader)).code == "forbidden"
    assert (await edge.get("/metrics", reader)).code == "forbidden"
    assert (await edge.ask("POST", "/views/topics/rebuild", reader)).code == "forbidden"
    assert (await edge.ask("POST", "/views/topics/rebuild", admin)).status == 202
    assert (await edge.get("/metrics", admin)).status == 200
    assert (await edge.post("orders", admin)).status == 200
    assert edge.refused("scope") == 7
    refused = edge.observer.value("penstock_collect_requests_refused_total", stream="orders", reason="forbidden")
    assert refused == 1


async def test_an_ack_is_for_who_may_write_or_read_the_stream(edge):
    writer, other, reader = await edge.key("write:orders"), await edge.key("write:rsvps"), await edge.key("read:orders")
    token = (await edge.post("orders", writer)).body["ack"]
    assert (await edge.get(f"/acks/{token}", writer)).status == 200
    assert (await edge.get(f"/acks/{token}", reader)).status == 200
    assert (await edge.get(f"/acks/{token}", other)).code == "forbidden"
    assert (await edge.get("/acks/zzz", other)).code == "bad_position"


async def test_an_ack_names_the_views_that_one_may_read_and_says_of_all_whether_they_have_it(edge):
    writer, reader = await edge.key("write:rsvps"), await edge.key("write:rsvps", "read:topics")
    ack = (await edge.post("rsvps", writer, b'{"topic": "a"}')).body["ack"]
    assert (await edge.get(f"/acks/{ack}", writer)).body == {"ack": ack, "level": "logged", "views": {}}
    assert set((await edge.get(f"/acks/{ack}", reader)).body["views"]) == {"topics"}
    assert set((await edge.get(f"/acks/{ack}", await edge.key("admin"))).body["views"]) == {"topics", "hidden"}


async def test_what_there_is_besides_is_not_named_to_who_may_not_know_it(edge):
    """A right with a `*` lets one ask for names that are none; the answer lists no others."""
    key, all_of_it = await edge.key("read:x*", "write:x*"), await edge.key("read:*")
    for path in ("/views/xyz", "/streams/xyz", "/channels/xyz", "/streams/xyz/events", "/streams/xyz/publish"):
        answer = await edge.get(path, key)
        assert answer.status == 404
        assert not {"hidden", "orders", "locks"} & set(answer.raw.decode().replace(",", " ").split()), answer.raw
    assert b"locks" not in (await edge.post("xyz", key)).raw
    assert b"hidden" in (await edge.get("/views/xyz", all_of_it)).raw
    headers = {"Authorization": f"Bearer {key}"}
    async with edge.http.ws_connect(edge.url + "/socket", headers=headers) as socket:
        await socket.send_json({"type": "subscribe", "view": "xyz"})
        told = await socket.receive_json(timeout=60)
        assert (told["error"]["code"], "hidden" in str(told)) == ("unknown_view", False)


async def test_lists_show_what_may_be_read_and_no_more(edge):
    reader, everything = await edge.key("read:topics", "read:orders"), await edge.key("read:*")
    assert [v["view"] for v in (await edge.get("/views", reader)).body["views"]] == ["topics"]
    assert [s["stream"] for s in (await edge.get("/streams", reader)).body["streams"]] == ["orders"]
    status = (await edge.get("/status", reader)).body
    assert {v["view"] for v in status["views"]} == {"topics"}
    assert {f["flow"] for f in status["flows"]} == {"topics"}
    assert "hidden" not in json.dumps(status)
    assert [n["name"] for n in (await edge.get("/graph", reader)).body["nodes"]] == ["orders", "topics"]
    assert len((await edge.get("/views", everything)).body["views"]) == 3
    assert (await edge.get("/views", await edge.key("write:*"))).code == "forbidden"


async def test_readyz_tells_strangers_states_and_no_errors(edge):
    edge.flows.state("topics", "stopped", {"code": "flow_failed", "message": "row 17 of ann@example.org", "hint": None})
    async with asyncio.timeout(60):
        while edge.views.flow_state("topics").state != "stopped":  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    key = await edge.key("read:*")
    body = (await edge.get("/readyz")).body
    assert body["flows"]["topics"] == {"state": "stopped"}
    assert "rows" not in body["views"]["topics"]
    for known in (key, "the supervisor's own"):
        assert (await edge.get("/readyz", known)).body["flows"]["topics"]["error"]["code"] == "flow_failed"
    assert (await edge.get("/readyz", "psk_wrong_1")).body == body
    assert (await edge.post("orders", "the supervisor's own")).code == "forbidden"


async def test_answers_under_a_credential_are_not_for_shared_caches(edge):
    assert (await edge.get("/views/topics")).headers["Cache-Control"] == "public, no-cache"
    answer = await edge.get("/views/topics", await edge.key("read:topics"))
    assert answer.headers["Cache-Control"] == "private, no-cache"
    assert "Authorization" in answer.headers["Vary"]


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Basic YTpi", "psk_1_2", "Bearer psk_1_2", "Bearer \xff"])
async def test_odd_headers_are_no_credentials(edge, header):
    await edge.key("read:*")
    assert (await edge.get("/views/topics", Authorization=header)).code == "unauthorized"


async def test_tokens_are_credentials_and_their_option_alone_closes_the_server(tmp_path):
    (tmp_path / "secret").write_text(SECRET)
    async with secure_edge(tmp_path / "data", tokens=TokenOptions(secret_file=tmp_path / "secret")) as edge:
        assert (await edge.get("/views/topics")).code == "unauthorized"
        token = jwt.encode({"sub": "ann", "scope": "read:topics", "exp": edge.clock.now_s + 60}, SECRET, "HS256")
        assert (await edge.get("/views/topics", token)).status == 200
        assert (await edge.post("orders", token)).code == "forbidden"
        edge.clock.pass_s(61)
        assert (await edge.get("/views/topics", token)).code == "unauthorized"
        assert edge.refused("expired") == 1


async def test_dead_letters_name_the_credential(edge):
    key = await edge.key("write:orders", "read:dead")
    await edge.post("orders", key, b'{"amount": "x"}')
    (letter,) = (await edge.get("/streams/dead", key)).body["events"]
    assert letter["sender"].startswith(f"key/{key.split('_')[1]} from 127.0.0.1")
    assert key not in json.dumps(letter)


# Keys in an address


async def test_a_key_in_the_address_is_taken_where_no_header_can_be_set_and_only_to_write(edge):
    writer, both = await edge.key("write:orders"), await edge.key("write:orders", "read:orders")
    beacon = await edge.ask("POST", f"/streams/orders?key={writer}", body=b"{}", Content_Type="text/plain")
    assert beacon.code not in ("unauthorized", "forbidden"), "the guard lets it pass; the door judges the content type"
    for path, kind in ((f"/streams/orders?key={both}", "text/plain"), (f"/streams/rsvps?key={writer}", "text/plain")):
        assert (await edge.ask("POST", path, body=b"{}", Content_Type=kind)).code == "forbidden"
    elsewhere = await edge.ask("POST", f"/streams/orders?key={writer}", body=b"{}", Content_Type="application/json")
    assert elsewhere.code == "unauthorized"
    assert (await edge.get(f"/streams/orders?key={both}")).code == "unauthorized"


async def test_the_credential_of_a_pixel_is_never_an_events_data(tmp_path):
    (tmp_path / "secret").write_text(SECRET)
    async with secure_edge(tmp_path / "data", tokens=TokenOptions(secret_file=tmp_path / "secret")) as edge:
        token = jwt.encode({"sub": "ann", "scope": "write:locks", "exp": edge.clock.now_s + 60}, SECRET, "HS256")
        key = await edge.key("write:locks")
        for query in (f"key={token}", f"key={key}"):
            assert (await edge.get(f"/streams/locks{PIXEL}?{query}")).status == 200
        assert (await edge.get(f"/streams/locks{PIXEL}?key=brass", key)).status == 200
        stream = edge.log.find("locks")
        rows = [row for block in edge.log.read(stream, 0, 0, 9) for row in block.batch.to_pylist()]
        assert [row["key"] for row in rows] == ["", "", "brass"]


async def test_a_pixel_that_is_refused_is_an_image_too(edge):
    reader, writer = await edge.key("read:orders"), await edge.key("write:rsvps")
    for query, header, status, code in (
        ("", None, 401, "unauthorized"),
        (f"key={'x' * 30}", None, 401, "unauthorized"),
        (f"key={writer}", None, 403, "forbidden"),
        (f"key={reader}", None, 403, "forbidden"),
        ("", reader, 403, "forbidden"),
    ):
        reply = await edge.get(f"/streams/orders{PIXEL}?amount=1&{query}", header)
        assert (reply.status, reply.headers["Penstock-Rejected"]) == (status, code), query
        assert (len(reply.raw), reply.raw[:6], reply.headers["Content-Type"]) == (43, b"GIF89a", "image/gif")
        assert "no-store" in reply.headers["Cache-Control"]


# Ends


async def test_an_open_socket_is_told_and_closed_when_its_key_is_revoked(edge):
    key, other = await edge.key("read:topics", name="phone"), await edge.key("read:topics")
    headers = {"Authorization": f"Bearer {key}"}
    async with (
        edge.http.ws_connect(f"{edge.url}/views/topics/socket", headers=headers) as socket,
        edge.http.ws_connect(f"{edge.url}/socket", headers={"Authorization": f"Bearer {other}"}) as spared,
    ):
        await socket.send_json({"type": "subscribe"})
        assert (await socket.receive_json(timeout=60))["type"] == "snapshot"
        await edge.revoke(key)
        told = await socket.receive_json(timeout=60)
        assert (told["type"], told["error"]["code"]) == ("error", "unauthorized")
        assert "'phone' was revoked" in told["error"]["detail"]
        assert (await socket.receive(timeout=60)).type == WSMsgType.CLOSE
        assert socket.close_code == 4401
        await spared.send_json({"type": "ping"})
        assert (await spared.receive_json(timeout=60))["type"] == "pong"
    assert edge.rights._watched == {}


async def test_who_left_is_not_remembered_until_its_time_is_up(edge):
    token = Credential("jwt/ann", "ann", (), expires_us=edge.clock.now_us() + 3_600_000_000)
    staying = edge.rights.watch(token)
    for _ in range(5_000):
        edge.rights.watch(token).cancel()
    assert len(edge.rights._ends) < 2_100
    edge.clock.pass_s(3_601)
    await edge.rights.tick()
    assert staying.result().code == "unauthorized"


async def test_events_end_with_the_reason_when_a_credentials_time_is_up(edge):
    key = await edge.key("read:topics", seconds=60)
    shown = {"Authorization": f"Bearer {key}"}
    async with edge.http.get(f"{edge.url}/views/topics/events", headers=shown) as reply:
        while b"event: snapshot" not in (line := await reply.content.readline()):
            assert line
        edge.clock.pass_s(61)
        rest = await asyncio.wait_for(reply.content.read(), 60)
    assert b"event: error" in rest
    assert b"has expired" in rest


@pytest.mark.parametrize("path", ["/views/topics?since={position}", "/streams/rsvps?after=end"])
async def test_a_poll_that_waits_ends_with_its_key_and_gives_nothing(edge, path):
    key = await edge.key("read:topics", "read:rsvps")
    position = (await edge.get("/views/topics", key)).body["position"]
    polled = asyncio.create_task(edge.get(f"{path.format(position=position)}&wait=60", key))
    async with asyncio.timeout(60):
        while not edge.rights._watched:  # noqa: ASYNC110 it waits for a server
            await asyncio.sleep(0.01)
    await edge.revoke(key)
    assert (await asyncio.wait_for(polled, 60)).code == "unauthorized"
    assert edge.rights._watched == {}


async def test_a_socket_asks_for_each_subscription(edge):
    key = await edge.key("read:topics")
    async with edge.http.ws_connect(f"{edge.url}/socket", headers={"Authorization": f"Bearer {key}"}) as socket:
        for wanted in ({"view": "hidden"}, {"stream": "orders"}, {"view": "topics", "stream": "dead"}, {"id": "x"}):
            await socket.send_json({"type": "subscribe", **wanted})
            assert (await socket.receive_json(timeout=60))["error"]["code"] == "forbidden"
        await socket.send_json({"type": "subscribe", "view": "topics"})
        assert (await socket.receive_json(timeout=60))["type"] == "snapshot"


# Pages


async def test_preflights_are_answered_for_allowed_origins_on_every_path(edge):
    await edge.key("read:*")
    asks = {"Access_Control_Request_Method": "POST", "Access_Control_Request_Headers": "authorization, producer-id"}
    for path in ("/streams/orders", "/views/topics", "/acks/x", "/nowhere"):
        good = await edge.ask("OPTIONS", path, Origin="https://shop.example", **asks)
        assert good.status == 204
        assert good.headers["Access-Control-Allow-Origin"] == "https://shop.example"
        assert good.headers["Access-Control-Allow-Headers"] == "authorization, producer-id"
        assert "POST" in good.headers["Access-Control-Allow-Methods"]
        bad = await edge.ask("OPTIONS", path, Origin="https://evil.example", **asks)
        assert bad.code == "foreign_origin"
        assert "Access-Control-Allow-Origin" not in bad.headers


async def test_replies_say_whose_pages_may_see_them(edge):
    key = await edge.key("write:orders", "read:topics")
    for answer in (
        await edge.post("orders", key, Origin="https://shop.example"),
        await edge.post("orders", None, Origin="https://shop.example"),
        await edge.get("/views/topics", key, Origin="https://shop.example"),
    ):
        assert answer.headers["Access-Control-Allow-Origin"] == "https://shop.example"
        assert "Origin" in answer.headers["Vary"]
        exposed = answer.headers["Access-Control-Expose-Headers"]
        assert exposed == "Penstock-Ack, ETag, Producer-Expected-Seq, Retry-After"
    stranger = await edge.get("/views/topics", key, Origin="https://evil.example")
    assert "Access-Control-Allow-Origin" not in stranger.headers
    assert "Origin" in stranger.headers["Vary"]
    async with edge.http.get(
        f"{edge.url}/views/topics/events",
        headers={"Authorization": f"Bearer {key}", "Origin": "https://shop.example"},
    ) as events:
        assert events.headers["Access-Control-Allow-Origin"] == "https://shop.example"


async def test_a_foreign_page_opens_no_socket_and_writes_nothing_without_a_key(edge):
    host = edge.url.removeprefix("http://")
    for origin, status in (
        (None, 101),
        (f"http://{host}", 101),
        ("https://shop.example", 101),
        ("https://evil.example", 403),
        ("null", 403),
        (f"http://{host}.evil.example", 403),
    ):
        headers = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
        headers |= {"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="} | ({"Origin": origin} if origin else {})
        async with edge.http.get(f"{edge.url}/socket", headers=headers) as reply:
            assert reply.status == status, origin
    assert (await edge.post("orders", Origin="https://evil.example")).code == "foreign_origin"
    assert (await edge.post("orders", Origin=f"http://{host}")).status == 200
    key = await edge.key("write:orders")
    assert (await edge.post("orders", key, Origin="https://evil.example")).status == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Sec_Fetch_Site": "cross-site", "Referer": "https://evil.example/page"}, 403),
        ({"Sec_Fetch_Site": "same-site"}, 403),
        ({"Sec_Fetch_Site": "same-site", "Referer": "https://evil.example/page"}, 403),
        ({"Referer": "https://evil.example/page"}, 403),
        ({"Referer": "https://evil.example"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Sec_Fetch_Site": "cross-site", "Referer": "https://shop.example/page"}, 200),
        ({"Referer": "https://shop.example/page"}, 200),
        ({"Sec_Fetch_Site": "same-origin"}, 200),
        ({"Sec_Fetch_Site": "none"}, 200),
        ({}, 200),
    ],
)
async def test_a_foreign_page_writes_nothing_with_an_image_without_a_key(edge, headers, status):
    reply = await edge.get(f"/streams/orders{PIXEL}?amount=1", **headers)
    assert reply.status == status
    assert status == 200 or reply.headers["Penstock-Rejected"] == "foreign_origin"
    assert (await edge.get("/views", Sec_Fetch_Site="cross-site")).status == 200
    key = await edge.key("write:orders")
    assert (await edge.get(f"/streams/orders{PIXEL}?amount=1&key={key}", **headers)).status == 200


async def test_a_server_without_a_key_answers_to_this_machines_names_only(edge):
    assert (await edge.get("/views/topics", Host="evil.example")).code == "foreign_origin"
    for name in ("localhost", "127.0.0.1:1", "[::1]:8080", "app.localhost"):
        assert (await edge.get("/views/topics", Host=name)).status == 200
    key = await edge.key("read:topics")
    assert (await edge.get("/views/topics", key, Host="data.example")).status == 200


# Signed streams


def signature(body: bytes, secret: str = HOOK_SECRET) -> dict[str, str]:
    return {"X_Hub_Signature_256": "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()}


async def test_a_signed_stream_takes_signatures_and_keys_and_nothing_else(edge):
    body = b'{"amount": 5}'
    for is_open in (True, False):
        assert (await edge.post("hooks", None, body)).code == "bad_signature"
        assert (await edge.post("hooks", None, body, **signature(b"other"))).code == "bad_signature"
        assert (await edge.post("hooks", None, body, **signature(body))).status == 200
        if is_open:
            key, other = await edge.key("write:hooks", "read:*"), await edge.key("write:orders")
    assert (await edge.post("hooks", key, body)).status == 200
    assert (await edge.post("hooks", other, body, **signature(body))).code == "forbidden"
    assert (await edge.post("orders", None, body, **signature(body))).code == "unauthorized"
    assert edge.observer.value("penstock_rights_signatures_refused_total", stream="hooks") == 4
    assert len((await edge.get("/streams/hooks", key)).body["events"]) == 3


async def test_a_large_body_is_checked_like_a_small_one(edge):
    body = json.dumps([{"amount": 1, "email": "x" * 900}] * 700).encode()
    assert (await edge.post("hooks", None, body, **signature(b"x"))).code == "bad_signature"
    assert (await edge.post("hooks", None, body, **signature(body))).body["accepted"] == 700


async def test_bytes_that_are_no_text_in_any_header_are_refused_and_no_error_of_ours(edge):
    host, port = edge.url.removeprefix("http://").split(":")

    async def status(*lines: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(host, int(port))
        head = b"\r\n".join((b"POST /streams/hooks HTTP/1.1", b"Host: localhost", b"Connection: close", *lines))
        writer.write(head + b"\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
        answer = await asyncio.wait_for(reader.read(), 60)
        writer.close()
        return answer.split(b" ")[1]

    for _ in range(2):
        assert await status(b"X-Hub-Signature-256: sha256=\xff\xfe") == b"401"
        assert await status(b"Origin: http://\xff\xfe") in (b"403", b"401")
        assert await status(b"Authorization: Bearer \xff\xfe") == b"401"
        assert await status(b"Authorization: Bearer psk_1_\xff") == b"401"
        await edge.key("read:*")


async def test_nothing_of_an_unsigned_body_is_kept_and_its_401_is_counted(edge):
    for kind, body in (("application/json", b"{"), ("application/json", b'{"amount": "x"}')):
        assert (await edge.post("hooks", None, body, Content_Type=kind)).code == "bad_signature"
    packed = await edge.post("hooks", None, b"\x1f\x8bbroken", Content_Encoding="gzip")
    assert packed.code == "bad_signature"
    later = await edge.ask("POST", "/streams/hooks?ack=none", None, b"{}", Content_Type="application/json")
    assert later.code == "bad_signature"
    assert (await edge.get("/streams/dead")).body["events"] == []
    value = edge.observer.value
    assert value("penstock_collect_requests_refused_total", stream="hooks", reason="bad_signature") == 4
    assert value("penstock_collect_events_received_total", stream="hooks") == 0
    bad = b'{"amount": "x"}'
    assert (await edge.post("hooks", None, bad, **signature(bad))).status == 422
    (letter,) = (await edge.get("/streams/dead")).body["events"]
    assert letter["sender"].startswith("signed/hooks from")


async def test_a_body_is_unpacked_only_for_who_has_signed_it(edge):
    bomb = gzip.compress(b" " * (17 * 1024**2))
    assert (await edge.post("hooks", None, bomb, Content_Encoding="gzip")).code == "bad_signature"
    assert (await edge.post("hooks", None, bomb, Content_Encoding="gzip", **signature(bomb))).code == "too_large"


# Private fields


async def test_private_values_are_in_no_reply_and_no_detail(edge):
    secret = "ann@example.org"
    for body in (
        {"amount": "x", "email": secret},
        {"amount": 1, "email": [secret]},
        {"amount": 1, "people": [{"phone": {"a": secret}}]},
        {"amount": 2**70, "email": secret},
    ):
        answer = await edge.post("orders", None, json.dumps(body).encode())
        assert answer.status == 422
        assert secret.encode() not in answer.raw
    letters = (await edge.get("/streams/dead")).body["events"]
    assert len(letters) == 4
    assert all(secret not in letter["detail"] for letter in letters)
    (stream,) = [s for s in (await edge.get("/streams")).body["streams"] if s["stream"] == "orders"]
    assert stream["private"] == ["email", "people[].phone"]
    views = {view["view"]: view["columns"] for view in (await edge.get("/views")).body["views"]}
    assert views["buyers"] == [
        {"name": "phone", "type": "string", "private": True},
        {"name": "orders", "type": "bigint"},
    ]
    assert all("private" not in column for column in views["topics"])


async def test_ledgers_quote_private_fields_to_administrators_only(edge):
    raw = {"amount": "x", "email": "ann@example.org", "people": [{"phone": "555", "city": "Bonn"}]}
    await edge.post("orders", None, json.dumps(raw).encode())
    await edge.post("rsvps", None, b'{"topic": 5}')
    reader, admin = await edge.key("read:dead"), await edge.key("admin")

    def quoted(events):
        return [json.loads(base64.b64decode(event["raw"])) for event in events]

    masked = {"amount": "x", "email": "***", "people": [{"phone": "***", "city": "Bonn"}]}
    assert quoted((await edge.get("/streams/dead", reader)).body["events"]) == [masked, {"topic": 5}]
    assert quoted((await edge.get("/streams/dead", admin)).body["events"]) == [raw, {"topic": 5}]
    assert (await edge.get("/streams/dead?select=raw", reader)).body["events"][0]["raw"] == "***"
    assert (await edge.get("/streams/dead?where=RAW is not null", reader)).code == "forbidden"
    assert len((await edge.get("/streams/dead?where=raw is not null", admin)).body["events"]) == 2
    shown = {"Authorization": f"Bearer {reader}"}
    async with edge.http.ws_connect(f"{edge.url}/socket", headers=shown) as socket:
        await socket.send_json({"type": "subscribe", "stream": "dead"})
        assert quoted((await socket.receive_json(timeout=60))["events"])[0] == masked


async def test_a_browsers_socket_shows_its_key_as_a_subprotocol(edge):
    key = await edge.key("read:topics")
    async with edge.http.ws_connect(f"{edge.url}/socket", protocols=("penstock", f"bearer.{key}")) as socket:
        assert socket.protocol == "penstock"
        await socket.send_json({"type": "subscribe", "view": "topics"})
        assert (await socket.receive_json(timeout=60))["type"] == "snapshot"
    assert (await edge.get("/views/topics", Sec_WebSocket_Protocol=f"bearer.{key}")).code == "unauthorized"


async def test_the_description_of_the_interface_names_every_right(edge):
    spec = (await edge.get("/openapi.json", await edge.key("admin"))).body
    assert set(spec["components"]["securitySchemes"]) == {"key", "token", "beacon", "ticket"}
    paths = spec["paths"]
    assert "`write:orders`" in paths["/streams/orders"]["post"]["description"]
    assert {"beacon": []} in paths["/streams/orders"]["post"]["security"]
    assert "github" in paths["/streams/hooks"]["post"]["description"]
    assert "`read:topics`" in paths["/views/topics"]["get"]["description"]
    assert "`admin`" in paths["/views/topics/rebuild"]["post"]["description"]
    assert paths["/healthz"]["get"]["security"] == [{}]
    for path, operations in paths.items():
        for operation in operations.values():
            assert {"401", "403"} <= set(operation["responses"]) or path in OPEN
