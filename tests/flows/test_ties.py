"""Whether an order tells rows apart: by a key of them, by what a join makes equal to it, or not."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from penstock.flows import plan_tree
from penstock.flows.regroup.ties import ties
from penstock.flows.regroup.units import relation

POSTS = "id bigint, author int, text string"
FOLLOWS = "reader int, author bigint, since int"
PLACE = "row_number() OVER (PARTITION BY {by} ORDER BY {order}) AS place"


def sharing(spark: SparkSession, query: str) -> bool:
    """Whether rows of posts, known by id, and of follows, known by reader and author, may share an order."""
    frames = {"posts": relation(spark, POSTS), "follows": relation(spark, FOLLOWS)}
    keys = {"posts": ("id",), "follows": ("reader", "author")}
    relations = {plan_tree.analyzed(frame).rdd().id(): keys[name] for name, frame in frames.items()}
    return bool(list(ties(plan_tree.analyzed(spark.sql(query, **frames)), relations)))


@pytest.mark.parametrize(
    ("by", "order", "source", "shared"),
    [
        ("author", "id", "{posts}", False),
        ("author", "text", "{posts}", True),
        ("f.reader", "p.id", "{posts} p JOIN {follows} f ON p.author = f.author", False),
        ("f.reader", "p.text", "{posts} p JOIN {follows} f ON p.author = f.author", True),
        ("f.reader", "p.id", "{posts} p JOIN {follows} f ON p.author < f.author", True),
        ("f.reader", "p.id", "{posts} p LEFT JOIN {follows} f ON p.author = f.author", False),
        ("p.author", "f.reader", "{posts} p LEFT JOIN {follows} f ON p.author = f.author", True),
        ("f.reader", "p.id", "{posts} p FULL JOIN {follows} f ON p.author = f.author", True),
        ("reader", "n", "(SELECT reader r, -since n, * FROM {follows} WHERE author = 7)", False),
        ("reader", "n", "(SELECT reader r, -since n, * FROM {follows})", True),
        ("a", "n", "(SELECT author a, count(*) n FROM {posts} GROUP BY author)", False),
        ("n", "a", "(SELECT author a, count(*) n FROM {posts} GROUP BY author, text)", True),
        ("text", "id", "(SELECT * FROM {posts} UNION ALL SELECT * FROM {posts})", True),
    ],
)
def test_an_order_that_fixes_what_rows_are_made_from_has_no_ties(
    spark: SparkSession, by: str, order: str, source: str, shared: bool
) -> None:
    query = f"SELECT *, {PLACE.format(by=by, order=order)} FROM {source}"
    assert sharing(spark, query) == shared


def test_a_limit_chooses_among_rows_that_share_its_order(spark: SparkSession) -> None:
    assert sharing(spark, "SELECT * FROM {posts} ORDER BY text LIMIT 3")
    assert not sharing(spark, "SELECT text, i FROM (SELECT id AS i, text FROM {posts}) ORDER BY text, i LIMIT 3")
