"""Two thousand mutated requests; `python -m tests.chaos.fuzz --requests 100000` throws more."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.chaos.fuzz import Target, fuzz
from tests.chaos.fuzz_requests import shot


def test_no_bytes_at_the_socket_are_an_error_of_the_server(tmp_path: Path) -> None:
    target = Target(tmp_path)
    try:
        found = asyncio.run(fuzz(target, requests=2_000, seed=20261116))
    finally:
        code = target.stop()
    assert found.wrong == []
    assert code == 0
    assert {200, 202, 400, 404, 405, 413, 415, 422} <= set(found.statuses)


def test_a_request_can_be_made_again_from_its_number() -> None:
    again = [(shot(7, number).what, shot(7, number).parts) for number in range(50)]
    assert again == [(shot(7, number).what, shot(7, number).parts) for number in range(50)]
    assert len({what for what, _ in again}) > 5
