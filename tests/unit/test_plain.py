"""The switch turns off what it names, all of it by 1, and nothing by a name that is none."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from penstock import plain
from penstock.errors import BadSwitchError


@pytest.fixture(autouse=True)
def _nothing_given_up() -> Iterator[None]:
    plain.given_up.cache_clear()
    yield
    plain.given_up.cache_clear()


@pytest.mark.parametrize("value", ["", "0", " "])
def test_without_a_value_every_part_serves(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(plain.VARIABLE, value)
    assert (plain.parts_off(), plain.off(plain.SPARK), plain.mode(plain.SPARK)) == (frozenset(), [], "fast")


def test_1_turns_every_part_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(plain.VARIABLE, "1")
    assert plain.off(plain.SPARK) == list(plain.SPARK)
    assert not plain.uses("short_way")
    assert plain.mode(plain.SPARK) == "plain"


def test_names_turn_these_parts_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(plain.VARIABLE, "sink, nursery")
    assert plain.parts_off() == {"sink", "nursery"}
    assert plain.mode(plain.SPARK) == "without nursery, sink"
    assert plain.uses("launch")


def test_a_name_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(plain.VARIABLE, "sink,turbo")
    with pytest.raises(BadSwitchError, match="'turbo'"):
        plain.parts_off()


def test_a_part_gives_up_with_one_line_that_says_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(plain.VARIABLE, raising=False)
    with caplog.at_level(logging.WARNING):
        plain.give_up("sink", "no method\nstartQuery")
        plain.give_up("sink", "again")
    assert [record.getMessage() for record in caplog.records] == [
        "'sink' is off and its plain way serves: no method startQuery"
    ]
    assert not plain.uses("sink")


def test_a_part_that_was_turned_off_says_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(plain.VARIABLE, "sink")
    plain.give_up("sink", "no method")
    assert caplog.records == []
