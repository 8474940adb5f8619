"""Numbers the events of a key, so that windows can count events: every hundredth rider, the last ten payments.

`numbered` is called inside the function of a view or flow. Below it the function is cut: a hidden flow, `NAME.1`, sees
the events of each key in the order of the log and writes them once more, each with its number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from penstock.errors import DeclarationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NTH = "_nth"
"""The number of an event in its key, from 0 on."""
_ATTACHED = "_penstock_numbered"


def numbered(events: DataFrame, by: str | Sequence[str]) -> DataFrame:
    """The events of a stream or flow with `_nth`: each event's number among those of equal `by`, from 0 on, in the
    order of the log. Give the input as the function gets it; filter and choose columns afterwards.

    ```python
    @app.view(key=["city", "hundred"])
    def hundreds(rides: DataFrame) -> DataFrame:
        rides = numbered(rides, by="city").withColumn("hundred", F.expr("_nth div 100"))
        return rides.groupBy("city", "hundred").agg(F.avg("speed").alias("speed"))
    ```
    """
    number: Callable[[tuple[str, ...]], DataFrame] | None = getattr(events, _ATTACHED, None)
    if number is None:
        raise DeclarationError(
            "numbered() takes an input as the function gets it", hint="call it first, and filter what it gives"
        )
    return number((by,) if isinstance(by, str) else tuple(by))


def with_numbers(frame: Any, number: Callable[[tuple[str, ...]], Any]) -> Any:
    """A frame from which `numbered` finds the numbers of its events."""
    setattr(frame, _ATTACHED, number)
    return frame
