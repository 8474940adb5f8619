"""The examples with tables: whatever people do in them, the views show what their generators know to be true."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from importlib import import_module
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.flows.world import World

EXAMPLES = Path(__file__).parents[2] / "examples"
Make = Callable[[Any], World]
pytestmark = pytest.mark.long


@contextmanager
def example(name: str, *modules: str) -> Iterator[list[ModuleType]]:
    """Modules of an example, which import each other by bare names; other examples may use the same ones."""
    folder = str(EXAMPLES / name)
    sys.path.insert(0, folder)
    try:
        yield [import_module(module) for module in modules]
    finally:
        sys.path.remove(folder)
        for module in modules:
            sys.modules.pop(module, None)


def tell(world: World, table: str, changes: list[dict[str, Any]]) -> None:
    """Rows and deletes of a table, as `POST /tables/{table}` takes them."""
    world.change(table, [[tuple(c["key"].values()) if c.get("op") == "delete" else c for c in changes]])


def tell_all(world: World, changes: Iterable[tuple[str, dict[str, Any]]]) -> None:
    """One commit for each table: the order counts within a table only."""
    tables: dict[str, list[dict[str, Any]]] = {}
    for table, change in changes:
        tables.setdefault(table, []).append(change)
    for table, theirs in tables.items():
        tell(world, table, theirs)


def is_true(world: World) -> bool:
    """Whether no view differs from its function; some have an order that only their keys make certain."""
    return {report.result for report in world.verify().values()} <= {"equal", "unverifiable"}


def test_timelines_follow_posts_deletes_follows_and_unfollows(world: Make) -> None:
    with example("timeline", "app", "people") as (app, people):
        network, played = people.Network(12, seed=3), world(app.app)
        tell_all(played, network.acquainted(40))
        changes = network.changes()
        for count in (150, 1):
            tell_all(played, islice(changes, count))
            played.run()
            pages: dict[str, list[tuple[datetime, int]]] = {}
            for row in played.rows("timelines"):
                pages.setdefault(row["reader"], []).append((row["at"], row["post_id"]))
            shown = {reader: [id for _, id in sorted(page, reverse=True)] for reader, page in pages.items()}
            assert shown == {reader: page for reader in network.people if (page := network.timeline(reader))}
        followed = {(row["author"], row["followers"]) for row in played.rows("popular")}
        assert sum(count for _, count in followed) == len(network.follows)
        assert is_true(played)


def test_what_is_bought_together_and_what_lies_in_carts_now(world: Make) -> None:
    with example("shop", "app", "customers") as (app, customers):
        market, played, products = customers.Market(10, seed=5), world(app.app), customers.catalogue()
        tell(played, "products", list(products.values()))
        moves = market.moves()
        for count in (80, 10):
            sent = [each for move in islice(moves, count) for each in move]
            tell(played, "carts", [row for path, rows in sent if path == "/tables/carts" for row in rows])
            played.send("orders", [[app.Order(**order) for path, order in sent if path == "/streams/orders"]])
            played.run()
            lying = {row["product"]: (row["carts"], row["quantity"]) for row in played.rows("in_carts")}
            assert lying == market.in_carts()
            best: dict[str, list[tuple[int, str]]] = {}
            for row in played.rows("together"):
                best.setdefault(row["product"], []).append((row["place"], row["other"]))
            suggested = {product: [other for _, other in sorted(others)] for product, others in best.items()}
            assert suggested == {p: others for p in products if (others := market.together(p))}
        tell(played, "products", [{"op": "delete", "key": {"product": "cheese"}}])
        tell(played, "products", [{**products["milk"], "name": "Oat milk"}])
        played.run()
        assert not [row for row in played.rows("together") if row["other"] == "cheese"]
        assert {row["name"] for row in played.rows("in_carts") if row["product"] == "milk"} <= {"Oat milk"}
        assert is_true(played)


def test_the_nearest_machine_with_stock_is_found_as_people_walk_and_machines_sell(world: Make) -> None:
    with example("vending", "app", "town") as (app, town_module):
        town, played = town_module.Town(machines=8, people=12, size_m=1500, seed=4), world(app.app)
        tell_all(played, town.begin())
        changes = town.changes()
        for count in (150, 40):
            tell_all(played, islice(changes, count))
            played.run()
            found = {row["person"]: (row["machine"], row["metres"]) for row in played.rows("nearest")}
            assert found == {person: near for person in town.people if (near := town.nearest(person))}
        empty = {machine for (machine, _), pieces in town.stock.items() if not pieces}
        assert {row["machine"] for row in played.rows("to_fill")} == empty
        assert is_true(played)


def test_grams_follow_cars_temperatures_and_factors(world: Make) -> None:
    start_ms = 1_767_225_600_000
    with example("emissions", "app", "city") as (app, city_module):
        city, played = city_module.City(seed=2, start_ms=start_ms), world(app.app)
        happenings = city.happenings(step_ms=400)
        for count in (300, 60):
            sent = list(islice(happenings, count))
            for stream, kind in (("passages", app.Passage), ("readings", app.Reading)):
                played.send(stream, [[kind(**event) for path, event in sent if path == f"/streams/{stream}"]])
            tell(played, "factors", [row for path, row in sent if path == "/tables/factors"])
            played.run()
            shown = {
                (int(row["window"]["start"].timestamp()) // 60, row["zone"]): (
                    row["cars"],
                    pytest.approx(row["grams"], abs=0.1),
                    row["unmeasured"],
                )
                for row in played.rows("co2")
            }
            assert shown == {place: city.emitted(*place) for place in city.minutes()}
        assert any(row["unmeasured"] < row["cars"] for row in played.rows("co2"))
        assert is_true(played)
