"""Windows that Spark has no word for: days, weeks and months of a time zone, and what came shortly before each event.

Tumbling and hopping windows and sessions are Spark's own: `F.window`, `F.session_window`. What stands here is an
expression over columns too, so that a stream and its batch twin give the same.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from penstock.config import duration_us
from penstock.errors import DeclarationError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_LENGTH = re.compile(r"^1 (day|week|month|quarter|year)s?$")
_TIME = "_time"


def calendar(time: str | Column, length: str, *, zone: str) -> Column:
    """The day, week (from Monday), month, quarter or year of a zone in which an event happened, as `start` and `end`.

    It has the name `window` and the form of Spark's own windows: group by it, and `keep=`, `final=True` and `complete`
    go by its end. A day has 23 or 25 hours where the zone's clocks are changed.

    ```python
    @app.view(key=["window", "shop"], final=True)
    def sold(orders: DataFrame) -> DataFrame:
        month = calendar("_time", "1 month", zone="Europe/Paris")
        return orders.groupBy(month, "shop").agg(F.sum("amount").alias("sum"))
    ```

    Spark does not forget the state of such a window, one row for each group, and a `@app.flow` cannot group by it.
    """
    from pyspark.sql import functions as F

    found = _LENGTH.match(length)
    if found is None:
        raise DeclarationError(
            f"'{length}' is no part of a calendar", hint="use '1 day', '1 week', '1 month', '1 quarter' or '1 year'"
        )
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError):
        raise DeclarationError(f"'{zone}' is no time zone", hint="use a name such as 'Europe/Paris'") from None
    unit = found[1]
    step = {"quarter": "INTERVAL 3 MONTHS", "week": "INTERVAL 7 DAYS"}.get(unit, f"INTERVAL 1 {unit.upper()}")
    moment = F.col(time) if isinstance(time, str) else time
    start = F.date_trunc(unit, F.from_utc_timestamp(moment, zone))
    ends = (F.to_utc_timestamp(start, zone), F.to_utc_timestamp(start + F.expr(step), zone))
    return F.struct(ends[0].alias("start"), ends[1].alias("end")).alias("window")


def around(events: DataFrame, *, by: str | Sequence[str], within: str, **aggregates: Column) -> DataFrame:
    """Each event with aggregates over those of the same `by` that happened up to `within` before it, itself included.

    Two events of one time are in each other's. An event that comes late changes those behind it. The view that uses it
    says with its own `within=` how long events count, which must be longer:

    ```python
    @app.view(key="id", within="1 day", where="n > 5")
    def hasty(payments: DataFrame) -> DataFrame:
        return around(payments, by="card", within="5 minutes", n=F.count("*")).select("id", "card", "n")
    ```
    """
    from pyspark.sql import Window

    span_us = duration_us(within)
    if span_us <= 0:
        raise DeclarationError(f"within='{within}' of around is no length", hint="use one such as '5 minutes'")
    if not aggregates:
        raise DeclarationError("around needs what to compute", hint='name it: n=F.count("*")')
    names = (by,) if isinstance(by, str) else tuple(by)
    before: Any = Window.partitionBy(*names).orderBy(_micros()).rangeBetween(-span_us, 0)
    return events.select("*", *(aggregate.over(before).alias(name) for name, aggregate in aggregates.items()))


def _micros() -> Column:
    from pyspark.sql import functions as F

    return F.unix_micros(F.col(_TIME))
