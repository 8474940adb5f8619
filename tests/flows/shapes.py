"""Queries over a few small tables, each as a view: `test_shapes.py` keeps them current and compares."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from penstock.change import OP
from penstock.joins import VERSION, WRITTEN, TableVersions, as_of, with_versions

Row = dict[str, Any]

TABLES = {
    "orders": "oid int, uid int, amt int, price double",
    "users": "id bigint, name string, country string",
    "taxes": "country string, tax int",
    "rates": f"{VERSION} int, uid int, since int, rate int, {OP} tinyint, {WRITTEN} int",
}
KEYS = {"orders": "oid", "users": "id", "taxes": "country", "rates": VERSION}
_COUNTRIES = ["NL", "DE", "FR", "IT"]


def row(table: str, rng: random.Random) -> Row:
    """A row whose values meet those of other rows often, and are null now and then."""
    if table == "orders":
        price = rng.choice([0.1, 0.2, -0.0, 0.0, float("nan"), None])
        return {"oid": rng.randrange(14), "uid": _maybe(rng, 8), "amt": _maybe(rng, 6), "price": price}
    if table == "users":
        return {"id": rng.randrange(8), "name": rng.choice("ab"), "country": rng.choice([*_COUNTRIES[:3], None])}
    if table == "rates":
        held = {"uid": _maybe(rng, 8), "since": _maybe(rng, 6), "rate": rng.randrange(9)}
        return {VERSION: rng.randrange(30), **held, OP: int(rng.random() < 0.2), WRITTEN: rng.randrange(6)}
    return {"country": rng.choice(_COUNTRIES), "tax": _maybe(rng, 5)}


def _maybe(rng: random.Random, below: int) -> int | None:
    return None if rng.random() < 0.1 else rng.randrange(below)


@dataclass(frozen=True)
class Shape:
    """A query, the key of its rows, and the columns of a unit, with a star if it does not show them; none: it has no
    unit, and is computed whole."""

    name: str
    key: tuple[str, ...]
    unit: tuple[str, ...]
    inputs: tuple[str, ...]
    function: Callable[..., DataFrame]
    added: bool = False
    """It is kept by adding."""
    first: bool = False
    """It reads the first rows of its input, by an index."""


SHAPES: list[Shape] = []


Function = Callable[..., DataFrame]


def shape(key: str, unit: str = "", *, added: bool = False, first: bool = False) -> Callable[[Function], Function]:
    def add(function: Function) -> Function:
        inputs = function.__code__.co_varnames[: function.__code__.co_argcount]
        SHAPES.append(Shape(function.__name__, tuple(key.split()), tuple(unit.split()), inputs, function, added, first))
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


@shape("uid", "uid", added=True)
def having(orders: DataFrame) -> DataFrame:
    return sql("SELECT uid, sum(amt) s FROM {orders} GROUP BY uid HAVING sum(amt) > 5", orders=orders)


@shape("price", "price", added=True)
def by_float(orders: DataFrame) -> DataFrame:
    return orders.groupBy("price").agg(F.count("*").alias("n"))


@shape("h", "h", added=True)
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


@shape("oid", first=True)
def first_five(orders: DataFrame) -> DataFrame:
    return orders.orderBy("amt", "oid").limit(5).select("oid", "amt")


@shape("oid id")
def cross_join(orders: DataFrame, users: DataFrame) -> DataFrame:
    return orders.where("amt = 1").crossJoin(users).select("oid", "id")


@shape("oid")
def above_average(orders: DataFrame) -> DataFrame:
    return sql("SELECT oid, amt FROM {orders} WHERE amt > (SELECT avg(amt) FROM {orders})", orders=orders)


@shape("id", "id")
def full_join(orders: DataFrame, users: DataFrame) -> DataFrame:
    spent = orders.groupBy(F.col("uid").cast("long").alias("id")).agg(F.sum("amt").alias("spent"))
    return spent.join(users, "id", "full")


@shape("country name level", "country name level", added=True)
def rolled_up(users: DataFrame) -> DataFrame:
    return users.rollup("country", "name").agg(F.count("*").alias("n"), F.grouping_id().alias("level"))


@shape("what", "", added=True)
def grand_total(orders: DataFrame) -> DataFrame:
    return orders.agg(F.lit("all").alias("what"), F.count("*").alias("n"), F.sum("amt").alias("s"))


@shape("a id", "a id")
def cube_beside_its_rows(orders: DataFrame, users: DataFrame) -> DataFrame:
    """Two grouping sets, joined above with a table."""
    query = """SELECT grouping(amt) a, uid id, sum(price) p, first(name) name
               FROM {orders} JOIN {users} ON uid = id WHERE amt IS NOT NULL
               GROUP BY GROUPING SETS ((uid, amt), (uid)) HAVING a = 1"""
    return sql(query, orders=orders, users=users)


@shape("country name c n", "country name c n")
def cubed(users: DataFrame) -> DataFrame:
    counted = users.cube("country", "name")
    return counted.agg(F.grouping("country").alias("c"), F.grouping("name").alias("n"), F.max("id").alias("m"))


@shape("id", "id")
def full_join_of_tables(orders: DataFrame, users: DataFrame) -> DataFrame:
    most = orders.groupBy(F.col("uid").alias("id")).agg(F.max("amt").alias("most"))
    return most.join(users.where("name = 'a'"), "id", "full")


@shape("country id", "country id")
def full_join_of_two_columns(users: DataFrame, taxes: DataFrame) -> DataFrame:
    taxed = taxes.select("country", F.col("tax").cast("long").alias("id"), (F.col("tax") * 2).alias("twice"))
    return users.join(taxed.dropDuplicates(["country", "id"]), ["country", "id"], "full")


@shape("x", "x")
def full_join_and_another(orders: DataFrame, users: DataFrame, taxes: DataFrame) -> DataFrame:
    query = """SELECT coalesce(o.k, u.k) x, o.n, u.m, t.m most
               FROM (SELECT amt k, count(*) n FROM {orders} GROUP BY amt) o
               FULL JOIN (SELECT CAST(id AS INT) k, max(name) m FROM {users} GROUP BY id) u ON o.k = u.k
               LEFT JOIN (SELECT tax, max(country) m FROM {taxes} GROUP BY tax) t ON coalesce(o.k, u.k) = t.tax"""
    return sql(query, orders=orders, users=users, taxes=taxes)


@shape("x", "x")
def intersected_all(orders: DataFrame, users: DataFrame) -> DataFrame:
    both = orders.select(F.col("uid").cast("long").alias("x")).intersectAll(users.select("id"))
    return both.groupBy("x").agg(F.count("*").alias("n"))


@shape("x", "x")
def subtracted_all(orders: DataFrame, users: DataFrame) -> DataFrame:
    rest = orders.select(F.col("uid").cast("long").alias("x")).exceptAll(users.select("id"))
    return rest.groupBy("x").agg(F.count("*").alias("n"))


@shape("kind x", "kind x")
def union_of_kinds(orders: DataFrame, users: DataFrame) -> DataFrame:
    bought = orders.select(F.lit("order").alias("kind"), F.col("oid").cast("long").alias("x"), "amt")
    known = users.select(F.lit("user").alias("kind"), F.col("id").alias("x"), F.lit(None).cast("int").alias("amt"))
    return bought.unionByName(known)


@shape("country", "country", added=True)
def union_of_countries(users: DataFrame, taxes: DataFrame) -> DataFrame:
    query = """SELECT country, count(*) n FROM (SELECT country FROM {users} UNION ALL SELECT country FROM {taxes})
               GROUP BY country"""
    return sql(query, users=users, taxes=taxes)


@shape("id", "id")
def semi_and_anti_join(orders: DataFrame, users: DataFrame) -> DataFrame:
    query = """SELECT * FROM {users} u WHERE EXISTS (SELECT 1 FROM {orders} o WHERE o.uid = u.id AND amt > 2)
               AND NOT EXISTS (SELECT 1 FROM {orders} o WHERE o.uid = u.id AND amt = 0)"""
    return sql(query, orders=orders, users=users)


@shape("oid", "oid")
def pricing_summary(orders: DataFrame, users: DataFrame, taxes: DataFrame) -> DataFrame:
    """TPC-H 3: three tables in a row, one line for each order."""
    query = """SELECT oid, country, sum(amt * (1 + tax)) revenue FROM {orders} JOIN {users} ON uid = id
               JOIN {taxes} USING (country) WHERE name = 'a' GROUP BY oid, country"""
    return sql(query, orders=orders, users=users, taxes=taxes)


@shape("country", "country")
def local_supplier_volume(orders: DataFrame, users: DataFrame, taxes: DataFrame) -> DataFrame:
    """TPC-H 5: revenue by country, for those with a tax."""
    query = """SELECT country, sum(amt) revenue, avg(price) price FROM {orders}, {users} JOIN {taxes} USING (country)
               WHERE uid = id AND tax > 1 GROUP BY country HAVING sum(amt) >= 0"""
    return sql(query, orders=orders, users=users, taxes=taxes)


@shape("n")
def customer_distribution(orders: DataFrame, users: DataFrame) -> DataFrame:
    """TPC-H 13: how many users have how many orders."""
    query = """SELECT n, count(*) users FROM (SELECT id, count(oid) n FROM {users} LEFT JOIN {orders} ON uid = id
               GROUP BY id) GROUP BY n"""
    return sql(query, orders=orders, users=users)


@shape("id", "id")
def large_volume_customers(orders: DataFrame, users: DataFrame) -> DataFrame:
    """TPC-H 18: users whose orders sum up to much, with their orders."""
    query = """SELECT id, name, count(*) n, sum(amt) s FROM {users} JOIN {orders} ON uid = id
               WHERE uid IN (SELECT uid FROM {orders} GROUP BY uid HAVING sum(amt) > 4) GROUP BY id, name"""
    return sql(query, orders=orders, users=users)


@shape("oid", "oid")
def small_quantity_orders(orders: DataFrame) -> DataFrame:
    """TPC-H 17: orders below the average of their user."""
    query = """SELECT oid, amt FROM {orders} o
               WHERE amt < (SELECT avg(amt) FROM {orders} i WHERE i.uid = o.uid)"""
    return sql(query, orders=orders)


@shape("country")
def important_stock(orders: DataFrame, users: DataFrame) -> DataFrame:
    """TPC-H 11: groups above a share of everything."""
    query = """SELECT country, sum(amt) s FROM {orders} JOIN {users} ON uid = id GROUP BY country
               HAVING sum(amt) > (SELECT sum(amt) * 0.3 FROM {orders})"""
    return sql(query, orders=orders, users=users)


@shape("id", "id")
def waiting_users(orders: DataFrame, users: DataFrame) -> DataFrame:
    """TPC-H 22: rich users without orders."""
    query = """SELECT id, country FROM {users} u LEFT ANTI JOIN {orders} o ON o.uid = u.id AND o.amt > 1
               WHERE country IN ('NL', 'DE')"""
    return sql(query, orders=orders, users=users)


@shape("name country", "name country")
def conditional_counts(orders: DataFrame, users: DataFrame) -> DataFrame:
    """TPC-H 12: counts of cases."""
    cases = [F.sum(F.when(F.col("amt") > 2, 1).otherwise(0)).alias("high"), F.count_if(F.col("amt") <= 2).alias("low")]
    return users.join(orders, orders.uid == users.id, "left").groupBy("name", "country").agg(*cases)


@shape("uid", "uid")
def first_and_last(orders: DataFrame) -> DataFrame:
    first, last = F.min_by("amt", "oid"), F.max_by("amt", "oid")
    return orders.groupBy("uid").agg(first.alias("first"), last.alias("last"), F.collect_list("oid").alias("all"))


@shape("uid", "uid")
def share_of_the_group(orders: DataFrame) -> DataFrame:
    query = """SELECT uid, max(share) share FROM (SELECT uid, amt / sum(amt) OVER (PARTITION BY uid) share
               FROM {orders} WHERE amt > 0) GROUP BY uid"""
    return sql(query, orders=orders)


@shape("oid", "uid")
def next_order(orders: DataFrame) -> DataFrame:
    by = Window.partitionBy("uid").orderBy("oid")
    return orders.select("oid", "uid", F.lead("oid").over(by).alias("next"), F.ntile(2).over(by).alias("half"))


@shape("oid", "uid")
def moving_sum(orders: DataFrame) -> DataFrame:
    by = Window.partitionBy("uid").orderBy("oid").rowsBetween(-1, 1)
    return orders.select("oid", "uid", F.sum("amt").over(by).alias("s")).where("s IS NOT NULL")


@shape("id place", "country")
def top_with_join(orders: DataFrame, users: DataFrame) -> DataFrame:
    query = """SELECT id, country, place FROM (SELECT id, country, row_number() OVER (PARTITION BY country ORDER BY
               sum(amt) DESC, id) place FROM {users} JOIN {orders} ON uid = id GROUP BY id, country) WHERE place < 3"""
    return sql(query, orders=orders, users=users)


@shape("country", "country")
def best_of_each(users: DataFrame, orders: DataFrame) -> DataFrame:
    spent = orders.groupBy("uid").agg(F.sum("amt").alias("s"))
    return (
        users.join(spent, users.id == spent.uid).groupBy("country").agg(F.max_by("id", F.struct("s", "id")).alias("b"))
    )


@shape("uid x", "uid")
def exploded(orders: DataFrame) -> DataFrame:
    return orders.select("uid", F.explode(F.sequence(F.lit(0), "amt")).alias("x")).distinct()


@shape("uid what", "uid what")
def unpivoted(orders: DataFrame) -> DataFrame:
    summed = orders.groupBy("uid").agg(F.sum("amt").alias("amt"), F.count("*").cast("long").alias("n"))
    return summed.unpivot("uid", ["amt", "n"], "what", "value")


@shape("name", "name")
def pivot_of_a_join(orders: DataFrame, users: DataFrame) -> DataFrame:
    joined = orders.join(users, orders.uid == users.id)
    return joined.groupBy("name").pivot("country", ["NL", "DE"]).agg(F.sum("amt"))


@shape("uid", "uid")
def two_distinct_counts(orders: DataFrame) -> DataFrame:
    return orders.groupBy("uid").agg(F.countDistinct("amt").alias("a"), F.countDistinct("price").alias("p"))


@shape("a b", "a")
def pairs_of_a_country(users: DataFrame) -> DataFrame:
    query = """SELECT a.id a, b.id b FROM {users} a JOIN {users} b ON a.country <=> b.country AND a.id < b.id"""
    return sql(query, users=users)


@shape("id", "id")
def chain_of_left_joins(users: DataFrame, taxes: DataFrame, orders: DataFrame) -> DataFrame:
    query = """SELECT u.id, t.tax, o.n FROM {users} u LEFT JOIN {taxes} t ON u.country = t.country
               LEFT JOIN (SELECT uid, count(*) n FROM {orders} GROUP BY uid) o ON o.uid = u.id"""
    return sql(query, users=users, taxes=taxes, orders=orders)


@shape("id")
def lateral_best(orders: DataFrame, users: DataFrame) -> DataFrame:
    """Spark makes a null-safe join above an outer one of it, through which no mark is let: whole."""
    query = """SELECT u.id, o.m FROM {users} u JOIN LATERAL (SELECT max(amt) m FROM {orders} WHERE uid = u.id) o"""
    return sql(query, orders=orders, users=users)


@shape("id", "id")
def scalars_of_two_tables(orders: DataFrame, users: DataFrame, taxes: DataFrame) -> DataFrame:
    query = """SELECT id, (SELECT sum(amt) FROM {orders} WHERE uid = id) s,
               (SELECT max(tax) FROM {taxes} t WHERE t.country = u.country) t FROM {users} u"""
    return sql(query, orders=orders, users=users, taxes=taxes)


@shape("country", "country")
def nested_views(orders: DataFrame, users: DataFrame) -> DataFrame:
    """A view of a view of a view, as one query."""
    spent = orders.groupBy("uid").agg(F.sum("amt").alias("s"))
    buyers = users.join(spent, users.id == spent.uid).where("s > 1")
    return buyers.groupBy("country").agg(F.sum("s").alias("s"), F.count("*").alias("n")).where("n < 4")


@shape("oid", "oid")
def range_join(orders: DataFrame, users: DataFrame) -> DataFrame:
    query = """SELECT oid, count(id) n FROM {orders} LEFT JOIN {users} ON uid = id AND amt > id GROUP BY oid"""
    return sql(query, orders=orders, users=users)


@shape("oid")
def median_over_everything(orders: DataFrame) -> DataFrame:
    return sql("SELECT oid, amt - (SELECT median(amt) FROM {orders}) d FROM {orders}", orders=orders)


@shape("h", "h")
def grouped_by_a_function(users: DataFrame) -> DataFrame:
    query = "SELECT concat(country, '/', upper(name)) h, collect_set(id) ids FROM {users} GROUP BY 1"
    return sql(query, users=users).select("h", F.array_sort("ids").alias("ids"))


@shape("uid", "uid", added=True)
def filled_up(orders: DataFrame) -> DataFrame:
    return orders.fillna({"uid": -1, "amt": 0}).groupBy("uid").agg(F.sum("amt").alias("s"))


@shape("id", "id")
def newest_of_duplicates(orders: DataFrame) -> DataFrame:
    query = """SELECT uid id, amt FROM {orders} WHERE uid IS NOT NULL
               QUALIFY row_number() OVER (PARTITION BY uid ORDER BY oid DESC) = 1"""
    return sql(query, orders=orders)


@shape("uid", "uid", added=True)
def sums_and_averages(orders: DataFrame) -> DataFrame:
    """Each type that is added up, with what makes a sum of nothing."""
    query = """SELECT uid, sum(CAST(amt AS BIGINT)) l, avg(amt) a, sum(CAST(amt AS DECIMAL(9, 2)) / 4) d,
               avg(CAST(amt AS DECIMAL(5, 1)) / 7) e, count(amt) c, count_if(amt > 2) i, count(price, amt) b
               FROM {orders} GROUP BY uid"""
    return sql(query, orders=orders)


@shape("uid", "uid", added=True)
def sums_of_some(orders: DataFrame) -> DataFrame:
    query = """SELECT concat('u', u) who, uid, s * 2 + n twice FROM (
                 SELECT uid, uid + 1 u, sum(amt) FILTER (WHERE price < 0.2) s, count(*) FILTER (WHERE amt > 1) n
                 FROM {orders} WHERE oid > 2 GROUP BY uid) WHERE n < 3"""
    return sql(query, orders=orders)


@shape("what", "", added=True)
def grand_total_of_some(orders: DataFrame) -> DataFrame:
    query = """SELECT 1 what, sum(amt) s, avg(CAST(amt AS DECIMAL(9, 2))) a, count(*) n FROM {orders} WHERE amt > 4
               HAVING count(*) <> 1"""
    return sql(query, orders=orders)


@shape("uid", "uid", added=True)
def pivot_of_sums(orders: DataFrame) -> DataFrame:
    return orders.groupBy("uid").agg(F.sum(F.when(F.col("amt") > 2, 1).otherwise(0)).alias("many"))


@shape("uid", "uid")
def sum_that_may_overflow(orders: DataFrame) -> DataFrame:
    """Decimals of so many digits that Spark's own sum of some rows may have no room for them."""
    return sql("SELECT uid, sum(CAST(amt AS DECIMAL(30, 2))) s FROM {orders} GROUP BY uid", orders=orders)


@shape("oid", first=True)
def first_by_a_float(orders: DataFrame) -> DataFrame:
    """NaN is the largest, zero has no sign, null is the smallest; of equal ones the index has no order."""
    return orders.orderBy(F.desc("price"), F.col("amt") % 2, "oid").limit(4).drop("amt")


@shape("id", first=True)
def first_of_some(users: DataFrame) -> DataFrame:
    query = """SELECT id, upper(who) FROM (SELECT country land, name who, id FROM {users} WHERE id <> 3 AND name < 'b'
               ORDER BY country DESC, id LIMIT 3) WHERE land <> 'DE'"""
    return sql(query, users=users).toDF("id", "who")


@shape("oid")
def first_with_nulls_last(orders: DataFrame) -> DataFrame:
    return orders.orderBy(F.asc_nulls_last("amt"), "oid").limit(3)


@shape("oid", "uid*")
def place_among_those_of_a_user(orders: DataFrame) -> DataFrame:
    """The user is not shown: it is carried beside the rows."""
    return orders.select("oid", F.row_number().over(Window.partitionBy("uid").orderBy("amt", "oid")).alias("place"))


@shape("oid", "country*")
def share_of_a_country(orders: DataFrame, users: DataFrame) -> DataFrame:
    query = """SELECT oid, place * 2 twice FROM (SELECT oid, amt, rank() OVER (PARTITION BY country ORDER BY amt, oid)
               place FROM {orders} JOIN {users} ON uid = id) WHERE amt > 1 AND place < 4"""
    return sql(query, orders=orders, users=users)


def _at(orders: DataFrame, rates: DataFrame, at: str) -> DataFrame:
    """Orders with the rate of their user, by a number that stands for a time; `rates` holds versions."""
    versions = TableVersions(rates, "rates", ("uid",), ("uid", "since", "rate"), "`since`")
    return as_of(orders, with_versions(rates, versions), on="uid", at=at)


@shape("oid", "oid")
def as_of_a_time(orders: DataFrame, rates: DataFrame) -> DataFrame:
    return _at(orders, rates, "amt").select("oid", "uid", "since", "rate")


@shape("uid", "uid")
def sum_as_of_a_time(orders: DataFrame, rates: DataFrame) -> DataFrame:
    return _at(orders, rates, "amt").groupBy("uid").agg(F.sum(F.col("amt") * F.col("rate")).alias("s"))


@shape("oid", "oid")
def as_of_when_it_came(orders: DataFrame, rates: DataFrame) -> DataFrame:
    came = orders.withColumn("_received", F.col("amt"))
    return _at(came, rates, "_received").select("oid", "rate")


@shape("oid", "oid")
def left_join_within_a_bound(orders: DataFrame, rates: DataFrame) -> DataFrame:
    soon = F.expr("o.uid = r.uid AND r.since BETWEEN o.amt AND o.amt + 2")
    both = orders.alias("o").join(rates.alias("r"), soon, "left")
    return both.groupBy("oid", "amt").agg(F.count("rate").alias("n"), F.min("since").alias("first"))


@shape("oid", "oid")
def anti_join_within_a_bound(orders: DataFrame, rates: DataFrame) -> DataFrame:
    soon = F.expr("o.uid = r.uid AND r.since BETWEEN o.amt AND o.amt + 2")
    return orders.alias("o").join(rates.alias("r"), soon, "left_anti").select("oid", "amt")


@shape("oid", "oid")
def semi_join_within_a_bound(orders: DataFrame, rates: DataFrame) -> DataFrame:
    soon = F.expr("o.uid = r.uid AND r.since BETWEEN o.amt AND o.amt + 2")
    return orders.alias("o").join(rates.alias("r"), soon, "left_semi").select("oid", "amt")
