"""The vending example: the nearest machine that has what each person wants, and an offer to whoever is close to one.

penstock run examples/vending/app.py          # everything
python examples/vending/phones.py             # the phones: takes offers by webhook
python examples/vending/town.py               # people who walk, machines that sell and are filled again
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from penstock import App, Event

app = App("vending")

CELL_M = 500  # nobody walks further than to a neighbouring square of this size
OFFER_M = 150


class Machine(Event):
    """Where a machine stands, in metres east and north of the town hall."""

    machine: str
    east: int
    north: int


class Stock(Event):
    """How many pieces of a product a machine has left."""

    machine: str
    product: str
    pieces: int


class Person(Event):
    """Where somebody is now, and what they want."""

    person: str
    wants: str
    east: int
    north: int


app.table("machines", Machine, key="machine")
app.table("stock", Stock, key=["machine", "product"])
app.table("people", Person, key="person")


def cell(column: str) -> F.Column:
    return F.floor(F.col(column) / CELL_M)


@app.view(key=["machine", "east_cell", "north_cell"])
def reach(machines: DataFrame) -> DataFrame:
    """The nine squares from which people walk to a machine."""
    steps = F.array(*(F.lit(step) for step in (-1, 0, 1)))
    return (
        machines.withColumn("step", F.explode(steps))
        .withColumn("east_cell", cell("east") + F.col("step"))
        .withColumn("step", F.explode(steps))
        .withColumn("north_cell", cell("north") + F.col("step"))
        .select("machine", "east_cell", "north_cell", F.col("east").alias("to_east"), F.col("north").alias("to_north"))
    )


@app.view(key="person", order_by="metres", limit=30)
def nearest(people: DataFrame, reach: DataFrame, stock: DataFrame) -> DataFrame:
    """The nearest machine that has what a person wants; nobody without one."""
    placed = people.withColumn("east_cell", cell("east")).withColumn("north_cell", cell("north"))
    full = stock.where("pieces > 0").withColumnRenamed("product", "wants")
    first = Window.partitionBy("person").orderBy("metres", "machine")
    return (
        placed.join(reach, ["east_cell", "north_cell"])
        .join(full, ["machine", "wants"])
        .withColumn("metres", F.round(F.hypot(F.col("to_east") - F.col("east"), F.col("to_north") - F.col("north")), 0))
        .withColumn("place", F.row_number().over(first))
        .where("place = 1")
        .select("person", "wants", "machine", "metres", "pieces")
    )


@app.view(key="machine", order_by="pieces", limit=20)
def to_fill(machines: DataFrame, stock: DataFrame) -> DataFrame:
    """Machines with nothing left of something."""
    empty = stock.where("pieces = 0").groupBy("machine").agg(F.sort_array(F.collect_set("product")).alias("missing"))
    left = stock.groupBy("machine").agg(F.sum("pieces").alias("pieces"))
    return machines.select("machine").join(empty, "machine").join(left, "machine")


offers = app.channel("offers", nearest, where=f"metres <= {OFFER_M}", policy="every_change")
