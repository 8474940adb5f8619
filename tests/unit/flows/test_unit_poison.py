"""Units that fail are found by halving; how many may, and what is said of them."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pytest

from penstock.errors import TooMuchError
from penstock.flows.regroup.unit_poison import (
    TRIES,
    FunctionFailsError,
    UnitResults,
    compute_units,
    letters,
    skip_list,
    skipped_units,
    unit_words,
)


def unit(*values: object) -> bytes:
    return msgspec.msgpack.encode(values)


class Query:
    """Fails on some units, and counts how often it is asked."""

    def __init__(self, *bad: int) -> None:
        self.bad = {unit(n) for n in bad}
        self.asked = 0

    def __call__(self, units: set[bytes]) -> pa.Table:
        self.asked += 1
        if units & self.bad:
            raise RuntimeError("[DIVIDE_BY_ZERO] Division by zero.\nmore")
        return pa.table({"unit": sorted(units)})


def computed(query: Query, count: int, *, suspects: set[bytes] = frozenset(), tries: int = TRIES - 1) -> UnitResults:
    units = {unit(n) for n in range(count)}
    return compute_units(query, [units - suspects] if units - suspects else [], suspects, tries)


def test_units_that_fail_alone_are_found_by_halving() -> None:
    query = Query(3, 77)
    results = computed(query, 100)
    assert set(results.failed) == {unit(3), unit(77)}
    assert results.failed[unit(3)] == "[DIVIDE_BY_ZERO] Division by zero."
    assert {u for some, _ in results.parts for u in some} == {unit(n) for n in range(100)} - query.bad
    assert query.asked < 35


def test_the_first_failures_are_raised_as_they_are() -> None:
    with pytest.raises(RuntimeError, match="DIVIDE"):
        computed(Query(3), 100, tries=0)


def test_units_that_failed_before_are_tried_each_alone_and_hold_up_nobody() -> None:
    query = Query(3)
    results = computed(query, 10, suspects={unit(3), unit(4)}, tries=0)
    assert set(results.failed) == {unit(3)}
    assert query.asked == 3


@pytest.mark.parametrize(("bad", "count"), [(range(4), 4), (range(20), 100)])
def test_if_all_fail_or_many_it_is_the_function(bad: range, count: int) -> None:
    with pytest.raises(FunctionFailsError) as failed:
        computed(Query(*bad), count)
    assert "DIVIDE" in str(failed.value.__cause__)


def test_one_unit_alone_may_fail() -> None:
    assert set(computed(Query(0), 1).failed) == {unit(0)}


def test_what_is_no_fault_of_a_unit_is_raised() -> None:
    def refuse(_: set[bytes]) -> pa.Table:
        raise TooMuchError("too much")

    with pytest.raises(TooMuchError):
        compute_units(refuse, [{unit(1)}], [], TRIES)


def test_a_skip_list_comes_back_from_the_control_stream() -> None:
    failed = {unit("NL", 1): "why", unit(None, 2): "because"}
    assert skipped_units({"skip/v/1": skip_list(failed)}, "v", "1") == failed
    assert skip_list({}) is None
    assert skipped_units({"skip/v/1": None}, "v", "1") == {}


def test_a_letter_names_the_unit_and_the_reason() -> None:
    (row,) = letters("v", "1", ("country", "n"), {unit("NL", 1): "why"}, 5).to_pylist()
    assert (row["reason"], row["flow"], row["detail"]) == ("poison", "v", "country = 'NL', n = 1: why")
    assert msgspec.json.decode(row["raw"]) == {"country": "NL", "n": 1}
    assert unit_words((), unit()) == "all of it"
