"""`GET /tables/{table}/{key}?at=`: the row that held at a time."""

from pathlib import Path
from typing import Any

import pytest

from penstock import App, Event
from tests.table_edge import edge


class Rate(Event):
    country: str
    since: int
    rate: int


def shop(**options: Any) -> App:
    app = App("shop")
    app.table("rates", Rate, key="country", **options)
    return app


async def test_the_row_that_held_at_a_time_and_of_equal_ones_the_last_written(tmp_path: Path) -> None:
    async with edge(tmp_path, shop(time="since", versions="30 days")) as asked:
        for since, rate in ((1000, 25), (5000, 12), (1000, 24)):
            assert (await asked.put("/tables/rates/no", {"since": since, "rate": rate}))[0] == 200
        found = {}
        for at in ("999", "1000", "4999", "1970-01-01T00:00:05Z", "1970-01-01 00:00:04.999"):
            status, row, tag = await asked.ask("GET", f"/tables/rates/no?at={at}")
            assert tag is None
            found[at] = row["rate"] if status == 200 else status
        expected: dict[str, Any] = {"999": 404, "1000": 24, "4999": 24, "1970-01-01T00:00:05Z": 12}
        assert found == expected | {"1970-01-01 00:00:04.999": 24}
        assert (await asked.ask("GET", "/tables/rates/no"))[1]["rate"] == 24, "what was written last is current"
        assert (await asked.ask("DELETE", "/tables/rates/no"))[0] == 200
        assert (await asked.ask("GET", "/tables/rates/no?at=6000"))[1]["rate"] == 12
        assert (await asked.ask("GET", "/tables/rates/no?at=9999-01-01"))[0] == 404, "deleted by then"


@pytest.mark.parametrize(("options", "at"), [({"versions": "1 day"}, "yesterday"), ({}, "1000")])
async def test_what_is_no_time_or_not_kept_is_refused(tmp_path: Path, options: dict[str, Any], at: str) -> None:
    async with edge(tmp_path, shop(**options)) as asked:
        await asked.put("/tables/rates/no", {"since": 1, "rate": 25})
        status, body, _ = await asked.ask("GET", f"/tables/rates/no?at={at}")
        assert (status, body["error"]["code"]) == (400, "bad_request")
        assert body["error"]["hint"]
