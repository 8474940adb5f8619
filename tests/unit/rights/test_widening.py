# ruff: noqa: B008, PERF401, RUF001
"""A claim filter cannot be widened: two worlds that differ only in what Ann may not see look the same to her."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import jwt
import pytest
import pytest_asyncio
from market import BOBS, CAROLS, EPOCH, SECRET, SECRETS, market, world
from secure_edge import SecureEdge
from widenings import ORDERS, PARAMS, SELECTS, WHERES

from penstock.position import Position
from penstock.serve import catalogue
from penstock.views import views as views_module
from penstock.views.changelog import shown_epoch
from penstock.views.read_rule import ReadRule

Seen = tuple[int, Any]
Attempt = Callable[[SecureEdge], Awaitable[Seen]]
_TOKENS = frozenset(
    {"position", "frontier", "next", "_position", "ack", "_received", "_id", "_time", "since", "ticket"}
)
"""Fields that say how far things have come, or when, which is nobody's secret."""
AT_ONCE = 16
QUIETS_S = (0.5, 1.0, 5.0, 10.0)
"""How long nothing must come to count as nothing, ever longer."""


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worlds(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[SecureEdge, SecureEdge]]:
    """Tests only look at them."""
    path = tmp_path_factory.mktemp("worlds")
    async with world(path / "one", BOBS) as one, world(path / "two", CAROLS) as two:
        yield one, two


@pytest_asyncio.fixture(loop_scope="module")
async def own_world(tmp_path: Path) -> AsyncIterator[SecureEdge]:
    async with world(tmp_path / "own", BOBS) as own:
        yield own


# How Ann looks


async def rest(edge: SecureEdge, path: str, key: str | None = None, **query: Any) -> Seen:
    texts = {n: v if isinstance(v, str) else json.dumps(v) for n, v in query.items()}
    answer = await edge.get(f"{path}?{urlencode(texts)}", key or edge.ann)  # type: ignore[attr-defined]
    return answer.status, plain(answer.body) if answer.raw else None


async def sse(edge: SecureEdge, path: str, **query: Any) -> Seen:
    """The first event that brings anything, or nothing."""
    texts = {n: v if isinstance(v, str) else json.dumps(v) for n, v in query.items()}
    shown = {"Authorization": f"Bearer {edge.ann}"}  # type: ignore[attr-defined]
    async with edge.http.get(f"{edge.url}{path}/events", params=texts, headers=shown) as reply:
        if reply.status != 200:
            return reply.status, plain(json.loads(await reply.read()))
        try:
            async with asyncio.timeout(QUIETS_S[0]):
                async for line in reply.content:
                    if line.startswith(b"data: "):
                        return 200, plain(json.loads(line[6:]))
        except TimeoutError:
            pass
        return 200, None


async def socket(edge: SecureEdge, path: str, messages: list[dict[str, Any]], quiet_s: float) -> list[Any]:
    """What comes to each of these subscriptions on one socket."""
    seen: dict[str, Any] = {}
    shown = {"Authorization": f"Bearer {edge.ann}"}  # type: ignore[attr-defined]
    async with edge.http.ws_connect(edge.url + path, headers=shown) as connection:
        for number, message in enumerate(messages):
            await connection.send_json({"type": "subscribe", "id": str(number)} | message)
        try:
            while len(seen) < len(messages):
                message = json.loads((await connection.receive(timeout=quiet_s if seen else 10.0)).data)
                seen.setdefault(message.pop("id"), plain(message))
        except TimeoutError:
            pass
    return [seen.get(str(number)) for number in range(len(messages))]


def plain(value: Any) -> Any:
    """Without positions and times."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items() if name not in _TOKENS}
    return [plain(item) for item in value] if isinstance(value, list) else value


def position(offset: int) -> str:
    application = market().declared()
    view = application.view("orders")
    assert view is not None
    return Position("view", "orders", shown_epoch(EPOCH, application, view), (offset,)).token()


# The table


def conditions() -> list[Attempt]:
    """Every text, by every way of asking once."""
    made: list[Attempt] = []
    for where in WHERES:
        made.append(lambda edge, w=where: rest(edge, "/views/orders", where=w))
        made.append(lambda edge, w=where: rest(edge, "/views/orders", where=w, since=position(0), wait="0"))
        made.append(lambda edge, w=where: rest(edge, "/views/orders", where=w, since=position(1), wait="0"))
        made.append(lambda edge, w=where: rest(edge, "/channels/large", where=w))
        made.append(lambda edge, w=where: rest(edge, "/streams/sales", where=w.replace("tags", "note")))
        made.append(lambda edge, w=where: rest(edge, "/channels/sold", where=w))
    for params in PARAMS:
        for where in (
            "user_id = :sub",
            "user_id <> :sub",
            "user_id = ANY(:sub)",
            "true",
            ":sub = 'bob'",
            "user_id LIKE :sub",
        ):
            made.append(lambda edge, w=where, p=params: rest(edge, "/views/orders", where=w, params=p))
            made.append(lambda edge, w=where, p=params: rest(edge, "/streams/sales", where=w, params=p))
    return made


def other_ways() -> list[Attempt]:
    """Orders, columns, keys, positions, names and parameters that are not there."""
    made: list[Attempt] = []
    for extra in (
        {"sub": "bob"},
        {"claim": "sub=bob"},
        {"visible_where": "true"},
        {"rule": "null"},
        {"claims": {"sub": "bob"}},
        {"scope": "admin"},
        {"masked": "false"},
        {"key": "psk_0"},
        {"ticket": "pst_0.e30.x"},
        {"limit": "null"},
        {"limit": "0"},
        {"limit": "999999"},
    ):
        made.append(lambda edge, q=extra: rest(edge, "/views/orders", **q))
    for order in ORDERS:
        made.append(lambda edge, o=order: rest(edge, "/views/orders", order_by=o, limit="2"))
    for select in SELECTS:
        made.append(lambda edge, s=select: rest(edge, "/views/orders", select=s))
    for key in (
        "9001",
        "9002",
        "9003",
        "9101",
        "9201",
        '{"order_id": 9001}',
        "9001 OR 1=1",
        "9001.0",
        " 9001",
        "9_001",
        "1e0",
        "null",
    ):
        made.append(lambda edge, k=key: rest(edge, "/views/orders", key=k))
        made.append(lambda edge, k=key: rest(edge, "/channels/large", key=k))
    for offset in (0, 1, 2, 3, 2**40):
        made.append(lambda edge, p=position(offset): rest(edge, "/views/orders", since=p, wait="0"))
        made.append(lambda edge, p=position(offset): rest(edge, "/views/orders", at_least=p, wait="0"))
    for path in (
        "/views/Orders",
        "/views/ORDERS",
        "/views/orders%00",
        "/views/orders%20",
        "/views/./orders",
        "/views//orders",
        "/views/orders;x",
        "/views/оrders",
        "/views/large",
        "/channels/orders",
        "/streams/orders",
        "/streams/large",
        "/channels/Large",
        "/streams/Sales",
        "/streams/sales/schema",
        "/views",
        "/streams",
        "/channels",
        "/status",
        "/graph",
        "/readyz",
        "/openapi.json",
        "/streams/dead",
        "/streams/late",
        "/views/orders/rebuild",
        "/dead",
        "/dead/0-0",
        "/views/teams",
        "/views/spent",
        "/webhooks",
    ):
        made.append(lambda edge, p=path: rest(edge, p))
    return made


def gone(seen: Seen) -> Seen:
    """Without what differs by itself: uptime, versions, freshness."""
    status, body = seen
    if isinstance(body, dict) and "uptime_s" in body:
        body = {n: v for n, v in body.items() if n in ("views", "streams", "flows")}
    return status, body


async def compared(one: SecureEdge, two: SecureEdge, attempts: list[Attempt]) -> list[Seen]:
    """What Ann sees by each attempt, which is her own and the same in both worlds."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def both(attempt: Attempt) -> Seen:
        async def shown(edge: SecureEdge, quiet_s: float) -> list[Seen]:
            return [gone(await attempt(edge))]

        async with turns:
            (seen,) = await alike(one, two, shown)
        return seen

    return await asyncio.gather(*map(both, attempts))


async def alike(
    one: SecureEdge, two: SecureEdge, look: Callable[[SecureEdge, float], Awaitable[list[Any]]]
) -> list[Any]:
    """Only where one world has nothing yet, which a busy machine explains, both are looked at again, for longer."""
    for quiet_s in QUIETS_S:
        first, second = await asyncio.gather(look(one, quiet_s), look(two, quiet_s))
        assert_own([first, second])
        different = [(a, b) for a, b in zip(first, second, strict=True) if a != b]
        assert all(is_absent(a) != is_absent(b) for a, b in different), different[:3]
        if not different:
            break
        await asyncio.sleep(quiet_s)
    assert not different, different[:3]
    return first


def is_absent(seen: Any) -> bool:
    """No message on a subscription, no event in time, or the 204 of a poll."""
    return seen in (None, (200, None), (204, None))


def assert_own(seen: Any) -> None:
    said = json.dumps(seen, ensure_ascii=False)
    assert not [secret for secret in SECRETS if secret in said], said[:2_000]


def rows(seen: Any) -> list[Any]:
    found = [v for _, body in seen if isinstance(body, dict) for v in body.get("rows", ()) or () if isinstance(v, dict)]
    return [row for row in found if row.get("user_id")]


# The test of the issue


async def test_no_condition_on_any_transport_shows_more_than_the_claim_does(worlds):
    attempts = conditions()
    assert len(WHERES) >= 170
    assert len(attempts) > 1_000
    seen = await compared(*worlds, attempts)
    assert {row["user_id"] for row in rows(seen)} == {"ann"}
    statuses = {status for status, _ in seen}
    assert statuses <= {200, 204, 400, 403}, statuses
    assert sum(status == 200 for status, _ in seen) > 300, "the attempts are mostly errors: they try nothing"


async def test_no_other_way_of_asking_does(worlds):
    attempts = other_ways()
    assert len(attempts) > 90
    seen = await compared(*worlds, attempts)
    assert {row["user_id"] for row in rows(seen)} == {"ann"}
    assert {status for status, _ in seen} <= {200, 204, 400, 401, 403, 404, 405, 503, 504}


async def test_no_condition_on_a_subscription_does(worlds):
    some = WHERES[::3]
    streams = [{"stream": "sales", "where": w.replace("tags", "note")} for w in some]
    views = [{"view": "orders", "where": where} for where in WHERES]
    resumed = [{"view": "orders", "where": where, "since": position(1)} for where in WHERES]
    channels = [{"channel": name, "where": w} for w in some for name in ("large", "sold")]
    tricks = [
        {"view": "orders", "rule": None},
        {"view": "orders", "claims": {"sub": "bob"}},
        {"view": "orders", "sub": "bob", "params": {"sub": "bob"}},
        {"view": ["orders"]},
        {"view": {"name": "orders"}},
        {"stream": "orders"},
        {"view": "orders", "channel": "large", "stream": "sales"},
        {"view": "Orders"},
        {"view": "orders", "select": ["order_id", "note"], "order_by": ["note"], "limit": None},
    ]
    for path in ("/socket", "/views/orders/socket", "/streams/sales/socket", "/channels/large/socket"):
        for messages in (views, resumed, streams, channels, tricks)[: 5 if path == "/socket" else 1]:
            seen = await alike(*worlds, lambda edge, quiet_s: socket(edge, path, messages, quiet_s))  # noqa: B023
            assert any(message and message["type"] != "error" for message in seen)


async def test_no_condition_on_events_does(worlds):
    some = WHERES[::4]
    attempts: list[Attempt] = [lambda edge, w=w: sse(edge, "/views/orders", where=w) for w in some]
    attempts += [lambda edge, w=w: sse(edge, "/views/orders", where=w, last_event_id=position(1)) for w in some[::3]]
    attempts += [lambda edge, w=w: sse(edge, "/channels/large", where=w) for w in some[::3]]
    attempts += [lambda edge, w=w: sse(edge, "/streams/sales", where=w.replace("tags", "note")) for w in some[::2]]
    seen = await compared(*worlds, attempts)
    assert any(body and body.get("rows") for _, body in seen)


@pytest.mark.parametrize("broken", ["dropped", "by the client"])
async def test_the_attempts_would_find_a_rule_that_does_not_hold(worlds, monkeypatch, broken):
    """A test that cannot fail is worth nothing: without the rule the same table finds the secrets."""

    def nothing(*_: Any, **__: Any) -> ReadRule:
        return ReadRule()

    if broken == "dropped":
        monkeypatch.setattr(catalogue, "read_rule", nothing)
    else:
        monkeypatch.setattr("penstock.views.read_query._all_of", lambda tests: tests[-1] if tests else lambda row: True)
    with pytest.raises(AssertionError):
        await compared(*worlds, conditions()[:12])


# Credentials that were never given


def _token(claims: dict[str, Any], **how: Any) -> str:
    return jwt.encode(claims, **({"key": SECRET, "algorithm": "HS256"} | how))


async def test_no_token_that_was_not_issued_opens_anything(worlds):
    edge, _ = worlds
    good = {"sub": "ann", "scope": "read:*"}
    head, body, mac = _token(good).split(".")
    bobs = _token(good | {"sub": "bob"}).split(".")[1]
    forged = [
        _token(good | {"sub": "bob"}, key="", algorithm="none"),
        f"{_token(good, key='', algorithm='none').split('.')[0]}.{bobs}.",
        f"{head}.{bobs}.{mac}",
        f"{head}.{bobs}.",
        f"{head}.{bobs}",
        f"{head}.{body}.{mac}x",
        _token(good | {"sub": "bob"}, key="another secret of at least 32 bytes!"),
        _token(good | {"sub": "bob"}, algorithm="HS512", key=SECRET * 2),
        _token(good | {"sub": "bob"}, headers={"jku": "https://evil.example/keys", "kid": "x"}, key="k" * 32),
        "psk_00000000_" + "0" * 64,
        edge.ann[:-1] + ("0" if edge.ann[-1] != "0" else "1"),
        edge.ann.upper(),
        f" {edge.ann} x",
    ]
    for token in forged:
        answer = await edge.get("/views/orders", token)
        assert answer.status == 401, token
        assert_own(answer.raw.decode())


@pytest.mark.parametrize(
    "path",
    [
        "/views/orders",
        "/views/orders/events",
        "/streams/sales",
        "/streams/sales/events",
        "/channels/large",
        "/views/teams",
    ],
)
async def test_a_token_without_the_claim_sees_nothing_and_is_told_which(worlds, path):
    edge, _ = worlds
    answer = await edge.get(path, _token({"scope": "read:*"}))
    assert (answer.status, answer.code) == (403, "forbidden"), answer.raw
    assert f"'{'teams' if 'teams' in path else 'sub'}'" in answer.body["error"]["message"]
    assert_own(answer.raw.decode())


@pytest.mark.parametrize("claim", [{"$ne": "a"}, {}, ["a", {"x": 1}], [["b"]], [None], "a", 7, True])
async def test_a_claim_of_another_shape_than_the_condition_needs_sees_nothing(worlds, claim):
    edge, _ = worlds
    answer = await edge.get("/views/teams", _token({"scope": "read:*", "teams": claim}))
    assert answer.status == 403, answer.raw


@pytest.mark.parametrize(("claim", "shown"), [(["a"], ["a"]), (["c", "a"], ["a", "c"]), ([], []), (["x", "%"], [])])
async def test_a_list_claim_shows_the_rows_of_its_items(worlds, claim, shown):
    edge, _ = worlds
    answer = await edge.get("/views/teams", _token({"scope": "read:*", "teams": claim}))
    assert [row["team"] for row in answer.body["rows"]] == shown
    if len(claim) > 1:
        by_key = await edge.get("/views/teams", await edge.key("read:teams", teams=claim))
        assert by_key.body["rows"] == answer.body["rows"]


@pytest.mark.parametrize("sub", ["", "%", "' OR true --", "ann' OR '1'='1", "ANN", "ann ", "ann\u0000", "а" + "nn"])
async def test_a_claim_is_a_value_and_nothing_else(worlds, sub):
    edge, _ = worlds
    for path, name in (("/views/orders", "rows"), ("/streams/sales", "events")):
        answer = await edge.get(path, _token({"sub": sub, "scope": "read:*"}))
        assert answer.status == 403 or answer.body[name] == [], answer.raw


async def test_the_row_that_a_post_led_to_is_shown_to_whom_it_belongs(own_world):
    edge = own_world
    key = await edge.key("write:returns", "read:spent", sub="ann")
    stream = edge.log.find("returns")
    for user, row in (("bob", None), ("ann", {"user_id": "ann", "total": 555})):
        body = json.dumps({"order_id": 1, "user_id": user}).encode()
        asking = asyncio.create_task(edge.post("returns?reply=spent&wait=60", key, body))
        while (ends := edge.log.bounds(stream).ends)[0] < (1 if user == "bob" else 2):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        edge.flows.commit(edge.spent, end={"returns": [stream.epoch, list(ends)]})
        answer = await asking
        assert (answer.status, answer.body["row"]) == (200, row)
    nobody = await edge.key("write:returns", "read:spent")
    answer = await edge.post("returns?reply=spent", nobody, b'{"order_id": 1, "user_id": "bob"}')
    assert (answer.status, answer.code) == (403, "forbidden")
    assert edge.log.bounds(stream).ends == (2,), "nothing is taken of a request that is refused"


async def test_a_row_that_becomes_hidden_is_deleted_once_and_only_from_those_who_saw_it(own_world):
    edge = own_world
    shown = {"Authorization": f"Bearer {edge.ann}"}
    async with edge.http.ws_connect(f"{edge.url}/views/orders/socket", headers=shown) as ann:
        await ann.send_json({"type": "subscribe", "id": "a"})
        assert len((await ann.receive_json(timeout=60))["rows"]) == 3
        given = {"order_id": 3, "user_id": "bob", "amount": 500, "note": "hers no more", "tags": []}
        edge.flows.commit(edge.orders, [given])
        edge.flows.commit(edge.orders, [given | {"amount": 501}])
        edge.flows.commit(edge.orders, deletes=[given | {"amount": 501}, BOBS[0]])
        edge.flows.commit(edge.orders, [given | {"user_id": "ann", "note": "hers again"}])
        taken, back = await ann.receive_json(timeout=60), await ann.receive_json(timeout=60)
    assert (taken["upserts"], taken["deletes"]) == ([], [{"order_id": 3}])
    assert ([row["note"] for row in back["upserts"]], back["deletes"]) == (["hers again"], [])
    resumed = await edge.get(f"/views/orders?since={taken['position']}&wait=0", edge.ann)
    assert [(m["upserts"][0]["note"], m["deletes"]) for m in resumed.body["messages"]] == [("hers again", [])]


async def test_an_etag_of_one_reader_is_not_that_of_another(own_world):
    edge = own_world
    bob = await edge.key("read:orders", sub="bob")
    limited = await edge.key("read:orders(order_id,user_id)", sub="ann")
    tags = {}
    for key in (edge.ann, bob, limited, edge.admin):
        tags[key] = (await edge.get("/views/orders", key)).tag
    assert len(set(tags.values())) == 4
    assert (await edge.get("/views/orders", edge.ann, If_None_Match=tags[bob])).status == 200
    assert (await edge.get("/views/orders", edge.ann, If_None_Match=tags[edge.ann])).status == 304
    assert "private" in (await edge.get("/views/orders", edge.ann)).headers["Cache-Control"]


async def test_reply_and_reads_share_one_rule():
    assert views_module.read_rule is catalogue.read_rule
