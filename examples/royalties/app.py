"""The royalties example: what each song has earned on a day that is over, to be paid once.

penstock run examples/royalties/app.py          # POST plays to /streams/plays
python examples/royalties/payments.py           # the bank
python examples/royalties/pay.py                # pays what the view says
"""

import os
from decimal import Decimal

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock import App, Event

app = App("royalties")

DAY = os.environ.get("ROYALTIES_DAY", "1 day")  # a shorter day makes a livelier demonstration
RATE = Decimal("0.0035")  # for each play that counts
MOST = 10  # plays of a song by one listener that count on one day


class Play(Event):
    play_id: str
    song: str
    listener: str
    at: int  # milliseconds since 1970


plays = app.stream(
    "plays", Play, key="song", time="at", id="play_id", late_after=os.environ.get("ROYALTIES_LATE", "1 hour")
)


@app.view(key=["window", "song"], order_by=["-window", "-amount"], limit=50)
def royalties(plays: DataFrame) -> DataFrame:
    """What each song has earned, day by day; a day appears when it is over, and is final."""
    counted = (
        plays.groupBy(F.window("_time", DAY), "song", "listener")
        .agg(F.count("*").alias("plays"))
        .withColumn("plays", F.least("plays", F.lit(MOST)))
    )
    return (
        counted.groupBy("window", "song")
        .agg(F.sum("plays").alias("plays"))
        .withColumn("amount", (F.col("plays") * F.lit(RATE)).cast("decimal(18,4)"))
    )
