"""The examples with joins of events: whatever happens in them, the views show what their generators know to be true."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from decimal import Decimal
from itertools import islice
from types import ModuleType
from typing import Any

import pytest

from tests.flows.test_table_examples import example
from tests.flows.world import World

Make = Callable[[Any], World]
pytestmark = pytest.mark.long


def send_all(world: World, app: ModuleType, moves: Iterable[tuple[str, Any]], classes: dict[str, type]) -> None:
    """What a generator posts, one commit for each of its moves."""
    for path, body in moves:
        _, kind, name = path.split("/")
        bodies = body if isinstance(body, list) else [body]
        if kind == "tables":
            world.change(name, [bodies])
        else:
            world.send(name, [[classes[name](**event) for event in bodies]])


def test_sales_are_taxed_by_the_rate_of_their_time_however_late_it_comes(world: Make) -> None:
    with example("sales", "app", "tills") as (app, tills):
        known, played = tills.Tills(seed=5), world(app.app)
        moves = known.moves()

        def sale(amount: str, **fields: Any) -> Any:
            return app.Sale(amount=Decimal(amount), **fields)

        for count in (60, 40):
            send_all(played, app, islice(moves, count), {"sales": sale})
            played.run()
            shown = {row["sale_id"]: row["percent"] for row in played.rows("taxed")}
            assert shown == {each["sale_id"]: known.percent(each) for each in known.sales}
            owed = {(row["country"], row["percent"]): (row["sales"], row["tax"]) for row in played.rows("owed")}
            assert owed == known.owed()
        assert {report.result for report in played.verify().values()} == {"equal"}


def test_clicks_find_their_searches_and_searches_without_one_show_at_once(world: Make) -> None:
    with example("clicks", "app", "surfers") as (app, surfers):
        known, played = surfers.Surfers(seed=4), world(app.app)
        moves = known.moves()
        for count in (60, 1, 40):
            send_all(played, app, islice(moves, count), {"searches": app.Search, "clicks": app.Click})
            played.run()
            assert {row["url"]: (row["shown"], row["clicks"]) for row in played.rows("rates")} == known.rates()
            assert {row["search_id"] for row in played.rows("unclicked")} == known.unclicked()
        assert {report.result for report in played.verify().values()} == {"equal"}
