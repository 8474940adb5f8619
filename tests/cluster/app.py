"""An app whose functions need what only a cluster can get wrong: a module of the project, state, a view over a view."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from shouting import shouted

from penstock import App, Event

app = App("clustered")


class Word(Event):
    word: str
    n: int


words = app.stream("words", Word, key="word", id="n", topic=True)


@app.view(key="word", topic=True)
def counts(words: DataFrame) -> DataFrame:
    """How often each word came, as a Python function of the project writes it."""
    loud = F.udf(shouted, "string")
    return (
        words.select(loud("word").alias("word"), "n")
        .groupBy("word")
        .agg(F.count("*").alias("c"), F.sum("n").alias("s"))
    )


@app.view(key="c")
def ranks(counts: DataFrame) -> DataFrame:
    """How many words came so often."""
    return counts.groupBy("c").agg(F.count("*").alias("words"))
