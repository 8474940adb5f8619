"""Tables of a whole edge without Spark: rows set, changed, deleted, read and subscribed to."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from penstock import App, Event, Struct, signed
from penstock.client import AsyncClient
from penstock.collect.limits.stream_guard import StreamGuard
from penstock.collect.tables.row_changes import RowChanges
from penstock.collect.tables.table_writer import TableWriter
from penstock.errors import ConditionError, EventsRejectedError, SchemaChangeError, UnknownRowError
from penstock.run.reading_edge import open_reading_edge
from tests.table_edge import edge


class Home(Struct):
    city: str
    street: str | None = None


class User(Event):
    """Who buys."""

    id: int
    country: str
    age: int | None = None
    home: Home | None = None
    tags: list[str] = []


class Price(Event):
    product: str
    day: date
    amount: Decimal


def shop() -> App:
    app = App("shop")
    app.table("users", User, key="id")
    app.table("prices", Price, key=["product", "day"], unknown="reject")
    return app


ANN = {"id": 1, "country": "no", "age": 40, "home": None, "tags": []}


async def test_a_row_that_was_put_is_read_changed_and_deleted(tmp_path: Path) -> None:
    async with edge(tmp_path, shop()) as there:
        status, body, tag = await there.put("/tables/users/1", {"country": "no", "age": 40})
        assert (status, body["accepted"], body["duplicates"], body["rejected"]) == (200, 1, 0, [])
        assert body["level"] == "logged"
        assert await there.ask("GET", "/tables/users/1") == (200, ANN, tag)
        assert await there.rows() == [ANN]
        assert await there.rows(query=f"?after={body['ack']}") == [ANN]
        status, body, patched = await there.ask("PATCH", "/tables/users/1", {"age": None, "home": {"city": "Oslo"}})
        assert (status, body["accepted"]) == (200, 1)
        changed = ANN | {"age": None, "home": {"city": "Oslo", "street": None}}
        assert await there.ask("GET", "/tables/users/1") == (200, changed, patched)
        status, _, _ = await there.ask("PATCH", "/tables/users/1", {"home": {"street": "Storgata"}})
        assert (await there.rows())[0]["home"] == {"city": "Oslo", "street": "Storgata"}
        assert (await there.ask("DELETE", "/tables/users/1"))[1]["accepted"] == 1
        assert (await there.ask("DELETE", "/tables/users/1"))[1]["accepted"] == 0
        assert (await there.ask("GET", "/tables/users/1"))[0] == 404
        assert (await there.ask("PATCH", "/tables/users/1", {"age": 3}))[1]["error"]["code"] == "unknown_row"
        assert await there.rows() == []


async def test_the_same_row_again_writes_nothing(tmp_path: Path) -> None:
    async with edge(tmp_path, shop()) as there:
        _, first, tag = await there.put("/tables/users/1", ANN)
        status, again, same = await there.put("/tables/users/1", ANN)
        assert (status, again["accepted"], again["duplicates"]) == (200, 0, 1)
        assert (again["ack"], same) == (first["ack"], tag)


async def test_who_was_refused_is_not_written_when_the_commit_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer came between: what was refused would now hold, but its sender was told otherwise."""
    write, commit, seen = TableWriter.write, TableWriter._commit, list[Any]()

    def noticed(self: TableWriter, edit: Any, sender: Any, *more: Any) -> Any:
        seen[:] = [self, sender]
        return write(self, edit, sender, *more)

    monkeypatch.setattr(TableWriter, "write", noticed)
    async with edge(tmp_path, shop()) as there:
        await there.put("/tables/users/1", ANN)
        writer, sender = seen
        tries = 0

        async def failing_once(self: TableWriter, *given: Any) -> Any:
            nonlocal tries
            tries += 1
            if tries == 1:
                raise ConditionError("somebody else has written")
            return await commit(self, *given)

        def rows(number: int) -> RowChanges:
            return writer.judge.many(json.dumps([ANN | {"id": number}]).encode(), "json")

        def refused(_: object) -> RowChanges:
            if tries == 0:
                raise UnknownRowError("it is not there")
            return rows(3)

        monkeypatch.setattr(TableWriter, "_commit", failing_once)
        asked = (write(writer, lambda _: rows(2), sender), write(writer, refused, sender))
        taken, told = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(told, UnknownRowError)
        assert not isinstance(taken, BaseException)
        assert tries == 2
        assert [row["id"] for row in await there.rows()] == [1, 2]


async def test_keys_of_several_columns_are_segments_of_the_path(tmp_path: Path) -> None:
    async with edge(tmp_path, shop()) as there:
        path = "/tables/prices/a%2Fb%20c/2024-05-01"
        assert (await there.put(path, {"amount": "1.50"}))[0] == 200
        status, row, _ = await there.ask("GET", path)
        assert (status, row["product"], row["day"], float(row["amount"])) == (200, "a/b c", "2024-05-01", 1.5)
        for wrong in ("/tables/prices/a", "/tables/prices/a/b", "/tables/prices/a/2024-05-01/x", "/tables/users/one"):
            status, body, _ = await there.put(wrong, {"amount": "1"})
            assert (status, body["error"]["code"]) == (400, "bad_request"), wrong
        status, body, _ = await there.put("/tables/users/1", ANN | {"id": 2})
        assert (status, body["error"]["code"]) == (400, "bad_request")
        assert (await there.put("/tables/nothing/1", ANN))[1]["error"]["code"] == "unknown_table"


async def test_a_row_that_does_not_fit_is_a_dead_letter(tmp_path: Path) -> None:
    async with edge(tmp_path, shop()) as there:
        status, body, tag = await there.put("/tables/users/1", {"country": 3})
        assert (status, body["accepted"], body["rejected"][0]["reason"], tag) == (422, 0, "wrong_type", None)
        status, body, _ = await there.put("/tables/prices/a/2024-05-01", {"amount": "1", "more": 1})
        assert (status, body["rejected"][0]["reason"]) == (422, "unknown_field")
        assert (await there.put("/tables/users/1", b"[]"))[0] == 422
        assert (await there.put("/tables/users/1", b"{"))[0] == 422
        _, letters, _ = await there.ask("GET", "/dead")
        assert [letter["stream"] for letter in letters["letters"]] == ["users", "prices", "users", "users"]
        assert await there.rows() == []


async def test_many_rows_are_one_commit_in_their_order(tmp_path: Path) -> None:
    async with edge(tmp_path, shop()) as there:
        await there.put("/tables/users/9", {"country": "se"})
        before = (await there.ask("GET", "/views/users"))[1]["position"]
        rows = [
            ANN,
            {"op": "delete", "key": {"id": 9}},
            {"id": 2},
            {"id": 3, "country": "fi"},
            {"op": "delete", "key": {"id": "x"}},
            {"id": 3, "country": "dk"},
            {"op": "delete", "key": {"id": 1}},
            {"op": "drop", "key": {"id": 3}},
        ]
        status, body, _ = await there.ask("POST", "/tables/users", rows)
        assert (status, body["accepted"]) == (200, 5)
        assert [rejected["index"] for rejected in body["rejected"]] == [2, 4, 7]
        assert [(row["id"], row["country"]) for row in await there.rows()] == [(3, "dk")]
        _, polled, _ = await there.ask("GET", f"/views/users?since={before}")
        assert len(polled["messages"]) == 1, "nobody sees half of it"
        assert polled["messages"][0]["deletes"] == [{"id": 9}]
        lines = b'{"id": 4, "country": "no"}\n{"op": "delete", "key": {"id": 3}}\n'
        status, body, _ = await there.ask("POST", "/tables/users", lines, Content_Type="application/x-ndjson")
        assert (status, body["accepted"]) == (200, 2)
        assert [row["id"] for row in await there.rows()] == [4]
        status, body, _ = await there.ask("POST", "/tables/users", b"[{]")
        assert (status, body["error"]["code"]) == (400, "bad_body")


async def test_of_two_writers_with_one_etag_one_wins(tmp_path: Path) -> None:
    async with edge(tmp_path, shop()) as there:
        _, _, tag = await there.put("/tables/users/1", ANN)
        for number in range(20):
            tries = [there.put("/tables/users/1", ANN | {"age": 2 * number + n}, If_Match=tag or "") for n in range(2)]
            replies = await asyncio.gather(*tries)
            assert sorted(reply[0] for reply in replies) == [200, 412], number
            assert next(r for r in replies if r[0] == 412)[1]["error"]["code"] == "condition_failed"
            tag = next(r for r in replies if r[0] == 200)[2]


async def test_conditions_name_the_row_as_it_is(tmp_path: Path) -> None:
    async with edge(tmp_path, shop()) as there:
        assert (await there.put("/tables/users/1", ANN, If_Match="*"))[0] == 412
        statuses = [
            reply[0]
            for reply in await asyncio.gather(
                *(there.put("/tables/users/1", ANN | {"age": n}, If_None_Match="*") for n in range(5))
            )
        ]
        assert sorted(statuses) == [200, 412, 412, 412, 412]
        _, _, tag = await there.ask("GET", "/tables/users/1")
        assert (await there.ask("GET", "/tables/users/1", None, If_None_Match=tag or ""))[0] == 304
        assert (await there.ask("PATCH", "/tables/users/1", {"age": 9}, If_Match='"another"'))[0] == 412
        assert (await there.ask("DELETE", "/tables/users/1", None, If_Match=f"W/{tag}"))[0] == 412
        assert (await there.ask("DELETE", "/tables/users/1", None, If_Match=f'"x", {tag}'))[0] == 200


async def test_patches_of_many_at_once_are_all_in_the_row(tmp_path: Path) -> None:
    class Count(Event):
        name: str
        numbers: dict[str, int] = {}

    app = App("shop")
    app.table("counts", Count, key="name")
    async with edge(tmp_path, app) as there:
        await there.put("/tables/counts/a", {})
        patches = [there.ask("PATCH", "/tables/counts/a", {"numbers": {str(n): n}}) for n in range(50)]
        assert {reply[0] for reply in await asyncio.gather(*patches)} == {200}
        assert (await there.rows("counts"))[0]["numbers"] == {str(n): n for n in range(50)}


async def test_rows_outlive_the_edge_and_subscribers_resume(tmp_path: Path) -> None:
    async with edge(tmp_path, shop()) as there:
        _, _, tag = await there.put("/tables/users/1", ANN)
        await there.put("/tables/users/2", {"country": "se"})
        position = (await there.ask("GET", "/views/users"))[1]["position"]
        await there.ask("DELETE", "/tables/users/2")
    async with edge(tmp_path, shop()) as there:
        assert await there.rows() == [ANN]
        assert (await there.ask("GET", "/tables/users/1"))[2] == tag
        _, polled, _ = await there.ask("GET", f"/views/users?since={position}")
        assert [(m["upserts"], m["deletes"]) for m in polled["messages"]] == [([], [{"id": 2}])]


async def test_subscribers_get_each_change(tmp_path: Path) -> None:
    async with edge(tmp_path, shop()) as there, there.http.ws_connect("/views/users/socket") as socket:
        await socket.send_json({"type": "subscribe", "where": "country = 'no'"})
        assert (await socket.receive_json())["rows"] == []
        await there.put("/tables/users/1", ANN)
        assert (await socket.receive_json())["upserts"] == [ANN]
        await there.put("/tables/users/1", ANN | {"country": "se"})
        assert (await socket.receive_json())["deletes"] == [{"id": 1}]


async def test_a_reading_edge_shows_tables_and_writes_none(tmp_path: Path) -> None:
    async with edge(tmp_path, shop()) as there:
        _, body, tag = await there.put("/tables/users/1", ANN)
        async with edge(tmp_path, shop(), opening=open_reading_edge) as reading:
            assert await reading.rows(query=f"?after={body['ack']}") == [ANN]
            assert await reading.ask("GET", "/tables/users/1") == (200, ANN, tag)
            assert (await reading.put("/tables/users/1", ANN))[1]["error"]["code"] == "read_only_edge"
            _, body, _ = await there.put("/tables/users/2", {"country": "se"})
            assert len(await reading.rows(query=f"?after={body['ack']}")) == 2


async def test_the_app_says_what_its_tables_are(tmp_path: Path) -> None:
    async with edge(tmp_path, shop()) as there:
        await there.put("/tables/users/1", ANN)
        _, body, _ = await there.ask("GET", "/views")
        users = next(view for view in body["views"] if view["view"] == "users")
        assert (users["kind"], users["key"], users["rows"], users["doc"]) == ("table", ["id"], 1, "Who buys.")
        assert users["flow"] == {"state": "running", "error": None}
        _, graph, _ = await there.ask("GET", "/graph")
        assert {(node["name"], node["kind"]) for node in graph["nodes"]} == {("users", "table"), ("prices", "table")}
        _, ready, _ = await there.ask("GET", "/readyz")
        assert ready["ready"]
        _, document, _ = await there.ask("GET", "/openapi.json")
        assert {"get", "put", "patch", "delete"} <= document["paths"]["/tables/users/{key}"].keys()
        _, applied, _ = await there.put("/tables/users/2?ack=applied", {"country": "se"})
        assert applied["level"] == "applied"
        assert (await there.ask("GET", f"/acks/{applied['ack']}"))[1]["level"] == "applied"


async def test_a_rate_counts_rows(tmp_path: Path) -> None:
    app = App("shop")
    app.table("users", User, key="id", rate="1/h", burst=2)
    async with edge(tmp_path, app) as there:
        assert (await there.put("/tables/users/1", ANN))[0] == 200
        status, body, _ = await there.ask("POST", "/tables/users", [ANN, ANN])
        assert (status, body["error"]["code"]) == (429, "too_many")
        assert (await there.ask("DELETE", "/tables/users/1"))[0] == 200


async def test_above_the_budget_a_table_is_written_and_not_read(tmp_path: Path) -> None:
    async with edge(tmp_path, shop(), view_bytes=2_000) as there:
        for n in range(30):
            assert (await there.put(f"/tables/users/{n}", {"country": "no"}))[0] == 200
        assert (await there.ask("GET", "/tables/users/1"))[0] == 507
        assert (await there.ask("GET", "/views/users"))[0] == 507
        assert (await there.ask("PATCH", "/tables/users/1", {"age": 1}))[0] == 507
        assert (await there.put("/tables/users/1", {"country": "no"}, If_Match="*"))[0] == 507
        assert (await there.put("/tables/users/1", {"country": "se"}))[0] == 200
    async with edge(tmp_path, shop()) as there:
        assert len(await there.rows()) == 30
        assert (await there.ask("GET", "/tables/users/1"))[1]["country"] == "se"


async def test_a_class_may_grow_and_a_key_may_not_change(tmp_path: Path) -> None:
    class Larger(Event):
        id: int
        country: str
        age: int | None = None
        home: Home | None = None
        tags: list[str] = []
        name: str = "nobody"

    async with edge(tmp_path, shop()) as there:
        await there.put("/tables/users/1", ANN)
    larger, other = App("shop"), App("shop")
    larger.table("users", Larger, key="id")
    async with edge(tmp_path, larger) as there:
        assert await there.rows() == [ANN | {"name": "nobody"}]
        await there.ask("PATCH", "/tables/users/1", {"name": "Ann"})
        assert await there.rows() == [ANN | {"name": "Ann"}]
    other.table("users", Larger, key="country")
    with pytest.raises(SchemaChangeError, match="no longer fits"):
        async with edge(tmp_path, other):
            pass


# What a table has of a stream


def signed_body(secret: str, body: bytes) -> dict[str, str]:
    return {"X-Hub-Signature-256": "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()}


async def test_an_idempotency_key_makes_a_change_happen_once(tmp_path: Path) -> None:
    async with edge(tmp_path, shop()) as there:
        first = await there.put("/tables/users/1", {"country": "no"}, Idempotency_Key="a")
        await there.put("/tables/users/1", {"country": "se"})
        again = await there.put("/tables/users/1", {"country": "no"}, Idempotency_Key="a")
        assert again[:2] == first[:2]
        assert (await there.rows())[0]["country"] == "se"  # the repetition changed nothing
        other = await there.put("/tables/users/2", {"country": "no"}, Idempotency_Key="a")
        assert (other[0], other[1]["error"]["code"]) == (422, "idempotency_key_reused")
        nothing = await there.ask("DELETE", "/tables/users/9", Idempotency_Key="b")
        assert (nothing[0], nothing[1]["accepted"], nothing[1]["duplicates"]) == (200, 0, 1)
        assert (await there.ask("DELETE", "/tables/users/9", Idempotency_Key="b"))[1] == nothing[1]
        bad = await there.ask("POST", "/tables/users", [{"id": "x"}], Idempotency_Key="c")
        assert (await there.ask("POST", "/tables/users", [{"id": "x"}], Idempotency_Key="c"))[:2] == bad[:2]
        assert len((await there.ask("GET", "/dead?stream=users"))[1]["letters"]) == 1
        missed = await there.put("/tables/users/1", {"country": "no"}, Idempotency_Key="d", If_Match='"x"')
        assert missed[0] == 412
    async with edge(tmp_path, shop()) as there:
        again = await there.put("/tables/users/1", {"country": "no"}, Idempotency_Key="a")
        assert again[:2] == first[:2]
        assert (await there.rows())[0]["country"] == "se"


async def test_a_signed_table_takes_a_signed_post_of_rows_and_nothing_else_without_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK_SECRET", "hush")
    app = App("shop")
    app.table("users", User, key="id", signed=signed.github(secret_env="HOOK_SECRET"))
    body = b'{"id": 1, "country": "no"}'
    async with edge(tmp_path, app) as there:
        assert (await there.ask("POST", "/tables/users", body))[0] == 401
        assert (await there.ask("POST", "/tables/users", body, **signed_body("other", body)))[0] == 401
        assert (await there.put("/tables/users/1", body, **signed_body("hush", body)))[0] == 401
        assert await there.rows() == []
        assert (await there.ask("POST", "/tables/users", body, **signed_body("hush", body)))[0] == 200
        assert len(await there.rows()) == 1


async def test_a_table_that_sheds_drops_changes_and_says_how_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App("shop")
    app.table("users", User, key="id", overload="shed", shed="priority:age")
    async with edge(tmp_path, app) as there:
        first, second = ([{"id": n, "country": "no", "age": n % 10} for n in range(s, s + 9)] for s in (0, 10))
        assert "shed" not in (await there.ask("POST", "/tables/users", first))[1]
        monkeypatch.setattr(StreamGuard, "over", True)
        _, body, _ = await there.ask("POST", "/tables/users", second)
        assert (body["accepted"] + body["shed"], body["shed"] > 0) == (9, True)
        kept = [row["age"] for row in await there.rows() if row["id"] >= 10]
        assert kept == list(range(9 - len(kept), 9))  # the largest


async def test_letters_of_a_table_are_replayed_once_when_they_are_mended(tmp_path: Path) -> None:
    async with edge(tmp_path, shop()) as there:
        await there.put("/tables/users/1", {"country": 5})
        await there.ask("POST", "/tables/users", [{"id": 2}, {"op": "delete", "key": {"id": "x"}}])
        _, listed, _ = await there.ask("GET", "/dead?stream=users")
        one, two, three = (each["letter"] for each in listed["letters"])
        order = [
            {"letter": one},
            {"letter": two, "events": [{"id": 2, "country": "se"}, {"id": 3, "country": "dk"}]},
            {"letter": three, "events": [{"op": "delete", "key": {"id": 3}}]},
        ]
        _, dry, _ = await there.ask("POST", "/dead/replay", {"letters": order, "dry_run": True})
        assert [each["result"] for each in dry["letters"]] == ["rejected", "acceptable", "acceptable"]
        assert await there.rows() == []
        for expected in (["rejected", "replayed", "replayed"], ["rejected", "already_replayed", "already_replayed"]):
            _, done, _ = await there.ask("POST", "/dead/replay", {"letters": order})
            assert [each["result"] for each in done["letters"]] == expected
        assert [(row["id"], row["country"]) for row in await there.rows()] == [(2, "se")]
        mended = {"letter": one, "events": [{"id": 1, "country": "no"}]}
        assert (await there.ask("POST", "/dead/replay", {"letters": [mended]}))[1]["accepted"] == 1


async def test_the_python_client_sets_changes_reads_and_deletes_rows(tmp_path: Path) -> None:
    async with edge(tmp_path, shop()) as there, AsyncClient(str(there.http._base_url).rstrip("/")) as client:
        ack = await client.put_row("users", 1, {"country": "no", "age": 40})
        assert await client.get_row("users", 1, after=ack) == ANN
        ack = await client.patch_row("users", (1,), {"age": None})
        assert (await client.get("users", after=ack))[0]["age"] is None
        ack = await client.put_row("prices", ("a/b", date(2024, 5, 1)), {"amount": Decimal("2.5")})
        (price,) = await client.get("prices", after=ack)
        assert (price["product"], price["day"]) == ("a/b", "2024-05-01")
        ack = await client.delete_row("prices", {"product": "a/b", "day": date(2024, 5, 1)})
        assert not await client.get("prices", after=ack)
        with pytest.raises(UnknownRowError):
            await client.patch_row("users", 9, {"age": 1})
        with pytest.raises(EventsRejectedError):
            await client.put_row("users", 9, {"country": 5})
