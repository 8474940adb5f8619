"""What an address, a header or a message asks and nobody would read is refused; replies say who may keep them."""

import pytest
import pytest_asyncio
from secure_edge import HOOK_SECRET, secure_edge

from penstock.position import Position
from penstock.serve.replies import accepts


@pytest.fixture(autouse=True)
def hook_secret(monkeypatch):
    monkeypatch.setenv("HOOK_SECRET", HOOK_SECRET)


@pytest_asyncio.fixture
async def edge(tmp_path):
    async with secure_edge(tmp_path) as made:
        yield made


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/views/topics?were=rsvps>5", "'were' is not taken"),
        ("/views/topics?limit=1&limit=2", "'limit' is there twice"),
        ("/views/topics?wait=1_0", "not a time"),
        ("/views/topics?wait=nan", "not a time"),
        ("/views/topics?after=", "not a position"),
        ("/views/topics?at_least=", "not a position"),
        ("/views/topics?since=", "not a position"),
        ("/views/topics/events?since=x", "'since' is not taken"),
        ("/streams/rsvps?order_by=topic", "'order_by' is not taken"),
        ("/streams/rsvps?after=", "not a position"),
        ("/status?view=topics", "'view' is not taken"),
        ("/webhooks?limit=1", "'limit' is not taken"),
        ("/views/topics?%00%C3%A9=1", "'\\x00\\xe9' is not taken"),
    ],
)
async def test_what_nobody_reads_is_refused_with_what_is_taken(edge, path, said):
    answer = await edge.get(path)
    assert (answer.status, answer.code in ("bad_request", "bad_position")) == (400, True), answer.raw
    assert said in answer.body["error"]["message"]
    assert answer.body["error"]["hint"]


async def test_what_is_against_caches_is_let_through(edge):
    for path in ("/views/topics?_=1700000000", "/streams/rsvps?_nocache=1&_nocache=2", "/readyz?for=serve"):
        assert (await edge.get(path)).status == 200, path
    assert (await edge.ask("HEAD", "/views/topics?limit=1")).status == 200


async def test_a_post_with_a_misspelt_parameter_takes_nothing_and_is_counted(edge):
    body = b'{"topic": "a"}'
    answer = await edge.ask("POST", "/streams/rsvps?akc=applied", None, body, Content_Type="application/json")
    assert (answer.status, answer.code) == (400, "bad_request")
    assert (await edge.get("/streams/rsvps")).body["events"] == []
    refused = edge.observer.value("penstock_collect_requests_refused_total", stream="rsvps", reason="bad_request")
    assert refused == 1


async def test_rights_come_before_parameters(edge):
    key = await edge.key("read:topics")
    assert (await edge.get("/views/hidden?were=1", key)).status == 403
    assert (await edge.get("/views/topics?were=1")).status == 401
    assert (await edge.get("/views/topics?were=1", key)).status == 400


@pytest.mark.parametrize("also", ["key=jazz", "after={ack}", "at_least={position}"])
async def test_a_long_poll_takes_nothing_that_is_of_rows(edge, also):
    """They were left aside without a word: who asked for one row got all."""
    ack = (await edge.post("rsvps", None, b'{"topic": "a"}')).body["ack"]
    position = (await edge.get("/views/topics")).body["position"]
    answer = await edge.get(f"/views/topics?since={position}&wait=0&{also.format(ack=ack, position=position)}")
    assert (answer.status, answer.code) == (400, "bad_request")
    assert also.partition("=")[0] in answer.body["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"view": "topics", "were": "rsvps > 5"}, "'were' is not taken"),
        ({"stream": "rsvps", "limit": 5}, "'limit' is not taken"),
        ({"stream": "rsvps", "view": "topics"}, "one view, stream or channel"),
        ({"view": "topics", "since": ""}, "not a position"),
        ({"view": "topics", "wait": True}, "not a time"),
    ],
)
async def test_a_subscribe_message_is_read_as_strictly(edge, fields, said):
    async with edge.http.ws_connect(edge.url + "/socket") as socket:
        await socket.send_json({"type": "subscribe", "id": "s", **fields})
        answer = await socket.receive_json(timeout=60)
        assert answer["type"] == "error", answer
        assert said in answer["error"]["message"]
        await socket.send_json({"type": "subscribe", "id": "t", "view": "topics", "more": None, "_trace": "x"})
        assert (await socket.receive_json(timeout=60))["type"] == "snapshot"


async def test_the_receipt_of_ack_none_says_how_it_becomes_a_position(edge):
    answer = await edge.ask("POST", "/streams/rsvps?ack=none", None, b'{"topic": "a"}', Content_Type="application/json")
    refused = await edge.get(f"/views/topics?after={answer.body['ack']}")
    assert (refused.status, refused.code) == (400, "bad_position")
    assert "/acks/" in refused.body["error"]["hint"]
    logged = await edge.get(f"/acks/{answer.body['ack']}?wait=60")
    assert Position.parse(logged.body["ack"], "stream", "rsvps")


async def test_nothing_is_before_the_beginning(edge):
    ahead = Position("stream", "rsvps", "e", (-1,)).token()
    assert (await edge.get(f"/acks/{ahead}")).code == "bad_position"
    assert (await edge.get(f"/streams/rsvps?after={ahead}")).code == "bad_position"


# Accept


@pytest.mark.parametrize(
    ("header", "kind", "met"),
    [
        ("", "application/json", True),
        ("*/*", "text/event-stream", True),
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", "application/json", True),
        ("application/*", "application/json", True),
        ("text/event-stream;q=0.5, */*;q=0", "text/event-stream", True),
        ("text/event-stream", "application/json", False),
        ("application/json;q=0, */*", "application/json", False),
        ("*/*, application/json; q=0.000", "application/json", False),
        ("APPLICATION/JSON", "application/json", True),
        ("text/html", "text/event-stream", False),
    ],
)
def test_the_closest_range_of_accept_decides(header, kind, met):
    assert accepts(header, kind) is met


async def test_who_cannot_read_what_a_path_has_is_told_where_the_other_is(edge):
    answer = await edge.get("/views/topics", Accept="text/event-stream")
    assert (answer.status, answer.code) == (406, "not_acceptable")
    assert "/events" in answer.body["error"]["hint"]
    assert (await edge.get("/views/topics/events", Accept="application/json")).status == 406
    assert (await edge.get("/streams/rsvps", Accept="text/csv")).status == 406


# Caches


async def test_what_does_not_say_that_it_may_be_kept_is_kept_by_nobody(edge):
    """404, 405 and 410 may be kept by a shared cache that is told nothing, and so may a list."""
    gone = Position("view", "topics", "another", (3,)).token()
    paths = ["/views", "/status", "/streams/rsvps", "/nothing", "/views/nope", f"/views/topics?at_least={gone}&wait=0"]
    for path in paths:
        assert (await edge.get(path)).headers.get("Cache-Control") == "no-store", path
    assert (await edge.get("/views/topics")).headers["Cache-Control"] == "public, no-cache"
    key = await edge.key("read:*")
    mine = await edge.get("/views/topics", key)
    same = await edge.get("/views/topics", key, If_None_Match=f'W/"x", {mine.tag}')
    assert (same.status, same.raw, same.tag) == (304, b"", mine.tag)
    for name in ("Cache-Control", "Vary"):
        assert same.headers[name] == mine.headers[name]
