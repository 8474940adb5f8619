"""The examples with summaries: each estimate is as near to what the generator knows as its README says."""

from __future__ import annotations

from itertools import islice

import pytest
from pyspark.sql import SparkSession

from penstock.sketches import CountMin, Membership
from penstock.testing import run
from tests.flows.test_table_examples import example

VISITORS, SHOWN = 50_000, 119_000


@pytest.mark.long
def test_ads_are_estimated_within_the_bounds_that_the_readme_states(spark: SparkSession) -> None:
    with example("ads", "app", "visitors") as (app, visitors):
        people = visitors.Visitors(VISITORS, seed=11)
        with run(app.app) as t:
            t.send("shown", list(islice(people.shown(), SHOWN)))
            (row,), exactly, (most,) = t.rows("minutes"), t.rows("exactly"), t.rows("most_shown")
    counts = people.of_minute(0)
    assert {each["ad"]: each["shown"] for each in exactly} == counts
    assert row["shown"] == SHOWN == counts.total()
    assert abs(row["visitors"]["estimate"] - VISITORS) <= row["visitors"]["bound"] <= 0.05 * VISITORS
    sketch = CountMin.of(row["ads"]["sketch"])
    assert (len(sketch.rows), sketch.width) == (8, 128)
    above = [sketch.count(ad) - counts[ad] for ad in range(visitors.ADS)]
    assert min(above) >= 0
    assert sum(more <= 0.015625 * SHOWN for more in above) >= 0.996 * visitors.ADS
    seen = Membership.of(row["seen"]["filter"])
    assert all(seen.holds(visitor) for visitor in people.seen[0])
    assert sum(seen.holds(f"stranger {n}") for n in range(2_000)) <= 20
    assert chi_square([each["ad"] for each in row["some"]["rows"]], counts) < 27.9  # of 9 degrees, 999 of 1,000
    assert row["some"]["of"] == SHOWN
    assert [each["item"] for each in most["most"]["items"]] == [ad for ad, _ in counts.most_common(10)]


def chi_square(chosen: list[int], counts: dict[int, int]) -> float:
    """Of a sample in ten classes: the nine most frequent ads, and all others."""
    common = sorted(counts, key=lambda ad: -counts[ad])[:9]
    total, found = sum(counts.values()), 0.0
    for ads in [*({ad} for ad in common), set(counts) - set(common)]:
        expected = len(chosen) * sum(counts[ad] for ad in ads) / total
        found += (sum(ad in ads for ad in chosen) - expected) ** 2 / expected
    return found
