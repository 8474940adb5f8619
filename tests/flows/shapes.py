"""Queries over three small tables, each as a view: `test_shapes.py` keeps them current and compares."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

Row = dict[str, Any]

TABLES = {
    "orders": "oid int, uid int, amt int, price double",
    "users": "id bigint, name string, country string",
    "taxes": "country string, tax int",
}
KEYS = {"orders": "oid", "users": "id", "taxes": "country"}
_COUNTRIES = ["NL", "DE", "FR", "IT"]


def row(table: str, rng: random.Random) -> Row:
    """A row whose values meet those of other rows often, and are null now and then."""
    if table == "orders":
        price = rng.choice([0.1, 0.2, -0.0, 0.0, float("nan"), None])
        return {"oid": rng.randrange(14), "uid": _maybe(rng, 8), "amt": _maybe(rng, 6), "price": price}
    if table == "users":
        return {"id": rng.randrange(8), "name": rng.choice("ab"), "country": rng.choice([*_COUNTRIES[:3], None])}
    return {"country": rng.choice(_COUNTRIES), "tax": _maybe(rng, 5)}


def _maybe(rng: random.Random, below: int) -> int | None:
    return None if rng.random() < 0.1 else rng.randrange(below)


@dataclass(frozen=True)
class Shape:
    """A query, the key of its rows, and the columns of a unit; none: it has no unit, and is computed whole."""

    name: str
    key: tuple[str, ...]
    unit: tuple[str, ...]
    inputs: tuple[str, ...]
    function: Callable[..., DataFrame]


SHAPES: list[Shape] = []


def shape(key: str, unit: str = "") -> Callable[[Callable[..., DataFrame]], Callable[..., DataFrame]]:
    def add(function: Callable[..., DataFrame]) -> Callable[..., DataFrame]:
        inputs = function.__code__.co_varnames[: function.__code__.co_argcount]
        SHAPES.append(Shape(function.__name__, tuple(key.split()), tuple(unit.split()), inputs, function))
        return function

    return add


def sql(query: str, **frames: DataFrame) -> DataFrame:
    return next(iter(frames.values())).sparkSession.sql(query, **frames)


@shape("oid", "oid")
def filtered(orders: DataFrame) -> DataFrame:
    return orders.where("amt > 2").select("oid", (F.col("amt") * 2).alias("twice"))


@shape("uid", "uid")
def counted(orders: DataFrame) -> DataFrame:
    return orders.groupBy("uid").agg(F.count("*").alias("n"), F.sum("amt").alias("s"), F.avg("price").alias("p"))


@shape("uid", "uid")
def having(orders: DataFrame) -> DataFrame:
    return sql("SELECT uid, sum(amt) s FROM {orders} GROUP BY uid HAVING sum(amt) > 5", orders=orders)


@shape("price", "price")
def by_float(orders: DataFrame) -> DataFrame:
    return orders.groupBy("price").agg(F.count("*").alias("n"))


@shape("h", "h")
def by_expression(orders: DataFrame) -> DataFrame:
    return sql("SELECT amt % 3 h, count(*) n FROM {orders} GROUP BY 1", orders=orders)


@shape("uid", "uid")
def distinct_values(orders: DataFrame) -> DataFrame:
    return orders.select("uid").distinct()


@shape("uid", "uid")
def distinct_counts(orders: DataFrame) -> DataFrame:
    return orders.groupBy("uid").agg(F.countDistinct("amt").alias("n"), F.collect_set("amt").alias("all")).drop("all")


@shape("uid", "uid")
def pivoted(orders: DataFrame) -> DataFrame:
    return orders.groupBy("uid").pivot("amt", [1, 2, 3]).count()


@shape("oid", "uid")
def top_two(orders: DataFrame) -> DataFrame:
    ranked = orders.withColumn("place", F.row_number().over(Window.partitionBy("uid").orderBy("amt", "oid")))
    return ranked.where("place <= 2").drop("price")


@shape("id", "country")
def running_sum(users: DataFrame) -> DataFrame:
    return users.withColumn("s", F.sum("id").over(Window.partitionBy("country").orderBy("id"))).drop("name")


@shape("oid", "uid")
def difference_to_the_one_before(orders: DataFrame) -> DataFrame:
    before = F.lag("amt").over(Window.partitionBy("uid").orderBy("oid"))
    return orders.select("oid", "uid", (F.col("amt") - before).alias("d"))


@shape("oid", "oid")
def left_join(orders: DataFrame, users: DataFrame) -> DataFrame:
    return orders.join(users, orders.uid == users.id, "left").select("oid", "name", "amt")


@shape("oid", "oid")
def right_join(orders: DataFrame, users: DataFrame) -> DataFrame:
    return users.join(orders, orders.uid == users.id, "right").select("oid", "name", "amt")


@shape("country", "country")
def join_and_count(orders: DataFrame, users: DataFrame) -> DataFrame:
    return orders.join(users, orders.uid == users.id).groupBy("country").agg(F.countDistinct("uid").alias("n"))


@shape("a b", "a")
def self_join(orders: DataFrame) -> DataFrame:
    a, b = orders.alias("a"), orders.alias("b")
    return a.join(b, F.expr("a.uid = b.uid AND a.oid < b.oid")).select(
        F.col("a.oid").alias("a"), F.col("b.oid").alias("b")
    )


@shape("id", "id")
def anti_join(orders: DataFrame, users: DataFrame) -> DataFrame:
    return users.join(orders, orders.uid == users.id, "left_anti")


@shape("id", "id")
def semi_join(orders: DataFrame, users: DataFrame) -> DataFrame:
    return users.join(orders.where("amt > 2"), orders.uid == users.id, "left_semi")


@shape("id", "id")
def correlated(orders: DataFrame, users: DataFrame) -> DataFrame:
    query = "SELECT id, name, (SELECT max(amt) FROM {orders} o WHERE o.uid = u.id) m FROM {users} u"
    return sql(query, orders=orders, users=users)


@shape("id", "id")
def exists(orders: DataFrame, users: DataFrame) -> DataFrame:
    query = "SELECT id, name FROM {users} u WHERE EXISTS (SELECT 1 FROM {orders} o WHERE o.uid = u.id AND amt > 3)"
    return sql(query, orders=orders, users=users)


@shape("id", "id")
def not_exists(orders: DataFrame, users: DataFrame) -> DataFrame:
    query = "SELECT id, name FROM {users} u WHERE NOT EXISTS (SELECT 1 FROM {orders} o WHERE o.uid = u.id)"
    return sql(query, orders=orders, users=users)


@shape("id", "id")
def within(orders: DataFrame, users: DataFrame) -> DataFrame:
    query = "SELECT id, name FROM {users} u WHERE id IN (SELECT uid FROM {orders})"
    return sql(query, orders=orders, users=users)


@shape("id")
def not_within(orders: DataFrame, users: DataFrame) -> DataFrame:
    query = "SELECT id, name FROM {users} u WHERE id NOT IN (SELECT uid FROM {orders})"
    return sql(query, orders=orders, users=users)


@shape("uid", "uid")
def shared_part(orders: DataFrame) -> DataFrame:
    query = """WITH c AS (SELECT uid, sum(amt) s FROM {orders} GROUP BY uid)
               SELECT a.uid, a.s, b.s next FROM c a JOIN c b ON a.uid = b.uid + 1"""
    return sql(query, orders=orders)


@shape("x", "x")
def union(orders: DataFrame, users: DataFrame) -> DataFrame:
    return orders.select(F.col("oid").cast("long").alias("x")).union(users.select("id")).distinct()


@shape("x", "x")
def subtracted(orders: DataFrame, users: DataFrame) -> DataFrame:
    return orders.select(F.col("uid").cast("long").alias("x")).subtract(users.select("id"))


@shape("x", "x")
def intersected(orders: DataFrame, users: DataFrame) -> DataFrame:
    return orders.select(F.col("uid").cast("long").alias("x")).intersect(users.select("id"))


@shape("uid", "uid")
def three_tables(orders: DataFrame, users: DataFrame, taxes: DataFrame) -> DataFrame:
    joined = orders.join(users, orders.uid == users.id).join(taxes, "country", "left")
    return joined.groupBy("uid").agg(F.sum("tax").alias("t"))


@shape("country", "country")
def three_tables_by_the_middle(orders: DataFrame, users: DataFrame, taxes: DataFrame) -> DataFrame:
    joined = orders.join(users, orders.uid == users.id).join(taxes, "country")
    return joined.groupBy("country").agg(F.sum("amt").alias("t"), F.max("tax").alias("m"))


@shape("n")
def count_of_counts(orders: DataFrame) -> DataFrame:
    return orders.groupBy("uid").agg(F.count("*").alias("n")).groupBy("n").agg(F.count("*").alias("users"))


@shape("oid")
def rank_over_everything(orders: DataFrame) -> DataFrame:
    return orders.select("oid", F.row_number().over(Window.orderBy("amt", "oid")).alias("place"))


@shape("oid")
def first_five(orders: DataFrame) -> DataFrame:
    return orders.orderBy("amt", "oid").limit(5).select("oid", "amt")


@shape("oid id")
def cross_join(orders: DataFrame, users: DataFrame) -> DataFrame:
    return orders.where("amt = 1").crossJoin(users).select("oid", "id")


@shape("oid")
def above_average(orders: DataFrame) -> DataFrame:
    return sql("SELECT oid, amt FROM {orders} WHERE amt > (SELECT avg(amt) FROM {orders})", orders=orders)


@shape("id")
def full_join(orders: DataFrame, users: DataFrame) -> DataFrame:
    spent = orders.groupBy(F.col("uid").cast("long").alias("id")).agg(F.sum("amt").alias("spent"))
    return spent.join(users, "id", "full")


@shape("country name level")
def rolled_up(users: DataFrame) -> DataFrame:
    total = users.rollup("country", "name").agg(F.count("*").alias("n"), F.grouping_id().alias("level"))
    return total


@shape("what", "")
def grand_total(orders: DataFrame) -> DataFrame:
    return orders.agg(F.lit("all").alias("what"), F.count("*").alias("n"), F.sum("amt").alias("s"))
