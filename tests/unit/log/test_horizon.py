"""How far back ids are known can be declared, within bounds, where there are ids."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from penstock import App, Event
from penstock.collect.collection import stream_spec
from penstock.errors import DeclarationError
from penstock.horizon import MOST_IDS, Horizon, parse_horizon


class Step(Event):
    n: int


@pytest.mark.parametrize("given", [0, -1, MOST_IDS + 1, True, "0 s", timedelta(0), "soon", 1.5])
def test_a_horizon_that_cannot_be_is_refused(given: Any) -> None:
    with pytest.raises(DeclarationError) as refused:
        parse_horizon(given)
    assert refused.value.hint


def test_a_horizon_without_an_id_is_refused_with_the_users_line() -> None:
    with pytest.raises(DeclarationError, match=r"test_horizon\.py:\d+: horizon= of 'steps' without an id"):
        App("steps").stream("steps", Step, horizon=1000)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (None, Horizon(10_000_000, 86_400_000_000)),
        (1_000, Horizon(1_000, 86_400_000_000)),
        (timedelta(days=7), Horizon(10_000_000, 7 * 86_400_000_000)),
    ],
)
def test_what_is_declared_reaches_the_log(given: Any, wanted: Horizon) -> None:
    declared = App("steps").stream("steps", Step, id="n", horizon=given)
    assert stream_spec(declared).horizon == wanted
