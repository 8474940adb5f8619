"""Tables that are filled from files and from a database: read whole again, and only what differs is a change."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import App, Event
from penstock.collect.pulling import table_pull
from penstock.collect.pulling.sources import table_file
from penstock.errors import DeclarationError
from penstock.position import Position
from tests import postgres_server
from tests.table_edge import Edge, edge


class User(Event):
    id: int
    name: str
    country: str = "no"
    height: float | None = None


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_file, "SETTLED_S", 0.01)
    monkeypatch.setattr(table_pull, "SOON_S", 0.02)


@asynccontextmanager
async def pulled(tmp_path: Path, source: Path | str, **options: Any) -> AsyncIterator[Edge]:
    app = App("shop")
    users = app.table("users", User, key="id")
    app.pull(users, source if isinstance(source, str) else f"file://{source}", every="20 ms", **options)
    async with edge(tmp_path, app) as there:
        yield there


async def until(holds: Callable[[], Awaitable[Any]], within_s: float = 60.0) -> Any:
    """What it gives, once it holds."""
    async with asyncio.timeout(within_s):
        while not (value := await holds()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return value


async def status(there: Edge) -> dict[str, Any]:
    _, body, _ = await there.ask("GET", "/status")
    return body["pulls"][0]


async def names(there: Edge) -> dict[int, str]:
    return {row["id"]: row["name"] for row in await there.rows()}


async def becomes(there: Edge, expected: dict[int, str]) -> None:
    async def same() -> bool:
        return await names(there) == expected

    try:
        await until(same, 20)
    except TimeoutError:
        pytest.fail(f"{await names(there)}, not {expected}: {await status(there)}")


async def fails(there: Edge, words: str) -> dict[str, Any]:
    async def told() -> dict[str, Any] | None:
        pull = await status(there)
        return pull if words in (pull["error"] or "") else None

    try:
        return await until(told, 20)
    except TimeoutError:
        pytest.fail(f"no error with '{words}': {await status(there)}")


async def read_again(there: Edge) -> None:
    """Return when the source was read after now."""

    async def read(after: str) -> str | None:
        position = (await status(there))["position"]
        return position["read"] if position and position["read"] > after else None

    before = await until(lambda: read(""))
    await until(lambda: read(before))


async def commits(there: Edge) -> int:
    """How many the table has had."""
    token = (await there.ask("GET", "/views/users"))[1]["position"]
    return Position.parse(token, "view", "users").offsets[0]


def put(path: Path, text: str | bytes) -> None:
    """As a careful writer does: all at once."""
    aside = path.with_name(f".{path.name}")
    aside.write_bytes(text if isinstance(text, bytes) else text.encode())
    os.replace(aside, path)


def lines(path: Path, rows: dict[int, str]) -> None:
    put(path, "".join(json.dumps({"id": id, "name": name}) + "\n" for id, name in rows.items()))


def array(path: Path, rows: dict[int, str]) -> None:
    put(path, json.dumps([{"id": id, "name": name} for id, name in rows.items()]))


def csv(path: Path, rows: dict[int, str]) -> None:
    put(path, "id,name\n" + "".join(f"{id},{name}\n" for id, name in rows.items()))


def parquet(path: Path, rows: dict[int, str]) -> None:
    names = pa.array(list(rows.values()), pa.string()).dictionary_encode()
    pq.write_table(pa.table({"id": pa.array(list(rows), pa.int32()), "name": names}), path.with_suffix(".new"))
    os.replace(path.with_suffix(".new"), path)


FORMS = {"ndjson": lines, "json": array, "csv": csv, "parquet": parquet}


@pytest.mark.parametrize("form", FORMS)
async def test_a_file_is_read_whole_again_and_its_differences_become_changes(tmp_path: Path, form: str) -> None:
    path, write = tmp_path / f"users.{form}", FORMS[form]
    write(path, {1: "Ann", 2: "Bo"})
    async with pulled(tmp_path, path) as there:
        await becomes(there, {1: "Ann", 2: "Bo"})
        assert (await there.rows())[0] == {"id": 1, "name": "Ann", "country": "no", "height": None}
        first = await commits(there)
        write(path, {1: "Ann", 2: "Bob", 3: "Cy"})
        await becomes(there, {1: "Ann", 2: "Bob", 3: "Cy"})
        write(path, {3: "Cy"})
        await becomes(there, {3: "Cy"})
        assert (await status(there))["events"] == 6
        assert await commits(there) == first + 2


async def test_a_restart_and_a_file_that_is_written_again_change_nothing(tmp_path: Path) -> None:
    path = tmp_path / "users.csv"
    put(path, "id,name,height\n1,Ann,nan\n2,Bo,1.8\n")
    ends = []
    for _ in range(3):
        async with pulled(tmp_path, path) as there:
            await becomes(there, {1: "Ann", 2: "Bo"})
            put(path, path.read_bytes())
            await read_again(there)
            await read_again(there)
            ends.append(await commits(there))
    assert len(set(ends)) == 1


async def test_a_file_that_is_gone_or_has_other_columns_changes_nothing_and_is_told(tmp_path: Path) -> None:
    path = tmp_path / "users.csv"
    put(path, "id,name,country\n1,Ann,se\n2,Bo,dk\n")
    async with pulled(tmp_path, path) as there:
        await becomes(there, {1: "Ann", 2: "Bo"})
        rows = await there.rows()
        path.unlink()
        assert (await fails(there, "No such file"))["state"] == "disconnected"
        put(path, "id,title\n1,x\n")
        await fails(there, "other columns: name, country is missing")
        put(path, "id,name\n1,Ann\n2,Bo\n")  # without a column that it had, which would become its default
        await fails(there, "other columns: country is missing")
        for text in ("", "nothing of ours\n1\n", "id,name,country\nx,Ann,se\n"):
            put(path, text)
            assert (await fails(there, {"": "is empty"}.get(text, "fit" if "x" in text else "no field")))["error"]
        assert await there.rows() == rows
        status_, metrics, _ = 0, "", None
        async with there.http.get("/metrics") as reply:
            status_, metrics = reply.status, await reply.text()
        assert status_ == 200
        assert 'penstock_collect_pull_states_total{state="disconnected",stream="users"}' in metrics
        put(path, "id,name,country\n")
        await becomes(there, {})
        assert (await status(there))["error"] is None


async def test_a_row_that_does_not_fit_is_a_letter_once_and_keeps_what_the_table_has(tmp_path: Path) -> None:
    path = tmp_path / "users.csv"
    csv(path, {1: "Ann", 2: "Bo", 3: "Cy"})
    async with pulled(tmp_path, path) as there:
        await becomes(there, {1: "Ann", 2: "Bo", 3: "Cy"})
        put(path, "id,name,height\n1,Ann,tall\n2,Bob,1.8\n")
        await becomes(there, {1: "Ann", 2: "Bob"})
        assert (await fails(there, "1 of its rows do not fit"))["state"] == "connected"
        put(path, "id,name,height\n1,Ann,tall\n2,Bo,1.8\n")
        await becomes(there, {1: "Ann", 2: "Bo"})
        _, letters, _ = await there.ask("GET", "/dead?stream=users")
        assert [(each["reason"], each["sender"]) for each in letters["letters"]] == [("wrong_type", f"file://{path}")]
        put(path, "id,name,height\nx,Ann,1.7\n")  # whose row this is nobody knows, so none is deleted
        await fails(there, "none of its 1 rows fits")
        put(path, "id,name,height\nx,Ann,1.7\n4,Di,1.6\n")
        await becomes(there, {1: "Ann", 2: "Bo", 4: "Di"})
        await fails(there, "2 rows that are gone stay")
        put(path, "id,name,height\n4,Di,1.6\n")
        await becomes(there, {4: "Di"})
    async with pulled(tmp_path, path) as there:
        put(path, "id,name,height\n1,Ann,tall\n4,Di,1.6\n")
        await fails(there, "1 of its rows do not fit")
        _, letters, _ = await there.ask("GET", "/dead?stream=users")
        assert len(letters["letters"]) == 2  # the same row again is the same letter, after a restart too


async def test_what_somebody_else_writes_into_a_pulled_table_is_made_the_source_again(tmp_path: Path) -> None:
    path = tmp_path / "users.json"
    array(path, {1: "Ann"})
    async with pulled(tmp_path, path) as there:
        await becomes(there, {1: "Ann"})
        await there.put("/tables/users/2", {"name": "Bo"})
        await becomes(there, {1: "Ann"})


async def test_a_pull_into_a_table_that_memory_does_not_hold_says_so(tmp_path: Path) -> None:
    path = tmp_path / "users.json"
    array(path, {n: "x" * 100 for n in range(100)})
    app = App("shop")
    app.pull(app.table("users", User, key="id"), f"file://{path}", every="20 ms")
    async with edge(tmp_path, app, view_bytes=2_000) as there:

        async def taken() -> bool:
            return (await status(there))["events"] == 100

        await until(taken)
        array(path, {1: "Ann"})
        await fails(there, "what has changed cannot be told")


# PostgreSQL


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    if (why := postgres_server.missing()) is not None:
        pytest.skip(why)
    with postgres_server.server() as address:
        yield address


class Price(Event):
    product: str
    day: date
    amount: Decimal
    rate: float
    note: str | None
    tags: list[str] = []
    at: datetime | None = None


async def test_a_query_is_read_again_and_its_differences_become_changes(tmp_path: Path, database: str) -> None:
    import psycopg

    app = App("shop")
    prices = app.table("prices", Price, key=["product", "day"])
    app.pull(prices, database, query="SELECT * FROM prices", every="20 ms", settings={"options": "-c timezone=UTC"})
    with psycopg.connect(database, autocommit=True) as sql:
        sql.execute(
            "CREATE TABLE prices (product text, day date, amount numeric(10, 2), rate numeric, note text, tags text[], "
            "at timestamptz)"
        )
        sql.execute("INSERT INTO prices VALUES ('a', '2024-05-01', 2.50, 0.25, NULL, '{x,y}', '2024-05-01 12:00+02')")
        async with edge(tmp_path, app) as there:
            (row,) = await until(lambda: there.rows("prices"))
            assert row == {
                "product": "a",
                "day": "2024-05-01",
                "amount": "2.500000000000000000",
                "rate": 0.25,
                "note": None,
                "tags": ["x", "y"],
                "at": "2024-05-01T10:00:00.000Z",
            }
            sql.execute("INSERT INTO prices VALUES ('b', '2024-05-01', 1, 1, 'n', NULL, NULL)")

            async def both() -> bool:
                return len(await there.rows("prices")) == 2

            await until(both)
            sql.execute("ALTER TABLE prices RENAME rate TO rates")
            await fails(there, "other columns: rate is missing")
            sql.execute("DROP TABLE prices")
            await fails(there, 'relation "prices" does not exist')
            assert len(await there.rows("prices")) == 2
            sql.execute(
                "CREATE TABLE prices AS SELECT 'b' product, date '2024-05-01' AS day, 1 amount, 1 rate, '' note"
            )
            await fails(there, "other columns: tags, at is missing")


# Declarations


def test_what_cannot_fill_a_table_is_refused_with_what_can() -> None:
    app = App("shop")
    users = app.table("users", User, key="id")
    for source, options, words in (
        ("ws://x/y", {}, "use file, postgresql"),
        ("file:///x/users.log", {}, ".csv, .parquet"),
        ("postgresql://db/shop", {}, "SELECT"),
        ("postgresql://ann:secret@db/shop", {"query": "SELECT 1"}, "environment"),
        ("file:///x/users.csv", {"map": lambda row: row}, "query="),
        ("file:///x/users.csv", {"query": "SELECT 1"}, "every"),
        (lambda: None, {}, "file or postgresql"),
    ):
        with pytest.raises(DeclarationError) as raised:
            app.pull(users, source, **options)
        assert words in f"{raised.value.hint}"


def test_two_sources_of_one_table_are_an_error() -> None:
    app = App("shop")
    users = app.table("users", User, key="id")
    app.pull(users, "file:///x/users.csv")
    app.pull(users, "file:///x/more.csv")
    assert [problem.code for problem in app.declared().problems()] == ["pull_twice"]
