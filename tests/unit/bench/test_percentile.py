"""A wrong percentile would make every figure of the benchmarks wrong."""

import random
import statistics

import pytest

from bench.percentile import Spread, median, percentile, spread


def test_a_percentile_lies_between_its_two_neighbours_in_proportion():
    assert percentile([10, 20], 0.25) == 12.5
    assert percentile([1, 2, 3, 4, 5], 0.5) == 3
    assert percentile(range(101), 0.99) == 99


def test_the_ends_are_the_smallest_and_the_largest_value():
    assert percentile([3, 1, 2], 0) == 1
    assert percentile([3, 1, 2], 1) == 3


def test_one_value_is_every_percentile():
    assert percentile([7], 0.5) == percentile([7], 0.99) == 7


def test_order_does_not_matter_and_the_values_stay_as_they_are():
    values = [5.0, 1.0, 4.0]
    assert median(values) == 4.0
    assert values == [5.0, 1.0, 4.0]


def test_it_agrees_with_the_standard_library():
    values = [random.Random(3).gauss(100, 20) for _ in range(1000)]
    hundredths = statistics.quantiles(values, n=100, method="inclusive")
    assert percentile(values, 0.99) == pytest.approx(hundredths[98])
    assert percentile(values, 0.5) == pytest.approx(hundredths[49])


def test_nothing_has_no_percentile_and_no_spread():
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)
    assert spread([]) is None


def test_a_share_beyond_one_is_refused():
    with pytest.raises(ValueError, match="between 0 and 1"):
        percentile([1, 2], 99)


def test_a_spread_takes_what_can_be_read_once():
    assert spread(float(n) for n in range(101)) == Spread(101, 50.0, 99.0)
