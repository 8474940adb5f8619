from __future__ import annotations

import datetime as dt
import io
import json
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hands import Hands
from running_edge import Edge, running

from penstock import App, Event
from penstock.clock import rfc3339

HOUR_US = 3_600_000_000
DAY_US = 24 * HOUR_US
NOW_US = 1_700_000_000_000_000


class Step(Event):
    n: int
    occurred: int | None = None
    sent_at: dt.datetime | None = None


def app() -> App:
    made = App("clocks")
    made.stream("field", Step, time="occurred", sent="sent_at", max_skew="1 day")
    made.stream("header", Step, time="occurred", max_skew="1 day", id="n", key="n", partitions=3)
    made.stream("off", Step, time="occurred")
    return made


def times(edge: Edge, stream: str) -> dict[int, int]:
    """`_time` by n, in microseconds."""
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    return {row["n"]: (row["_time"] - epoch) // dt.timedelta(microseconds=1) for row in edge.events(stream)}


def ms(us: int) -> int:
    return us // 1000


def stream_of(rows: list[dict[str, Any]]) -> bytes:
    table = pa.Table.from_pylist(rows)
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


@pytest.mark.parametrize("skew_us", [0, 5 * HOUR_US, -5 * HOUR_US])
@pytest.mark.parametrize("by", ["field", "header"])
@pytest.mark.parametrize("form", ["json", "csv", "arrow"])
async def test_a_wrong_clock_is_corrected(tmp_path: Path, by: str, form: str, skew_us: int) -> None:
    """Three events that happened one, two and three hours ago, by a clock that is wrong."""
    async with running(app(), tmp_path, clock=Hands(NOW_US)) as edge:
        rows = [{"n": n, "occurred": ms(NOW_US - n * HOUR_US + skew_us)} for n in (1, 2, 3)]
        sent = rfc3339(NOW_US + skew_us)
        headers = {} if by == "field" else {"Penstock-Sent": str(ms(NOW_US + skew_us))}
        if by == "field":
            rows = [row | {"sent_at": sent} for row in rows]
        if form == "arrow":
            typed = [r | ({"sent_at": dt.datetime.fromisoformat(sent)} if by == "field" else {}) for r in rows]
            body, kind = stream_of(typed), "application/vnd.apache.arrow.stream"
        elif form == "csv":
            lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
            body, kind = "\n".join(lines).encode(), "text/csv"
        else:
            body, kind = json.dumps(rows).encode(), "application/json"
        reply = await edge.post(by, body, headers={"Content-Type": kind} | headers)
        assert (reply.status, reply.body["accepted"]) == (200, 3), reply.body
        assert times(edge, by) == {n: NOW_US - n * HOUR_US for n in (1, 2, 3)}
        kept = edge.events(by)[0]
        assert kept["occurred"] == ms(NOW_US - kept["n"] * HOUR_US + skew_us)
        assert kept["_sent"] == dt.datetime.fromisoformat(sent)
        assert "skewed" not in edge.collect.counts.of(by)


async def test_a_clock_that_is_too_wrong_is_left_alone_and_counted(tmp_path: Path) -> None:
    path = tmp_path
    sent = {"Penstock-Sent": rfc3339(NOW_US - 2 * DAY_US)}
    body = json.dumps([{"n": 1, "occurred": ms(NOW_US - 3 * DAY_US)}, {"n": 2}]).encode()
    async with running(app(), path, clock=Hands(NOW_US)) as edge:
        assert (await edge.post("header", body, headers=sent)).body["accepted"] == 2
        assert times(edge, "header") == {1: NOW_US - 3 * DAY_US, 2: NOW_US}
        assert edge.collect.counts.of("header")["skewed"] == 1
        again = await edge.post("header", body, headers=sent)
        assert again.body["duplicates"] == 2
        assert edge.collect.counts.of("header")["skewed"] == 1
        assert edge.metric("skewed", "header") == 1
    async with running(app(), path, clock=Hands(NOW_US)) as edge:
        assert edge.collect.counts.of("header")["skewed"] == 1


async def test_the_future_is_judged_by_the_corrected_time(tmp_path: Path) -> None:
    ahead = 3 * HOUR_US
    body = json.dumps({"n": 1, "occurred": ms(NOW_US + ahead)}).encode()
    async with running(app(), tmp_path, clock=Hands(NOW_US)) as edge:
        assert (await edge.post("header", body)).reasons == [(0, "from_the_future")]
        corrected = await edge.post("header", body, headers={"Penstock-Sent": str(ms(NOW_US + ahead))})
        assert corrected.body["accepted"] == 1
        slow = await edge.post("header", body, headers={"Penstock-Sent": str(ms(NOW_US - ahead))})
        assert slow.reasons == [(0, "from_the_future")]


async def test_nothing_is_corrected_where_nothing_is_declared(tmp_path: Path) -> None:
    async with running(app(), tmp_path, clock=Hands(NOW_US)) as edge:
        body = json.dumps({"n": 1, "occurred": ms(NOW_US - HOUR_US)}).encode()
        assert (await edge.post("off", body, headers={"Penstock-Sent": str(ms(NOW_US - HOUR_US))})).status == 200
        assert times(edge, "off") == {1: NOW_US - HOUR_US}
        assert "_sent" not in edge.events("off")[0]


@pytest.mark.parametrize("text", ["", "soon", "9" * 16, "-99999999999999", "12.5"])
async def test_a_header_that_is_no_time_is_refused(tmp_path: Path, text: str) -> None:
    async with running(app(), tmp_path) as edge:
        reply = await edge.post("header", b'{"n": 1}', headers={"Penstock-Sent": text})
        assert (reply.status, reply.code) == (400, "bad_request")


async def test_a_stream_takes_up_its_clocks_later(tmp_path: Path) -> None:
    """Older events were stored without `_sent`."""
    before = App("clocks")
    before.stream("header", Step, time="occurred", id="n", key="n", partitions=3)
    path = tmp_path
    async with running(before, path, clock=Hands(NOW_US)) as edge:
        await edge.post("header", b'{"n": 1}')
    async with running(app(), path, clock=Hands(NOW_US)) as edge:
        await edge.post("header", b'{"n": 2}', headers={"Penstock-Sent": str(ms(NOW_US))})
        assert {row["n"]: row["_sent"] is None for row in edge.events("header")} == {1: True, 2: False}


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"sent": "sent_at"}, "nothing_to_correct"),
        ({"time": "occurred", "sent": "nope"}, "unknown_field"),
        ({"max_skew": "1 hour"}, "nothing_to_correct"),
    ],
)
def test_a_declaration_that_cannot_work_is_said(options: Any, code: str) -> None:
    made = App("clocks")
    made.stream("steps", Step, **options)
    assert code in [problem.code for problem in made.declared().problems() if problem.level == "error"]


async def test_a_phone_that_was_offline_for_three_days_lands_each_event_once_at_its_time(tmp_path: Path) -> None:
    """Its clock is hours wrong; it sends in pieces, out of order, and again whenever it is not sure."""
    seeded = Random(11)
    clock = Hands(NOW_US)
    wrong_us = 7 * HOUR_US + 123_000
    happened = {n: NOW_US - 3 * DAY_US + n * 250_000_000 for n in range(1000)}
    waiting = list(happened)
    async with running(app(), tmp_path, clock=clock) as edge:
        while waiting:
            seeded.shuffle(waiting)
            piece = waiting[: seeded.randint(1, 120)]
            rows = [{"n": n, "occurred": ms(happened[n] + wrong_us)} for n in piece]
            clock.us += seeded.randint(1, 60) * 1_000_000
            reply = await edge.post(
                "header",
                json.dumps(rows).encode(),
                headers={"Penstock-Sent": str(ms(clock.us + wrong_us))},
            )
            assert reply.status == 200
            if seeded.random() < 0.7:  # the reply has arrived
                waiting = [n for n in waiting if n not in piece]
        found = times(edge, "header")
        assert found.keys() == happened.keys()
        assert len(edge.events("header")) == 1000
        assert max(abs(found[n] - happened[n]) for n in happened) < 1000  # the phone counts in milliseconds


@pytest.mark.parametrize("together", [1, 2])
async def test_a_replayed_letter_lands_where_it_would_have_when_it_came(tmp_path: Path, together: int) -> None:
    """By a clock that is two hours ahead, an hour before it was sent; replayed half a day later."""
    hands = Hands(NOW_US)
    async with running(app(), tmp_path, clock=hands) as edge:
        for n in range(together):
            event = {"n": str(n), "occurred": ms(NOW_US + HOUR_US), "sent_at": rfc3339(NOW_US + 2 * HOUR_US)}
            assert (await edge.post("field", json.dumps(event).encode())).status == 422
        hands.us += DAY_US // 2
        mended = [{"letter": f"0-{n}", "events": [event | {"n": n}]} for n in range(together)]
        reply = await edge.replay(*mended)
        assert reply.body["accepted"] == together, reply.raw
        assert times(edge, "field") == dict.fromkeys(range(together), NOW_US - HOUR_US)
        assert {row["_received"] for row in edge.events("field")} == {dt.datetime.fromtimestamp(hands.us / 1e6, dt.UTC)}


@pytest.mark.parametrize("together", [1, 2])
async def test_the_header_with_the_sent_time_is_kept_with_a_letter(tmp_path: Path, together: int) -> None:
    """Where the event itself does not say when it was sent; one letter has the header, the other has none."""
    hands = Hands(NOW_US)
    said = [{"Penstock-Sent": str(ms(NOW_US + 2 * HOUR_US))}, {}][:together]
    async with running(app(), tmp_path, clock=hands) as edge:
        for n, headers in enumerate(said):
            event = {"n": str(n), "occurred": ms(NOW_US + HOUR_US)}
            assert (await edge.post("header", json.dumps(event).encode(), headers=headers)).status == 422
        hands.us += DAY_US // 2
        mended = [{"letter": f"0-{n}", "events": [event | {"n": n}]} for n in range(together)]
        assert (await edge.replay(*mended)).body["accepted"] == together
        wanted = {0: NOW_US - HOUR_US, 1: NOW_US + HOUR_US}
        assert times(edge, "header") == {n: wanted[n] for n in range(together)}
        sent = [row["_sent"] for row in edge.events("header")]
        assert sent == [dt.datetime.fromtimestamp((NOW_US + 2 * HOUR_US) / 1e6, dt.UTC), None][:together]


async def test_whether_a_replayed_letter_is_from_the_future_is_asked_now(tmp_path: Path) -> None:
    hands = Hands(NOW_US)
    async with running(app(), tmp_path, clock=hands) as edge:
        event = {"n": 1, "occurred": ms(NOW_US + 30 * HOUR_US), "sent_at": rfc3339(NOW_US)}
        assert (await edge.post("field", json.dumps(event).encode())).body["rejected"][0]["reason"] == "from_the_future"
        assert (await edge.replay("0-0")).body["letters"][0]["reason"] == "from_the_future"
        hands.us += 30 * HOUR_US
        assert (await edge.replay("0-0")).body["accepted"] == 1
        assert times(edge, "field") == {1: NOW_US + 30 * HOUR_US}
