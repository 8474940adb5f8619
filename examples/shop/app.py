"""The shop example: what is bought together with what, and what lies in how many carts at this moment.

penstock run examples/shop/app.py          # everything
python examples/shop/customers.py          # customers who fill carts, empty them, and buy
"""

import os
from pathlib import Path

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from penstock import App, Event

app = App("shop")

PRODUCTS = os.environ.get("SHOP_PRODUCTS", f"{Path(__file__).parent.resolve()}/products.csv")
SHOWN = 3  # suggestions for a product


class Product(Event):
    """What is sold."""

    product: str
    name: str
    price: float


class InCart(Event):
    """What a customer has put into the cart and not bought yet."""

    customer: str
    product: str
    quantity: int


class Order(Event):
    order_id: int
    at: int  # milliseconds since 1970
    products: list[str]


products = app.table("products", Product, key="product")
app.pull(products, f"file://{PRODUCTS}", every="5 seconds")  # edit the file, and watch the names change
carts = app.table("carts", InCart, key=["customer", "product"])
orders = app.stream("orders", Order, key="order_id", time="at", id="order_id")


@app.view(key=["product", "other"])
def pairs(orders: DataFrame) -> DataFrame:
    """How often two products were in one order."""
    one = orders.select("products", F.explode(F.array_distinct("products")).alias("product"))
    two = one.select("product", F.explode(F.array_distinct("products")).alias("other"))
    return two.where("product <> other").groupBy("product", "other").agg(F.count("*").alias("orders"))


@app.view(key=["product", "other"], order_by=["product", "-orders"], limit=30)
def together(pairs: DataFrame, products: DataFrame) -> DataFrame:
    """Who buys this often buys that too: the three best of each product that is still sold."""
    sold = products.select(F.col("product").alias("other"), "name", "price")
    best = Window.partitionBy("product").orderBy(F.desc("orders"), "other")
    ranked = pairs.join(sold, "other").withColumn("place", F.row_number().over(best)).where(f"place <= {SHOWN}")
    return ranked.select("product", "place", "other", "name", "price", "orders")


@app.view(key="product", order_by="-carts", limit=20)
def in_carts(carts: DataFrame, products: DataFrame) -> DataFrame:
    """In how many carts each product lies now, and what all of that is worth."""
    return (
        carts.join(products, "product")
        .groupBy("product", "name", "price")
        .agg(F.count("*").alias("carts"), F.sum("quantity").alias("quantity"))
        .select("product", "name", "carts", "quantity", F.round(F.col("quantity") * F.col("price"), 2).alias("worth"))
    )
