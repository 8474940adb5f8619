"""Summaries for `groupBy().agg(...)`: an estimate with its bound, and on request the sketch as bytes.

1. All of it is Spark's own aggregates: no Python runs for a row, and a fold, a merge of parts and a batch query give
   what `verify` can compare.
2. What is equal in every order and cut (theta and HLL, count-min, bitmaps, samples by hash) is compared for equality.
3. What depends on the order, or on chance (quantiles, heavy hitters), is within a bound. Under `exactly()` a function
   gives the values that such an estimate stands for instead, and `verify` compares the estimate's rank or count with
   them; `summary_bounds.py` does.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from penstock.config import duration_us
from penstock.errors import DeclarationError
from penstock.sketches import BLOCK_BITS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    Named: TypeAlias = Column | str

CHECK = "_penstock_check"
"""The field in which a value, under `exactly()`, says how an estimate is compared with it."""
VALUES = "_penstock_values"
LIKELY = 0.99
"""How often a bound that is not certain holds."""
_DEVIATIONS = 2.576
"""Standard deviations on either side that hold 99 % of all estimates."""
_HASHES = 7
"""Of a filter: the least that, half full, mistakes fewer than one in a hundred."""
_LONGEST_HALF_LIVES = 500
"""Half-lives in one window: beyond a thousand a weight is no floating-point number any more."""

_exactly: ContextVar[bool] = ContextVar("penstock_exactly", default=False)


@contextmanager
def exactly() -> Iterator[None]:
    """Let summaries within a bound give, for `verify`, the values that they summarise."""
    before = _exactly.set(True)
    try:
        yield
    finally:
        _exactly.reset(before)


def _functions() -> Any:
    from pyspark.sql import functions

    return functions


def _checked(values: Column, kind: str, **facts: Any) -> Any:
    """What an estimate is compared with: the values of its group, and how."""
    F = _functions()
    return F.struct(F.lit(json.dumps({"kind": kind, **facts})).alias(CHECK), F.collect_list(values).alias(VALUES))


# Equal in every order and cut


def distinct(
    value: Named, *, kind: Literal["theta", "hll"] = "theta", lg: int | None = None, sketch: bool = False
) -> Column:
    """How many different values there are: `estimate` and `bound`, within which the truth lies 99 times of 100.

    `kind` is the sketch: theta (sketches can be intersected, too) or HLL, a quarter of its size. It keeps `2 ** lg`
    entries: 12 unless given, which is about 4 % each way; below as many values theta is exact. `sketch=True` adds it
    as bytes, for Spark's `theta_*` and `hll_*` functions.

    ```python
    ads.groupBy("ad").agg(distinct("visitor").alias("visitors"))
    ```
    """
    F = _functions()
    lg = 12 if lg is None else lg
    low, high = (4, 26) if kind == "theta" else (4, 21)
    if kind not in ("theta", "hll"):
        raise DeclarationError(f"distinct: '{kind}' is no kind of sketch", hint="use kind='theta' or kind='hll'")
    if not low <= lg <= high:
        raise DeclarationError(f"distinct: lg={lg} is out of range", hint=f"of {kind}: {low} to {high}")
    if kind == "theta":
        held = F.theta_sketch_agg(_column(value), lg)
        estimate = F.theta_sketch_estimate(held)
        error = _DEVIATIONS / math.sqrt(2**lg - 1)
        bound = F.when(estimate < 2**lg, F.lit(0)).otherwise(F.ceil(estimate * F.lit(error)))
    else:
        # A sketch that was merged is equal to the byte, whatever was merged with what; one that never was is not.
        once = F.hll_sketch_agg(_column(value), lg)
        held = F.hll_union(once, once)
        estimate = F.hll_sketch_estimate(held)
        bound = F.ceil(estimate * F.lit(_DEVIATIONS * 1.04 / math.sqrt(2**lg)))
    parts = [estimate.alias("estimate"), bound.cast("bigint").alias("bound")]
    return F.struct(*parts, *([held.alias("sketch")] if sketch else []))


def frequency(value: Named, *, depth: int = 8, width: int = 128, ranges: int = 0, seed: int = 1) -> Column:
    """How often each value came, as a count-min sketch of `depth` rows of `width` counters: `total`, `bound`, `sketch`.

    A reader asks `penstock.sketches.CountMin.of(row["sketch"])` for the count of a value, or for an inner product. It
    is never below the truth; above it by at most `bound`, 2 / width of the total, but for one of 2 ** depth values.
    With `ranges=16` there are sketches of a whole number's leading bits too: `CountMinRanges.of(row["levels"])`
    answers how many came of a range of up to 2 ** 16 numbers by few counts.
    """
    F = _functions()
    if depth < 1 or width < 2:
        raise DeclarationError(f"frequency: {depth} x {width} is no sketch", hint="such as depth=8, width=128")
    if not 0 <= ranges <= 32:
        raise DeclarationError(f"frequency: ranges={ranges} is out of range", hint="0 to 32: bits of the numbers")
    # Spark makes ceil(log2(1 / (1 - confidence))) rows of ceil(2 / eps) counters: the middle of each step is safe.
    eps, confidence = 2 / (width - 0.5), 1 - 2.0 ** -(depth - 0.5)

    def sketch(column: Column) -> Any:
        return F.count_min_sketch(column, F.lit(eps), F.lit(confidence), F.lit(seed))

    column = _column(value)
    total = F.count(column)
    bound = F.ceil(total * F.lit(2 / width)).cast("bigint")
    parts = [total.alias("total"), bound.alias("bound"), sketch(column).alias("sketch")]
    if ranges:
        levels = [sketch(F.shiftright(column.cast("bigint"), level)) for level in range(ranges + 1)]
        parts.append(F.array(*levels).alias("levels"))
    return F.struct(*parts)


def membership(value: Named, *, expected: int = 20_000) -> Column:
    """Which values were ever seen, as a Bloom filter: `expected`, `bound` (the share of false "yes") and `filter`.

    A reader asks `penstock.sketches.Membership.of(row["filter"])` whether it `holds` a value; in a query `seen` does.
    "No" is certain; "yes" is wrong for at most one in a hundred up to `expected` values, which take 7 blocks of 4 KiB
    for each 23,000 of them.
    """
    F = _functions()
    if expected < 1:
        raise DeclarationError(f"membership: expected={expected} values", hint="how many there will be, at least 1")
    blocks = max(1, math.ceil(expected / 23_000))
    column = _column(value)
    rows = []
    for number in range(_HASHES):
        place = _place(column, number, blocks)
        parts = [F.when(F.floor(place / BLOCK_BITS) == block, place % BLOCK_BITS) for block in range(blocks)]
        rows.append(F.array(*(F.bitmap_construct_agg(part) for part in parts)))
    full = (1 - math.exp(-expected / (BLOCK_BITS * blocks))) ** _HASHES
    parts = [
        F.lit(expected).cast("bigint").alias("expected"),
        F.lit(full).alias("bound"),
        F.array(*rows).alias("filter"),
    ]
    return F.struct(*parts)


def seen(filter: Named, value: Named) -> Column:
    """Whether the filter of a `membership` holds a value, for a join of events with a view of filters."""
    F = _functions()
    held, column = _column(filter)["filter"], _column(value)

    def is_set(number: int) -> Any:
        blocks = held[number]
        place = F.pmod(F.xxhash64(column, F.lit(number)), F.size(blocks) * F.lit(BLOCK_BITS))
        block = F.element_at(blocks, (F.floor(place / BLOCK_BITS) + 1).cast("int"))
        bit = place % BLOCK_BITS
        byte = F.conv(F.hex(F.substring(block, (F.floor(bit / 8) + 1).cast("int"), F.lit(1))), 16, 10).cast("int")
        return F.getbit(byte, (bit % 8).cast("int")) == 1

    found = is_set(0)
    for number in range(1, _HASHES):
        found = found & is_set(number)
    return found


def _place(column: Column, number: int, blocks: int) -> Any:
    F = _functions()
    return F.pmod(F.xxhash64(column, F.lit(number)), F.lit(BLOCK_BITS * blocks).cast("bigint"))


def sample(*columns: Named, n: int = 10, id: Named = "_id", sketch: bool = False) -> Column:
    """`n` events of each group, each equally likely, the same ones in every computation: `rows`, and `of` how many.

    An event is chosen by the hash of its `_id`; a function that hands events on keeps that column.
    """
    F = _functions()
    _no_bytes("sample", sketch)
    if n < 1 or not columns:
        raise DeclarationError("sample: at least one column, and n of at least 1", hint='sample("visitor", n=10)')
    row = F.struct(*(_column(each) for each in columns))
    return F.struct(F.min_by(row, F.xxhash64(_column(id)), n).alias("rows"), F.count("*").alias("of"))


# Within a bound


def quantiles(
    value: Named, at: Sequence[float] = (0.5, 0.95, 0.99), *, error: float | None = None, sketch: bool = False
) -> Column:
    """Values below which these shares of all values lie: `at`, `values`, and `bound`, by which a rank may be off.

    `percentile_approx` keeps its bound for certain: `error`, a ten-thousandth of the group unless given. With
    `sketch=True` a KLL sketch is kept instead, for `kll_sketch_*` functions that merge it with others; its bound holds
    99 times of 100, and `error` is about a hundredth unless given.
    """
    F = _functions()
    if not at or not all(0 <= share <= 1 for share in at):
        raise DeclarationError(f"quantiles: {list(at)} are no shares", hint="numbers from 0 to 1, such as 0.5 and 0.99")
    error = error if error is not None else (2.296 / 200**0.9021 if sketch else 0.0001)
    if not 0 < error < 1:
        raise DeclarationError(f"quantiles: error={error} is no part of a group", hint="such as 0.001")
    column = _column(value).cast("double")
    shares = F.array(*(F.lit(float(share)) for share in at)).alias("at")
    stated = F.lit(float(error)).alias("bound")
    if _exactly.get():
        likely = LIKELY if sketch else 1.0
        ranked = [_checked(column, "rank", at=float(share), error=error, likely=likely) for share in at]
        nothing = [F.lit(None).cast("binary").alias("sketch")] if sketch else []
        return F.struct(shares, F.array(*ranked).alias("values"), stated, *nothing)
    if not sketch:
        found = F.percentile_approx(column, [float(share) for share in at], math.ceil(1 / error))
        return F.struct(shares, found.alias("values"), stated)
    size = min(65_535, max(8, math.ceil((2.296 / error) ** (1 / 0.9021))))
    held = F.kll_sketch_agg_double(column, size)
    found = F.array(*(F.kll_sketch_get_quantile_double(held, F.lit(float(share))) for share in at))
    return F.struct(shares, found.alias("values"), stated, held.alias("sketch"))


def heavy_hitters(value: Named, k: int = 10, *, tracked: int = 10_000, sketch: bool = False) -> Column:
    """The `k` values that came most often: `items` with `item` and `count`, and `bound`, by which a count may be off.

    `tracked` values are followed: with fewer different ones the counts are exact, and the bound is 3.5 of so many.
    """
    F = _functions()
    _no_bytes("heavy_hitters", sketch)
    if not 1 <= k <= tracked <= 1_000_000:
        raise DeclarationError(
            f"heavy_hitters: {k} of {tracked} tracked", hint="k is at least 1, and tracked at least k"
        )
    column = _column(value)
    share = 3.5 / 2 ** math.ceil(math.log2(math.ceil(tracked / 0.75)))
    bound = F.ceil(F.count(column) * F.lit(share)).cast("bigint").alias("bound")
    if _exactly.get():
        return F.struct(_checked(column, "top", k=k, error=share).alias("items"), bound)
    return F.struct(F.call_function("approx_top_k", column, F.lit(k), F.lit(tracked)).alias("items"), bound)


# Plain arithmetic


def rate(per: str | timedelta, over: str | timedelta, count: Column | None = None) -> Column:
    """How many events there were `per` second, minute or hour in a window of length `over`.

    ```python
    views.groupBy(F.window("_time", "5 minutes")).agg(rate("1 second", over="5 minutes").alias("per_second"))
    ```
    """
    F = _functions()
    per_us, over_us = duration_us(per), duration_us(over)
    if not per_us or not over_us:
        raise DeclarationError(f"rate: {per} over {over}", hint="both are longer than nothing")
    counted = F.count("*") if count is None else count
    return counted * F.lit(per_us) / F.lit(over_us)


def decayed(value: Named, half_life: str | timedelta, window: str | timedelta, time: Named = "_time") -> Column:
    """The average of a value in a window, in which what is a half-life older weighs half as much.

    `window` is the length of the tumbling window that is grouped by: weights are counted from its beginning, so that
    the order of events makes no difference.
    """
    F = _functions()
    half_us, window_us = duration_us(half_life), duration_us(window)
    if not half_us or not window_us:
        raise DeclarationError(f"decayed: {half_life} in {window}", hint="both are longer than nothing")
    if window_us / half_us > _LONGEST_HALF_LIVES:
        raise DeclarationError(
            f"decayed: a window of {window} has more than {_LONGEST_HALF_LIVES} half-lives of {half_life}",
            hint="take a shorter window, or a longer half-life",
        )
    age = F.pmod(F.unix_micros(_column(time)), F.lit(window_us))
    weight = F.pow(F.lit(2.0), age / F.lit(float(half_us)))
    there = F.when(_column(value).isNotNull(), weight)
    return F.sum(_column(value).cast("double") * weight) / F.sum(there)


def drift(value: Named, edges: Sequence[float], reference: Sequence[float]) -> Column:
    """How far the distribution of a value in a group has moved from a reference: `drift`, `shares` and `n`.

    `edges` cut the values into one bucket more than there are edges; `reference` is the share of each. `drift` is the
    population stability index, the sum of (p - q) ln(p / q): below 0.1 nothing has moved, above 0.25 much has.
    """
    F = _functions()
    if sorted(edges) != list(edges) or len(reference) != len(edges) + 1:
        raise DeclarationError(
            f"drift: {len(edges)} edges and {len(reference)} shares",
            hint="edges rise, and there is one share more than there are edges",
        )
    if any(share < 0 for share in reference) or not math.isclose(sum(reference), 1.0, abs_tol=1e-6):
        raise DeclarationError("drift: the reference is no distribution", hint="its shares add up to 1")
    column, n = _column(value).cast("double"), F.count(value if isinstance(value, str) else _column(value))
    lows, highs = [None, *edges], [*edges, None]
    shares, parts = [], []
    for low, high, expected in zip(lows, highs, reference, strict=True):
        above = F.lit(True) if low is None else column >= F.lit(float(low))
        below = F.lit(True) if high is None else column < F.lit(float(high))
        share = F.count_if(column.isNotNull() & above & below) / F.greatest(n, F.lit(1))
        p, q = F.greatest(share, F.lit(1e-6)), F.lit(max(float(expected), 1e-6))
        shares.append(share)
        parts.append((p - q) * F.log(p / q))
    moved = parts[0]
    for part in parts[1:]:
        moved = moved + part
    return F.struct(moved.alias("drift"), F.array(*shares).alias("shares"), n.alias("n"))


# Views over views with windows


def moving(
    view: DataFrame, value: str, *, over: str | timedelta, by: Sequence[str] = (), at: str = "window"
) -> DataFrame:
    """A view of windows with the average, sum and number of windows of `value` in the last `over`: `<value>_moving`.

    It reads a view, and is itself one: what changes in a window changes those behind it, as far as `over` goes.
    """
    from pyspark.sql import Window

    F = _functions()
    over_us = duration_us(over)
    if not over_us:
        raise DeclarationError("moving: over nothing", hint='such as over="30 minutes"')
    order = F.unix_micros(F.col(f"{at}.end"))
    last = Window.partitionBy(*by).orderBy(order).rangeBetween(-over_us + 1, 0)
    summed = F.struct(
        F.avg(value).over(last).alias("average"),
        F.sum(value).over(last).alias("sum"),
        F.count(value).over(last).alias("windows"),
    )
    return view.withColumn(f"{value}_moving", summed)


def compared(
    view: DataFrame, value: str, *, ago: str | timedelta, by: Sequence[str] = (), at: str = "window"
) -> DataFrame:
    """A view of windows beside itself some time ago: `before`, `change` and `ratio` of `value`, or nulls.

    `ago="1 hour"` compares with the period before where windows are an hour long, `ago="7 days"` with the same hour of
    last week.
    """
    F = _functions()
    ago_us = duration_us(ago)
    if not ago_us:
        raise DeclarationError("compared: with itself", hint='such as ago="7 days"')
    then = F.timestamp_micros(F.unix_micros(F.col(f"{at}.start")) + F.lit(ago_us))
    names = [f"_{name}" for name in by]
    old = view.select(
        then.alias("_then"),
        F.col(value).alias("before"),
        *(F.col(name).alias(hidden) for name, hidden in zip(by, names, strict=True)),
    )
    same = F.col(f"{at}.start") == F.col("_then")
    for name, hidden in zip(by, names, strict=True):
        same = same & (F.col(name) == F.col(hidden))
    joined = view.join(old, same, "left").drop("_then", *names)
    change, ratio = F.col(value) - F.col("before"), F.try_divide(F.col(value).cast("double"), F.col("before"))
    return joined.withColumns({"change": change, "ratio": ratio})


def _column(named: Named) -> Any:
    return _functions().col(named) if isinstance(named, str) else named


def _no_bytes(name: str, sketch: bool) -> None:
    if sketch:
        raise DeclarationError(
            f"{name} has no sketch to give as bytes", hint="distinct, frequency, membership and quantiles have one"
        )
