"""Which inputs meet, and the newest places at which they are level."""

from __future__ import annotations

from penstock.flows.regroup.meetings import Standing, groups_of, newest_level, shared_cuts

INPUTS = {
    "evens": ["steps"],
    "odd": ["steps"],
    "odds": ["odd"],
    "visits": ["clicks"],
    "doubled": ["evens"],
    "both": ["doubled", "odds", "rates"],
    "alone": ["visits", "rates"],
}
REGROUPED = ["doubled", "both", "alone"]


def standing(offset: int, **absorbed: int) -> Standing:
    return Standing((offset,), {name: ("e", (end,)) for name, end in absorbed.items()})


def test_inputs_of_one_stream_meet_where_a_view_reads_both_through_others_too() -> None:
    assert groups_of(INPUTS, REGROUPED) == [frozenset({"evens", "odds"})]


def test_what_meets_through_a_third_is_one_group() -> None:
    inputs = {"a": ["s"], "b": ["s", "t"], "c": ["t"], "ab": ["a", "b"], "bc": ["b", "c"]}
    assert groups_of(inputs, ["ab", "bc"]) == [frozenset("abc")]


def test_a_stream_meets_its_own_view() -> None:
    assert groups_of({"a": ["s"], "x": ["s", "a"]}, ["x"]) == [frozenset({"a", "s"})]


def test_batches_are_cut_alike_by_whoever_reads_a_common_stream() -> None:
    assert shared_cuts(INPUTS, REGROUPED) == {"evens": frozenset({"steps"}), "odd": frozenset({"steps"})}


def test_the_newest_common_place_is_chosen() -> None:
    a = [standing(n, s=end) for n, end in enumerate([10, 20, 30, 40])]
    b = [standing(n, s=end) for n, end in enumerate([10, 30, 35])]
    found = newest_level({"a": a, "b": b})
    assert found is not None
    assert {name: s.ends for name, s in found.items()} == {"a": (2,), "b": (1,)}


def test_two_common_streams_must_agree_at_once() -> None:
    a = [standing(0, s=1, t=1), standing(1, s=2, t=2), standing(2, s=3, t=2)]
    b = [standing(0, s=1, t=1), standing(1, s=2, t=2), standing(2, s=2, t=3)]
    found = newest_level({"a": a, "b": b})
    assert found is not None
    assert {name: s.ends for name, s in found.items()} == {"a": (1,), "b": (1,)}


def test_without_a_common_place_there_is_none() -> None:
    assert newest_level({"a": [standing(0, s=1), standing(1, s=3)], "b": [standing(0, s=2)]}) is None
    assert newest_level({"a": [standing(0, s=1)], "b": []}) is None
    other = Standing((0,), {"s": ("another epoch", (1,))})
    assert newest_level({"a": [standing(0, s=1)], "b": [other]}) is None
