"""A producer whose number was taken before can find out which of its events were rejected then."""

from __future__ import annotations

from pathlib import Path

from test_openapi import running

from tests.memory_folder import memory_folder


async def test_the_rejected_events_of_a_repeated_number_are_found_by_their_id(tmp_path: Path) -> None:
    body = [{"topic": "a"}, {"topic": 7}, {"topic": "b"}, {}]
    async with running(memory_folder(tmp_path)) as edge:
        for number in (0, 1):
            headers = {"Producer-Id": "till-7", "Producer-Epoch": "3", "Producer-Seq": str(number)}
            await edge.expect(200, "POST", "/streams/rsvps", body, headers=headers)
        await edge.expect(204, "POST", "/streams/rsvps", body, headers=headers)
        where = "_id like 'rsvps/till-7/3/1/%'"
        found = await edge.expect(200, "GET", "/streams/dead", params={"where": where, "select": "_id,reason"})
        assert [(event["_id"], event["reason"]) for event in found["events"]] == [
            ("rsvps/till-7/3/1/1", "wrong_type"),
            ("rsvps/till-7/3/1/3", "missing_field"),
        ]
