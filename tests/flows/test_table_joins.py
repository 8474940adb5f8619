"""Views over tables: joins of tables with tables and with views, kept current and equal to their functions."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock import App, Event
from tests.flows.world import World
from tests.table_edge import edge

Make = Callable[[App], World]


class User(Event):
    id: int
    name: str
    country: str | None = None


class Country(Event):
    code: str
    tax: int
    label: str = ""


class Order(Event):
    at: int
    user: int
    amount: int


def shop() -> App:
    app = App("shop")
    app.table("users", User, key="id")
    app.table("countries", Country, key="code")
    app.stream("orders", Order, time="at", late_after="1 hour")

    @app.view(key="id")
    def taxed(users: DataFrame, countries: DataFrame) -> DataFrame:
        return users.join(countries, users.country == countries.code, "left").select("id", "name", "tax")

    @app.view(key="user")
    def spent(orders: DataFrame) -> DataFrame:
        return orders.groupBy("user").agg(F.sum("amount").alias("amount"))

    @app.view(key="id")
    def buyers(users: DataFrame, spent: DataFrame) -> DataFrame:
        return users.join(spent, users.id == spent.user).select("id", "name", "country", "amount")

    @app.view(key="country")
    def sold(buyers: DataFrame) -> DataFrame:
        return buyers.where("country IS NOT NULL").groupBy("country").agg(F.sum("amount").alias("amount"))

    return app


def keyed(rows: list[dict[str, Any]], *names: str) -> set[tuple[Any, ...]]:
    return {tuple(row[name] for name in names) for row in rows}


def results(world: World) -> dict[str, str]:
    return {name: report.result for name, report in world.verify().items()}


def test_tables_are_joined_with_tables_and_with_views(world: Make) -> None:
    played = world(shop())
    ann, bo = User(id=1, name="Ann", country="no"), User(id=2, name="Bo", country="se")
    played.change("users", [[ann, bo, User(id=3, name="Cy")]])
    played.change("countries", [[Country(code="no", tax=25)]])
    played.send("orders", [[Order(at=1_000_000, user=1, amount=10), Order(at=1_000_001, user=2, amount=5)]])
    played.run()
    assert keyed(played.rows("taxed"), "name", "tax") == {("Ann", 25), ("Bo", None), ("Cy", None)}
    assert keyed(played.rows("buyers"), "name", "amount") == {("Ann", 10), ("Bo", 5)}
    assert keyed(played.rows("sold"), "country", "amount") == {("no", 10), ("se", 5)}
    played.change("countries", [[Country(code="no", tax=30), Country(code="se", tax=12)]])
    played.change("users", [[(1,)], [User(id=2, name="Bo", country="no")]])
    played.run()
    assert keyed(played.rows("taxed"), "name", "tax") == {("Bo", 30), ("Cy", None)}
    assert keyed(played.rows("buyers"), "name", "amount") == {("Bo", 5)}
    assert keyed(played.rows("sold"), "country", "amount") == {("no", 5)}
    assert set(results(played).values()) == {"equal"}


@pytest.mark.long
def test_random_changes_and_restarts_leave_what_the_batch_query_gives(world: Make) -> None:
    played, random = world(shop()), Random(5)
    users: dict[int, User] = {}
    countries: dict[str, Country] = {}
    amounts: dict[int, int] = {}
    for number in range(4):
        for _ in range(6):
            key, code = random.randrange(8), random.choice("abc")
            if random.random() < 0.3:
                users.pop(key, None)
                countries.pop(code, None)
                played.change("users", [[(key,)]])
                played.change("countries", [[(code,)]])
            else:
                users[key] = User(id=key, name=f"{number}", country=random.choice(["a", "b", "c", None]))
                countries[code] = Country(code=code, tax=random.randrange(50))
                played.change("users", [[users[key]]])
                played.change("countries", [[countries[code]]])
            buyer, amount = random.randrange(8), random.randrange(1, 9)
            amounts[buyer] = amounts.get(buyer, 0) + amount
            played.send("orders", [[Order(at=1_000_000 + number, user=buyer, amount=amount)]])
        played.run()
        taxes = {(u.id, u.name, countries[u.country].tax if u.country in countries else None) for u in users.values()}
        assert keyed(played.rows("taxed"), "id", "name", "tax") == taxes
        bought = {(u.id, u.country, amounts[u.id]) for u in users.values() if u.id in amounts}
        assert keyed(played.rows("buyers"), "id", "country", "amount") == bought
        totals: dict[str, int] = {}
        for _, country, amount in bought:
            if country is not None:
                totals[country] = totals.get(country, 0) + amount
        assert keyed(played.rows("sold"), "country", "amount") == set(totals.items())
    assert set(results(played).values()) == {"equal"}


def test_a_flow_over_a_table_is_refused() -> None:
    app = App("shop")
    app.table("users", User, key="id")

    @app.flow
    def copied(users: DataFrame) -> DataFrame:
        return users

    assert [p.code for p in app.declared().problems() if p.level == "error"] == ["view_as_input"]


async def test_a_table_beyond_the_edges_memory_is_joined_and_its_reads_are_507(world: Make) -> None:
    app = shop()
    played = world(app)
    for number, country in enumerate(("no", "se")):
        async with edge(played.folder.root, app, view_bytes=2_000) as there:
            users = [{"id": n, "name": "x" * 100, "country": country} for n in range(100)]
            assert (await there.ask("POST", "/tables/users", users))[0] == 200
            assert (await there.put(f"/tables/countries/{country}", {"tax": 10 + number}))[0] == 200
            assert (await there.ask("GET", "/views/users"))[0] == 507
            assert (await there.ask("GET", "/tables/users/1"))[0] == 507
            assert (await there.ask("GET", "/views/countries"))[0] == 200
        played.run()
        assert {row["tax"] for row in played.rows("taxed")} == {10 + number}
        assert len(played.rows("taxed")) == 100
