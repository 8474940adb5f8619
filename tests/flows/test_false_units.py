"""Columns that look like units and are none: what Spark calls equal has other bytes, or a null has partners."""

from __future__ import annotations

from collections.abc import Callable

from penstock import App, Event
from penstock.flows.plan import Planner
from tests.flows.world import World

EITHER = """
    SELECT l.id, c.id AS c, c.name FROM (SELECT a.id, b.word FROM a LEFT JOIN b ON a.id = b.id) l
    JOIN c ON l.word <=> c.word
"""


class Word(Event):
    id: int
    word: str | None
    name: str = ""


def words() -> App:
    app = App("words")
    for name in ("a", "b", "c"):
        app.table(name, Word, key="id")
    app.sql("alike", key="word", query="SELECT word COLLATE UTF8_LCASE AS word, count(*) AS n FROM a GROUP BY 1")
    app.sql("either", key=["id", "c"], query=EITHER)
    return app


def test_texts_that_are_compared_by_a_collation_and_nulls_that_are_joined_stay_right(
    world: Callable[[App], World],
) -> None:
    played = world(words())
    planned, _ = Planner(played.spark, played.app, played.folder).plan_all()
    assert planned["alike"].how == "whole"
    played.change("a", [[Word(id=1, word="x"), Word(id=2, word="X"), Word(id=3, word="y")]])
    played.change("b", [[Word(id=1, word="one")]])
    played.change("c", [[Word(id=7, word=None, name="none"), Word(id=8, word="one", name="one")]])
    played.run()
    assert {row["word"].lower(): row["n"] for row in played.rows("alike")} == {"x": 2, "y": 1}
    assert {(row["id"], row["c"]) for row in played.rows("either")} == {(1, 8), (2, 7), (3, 7)}
    played.change("a", [[Word(id=3, word="x")]])
    played.change("b", [[(1,)]])
    played.change("c", [[Word(id=7, word=None, name="nothing")]])
    played.run()
    assert {row["word"].lower(): row["n"] for row in played.rows("alike")} == {"x": 3}
    assert {(row["id"], row["c"], row["name"]) for row in played.rows("either")} == {
        (1, 7, "nothing"), (2, 7, "nothing"), (3, 7, "nothing"),
    }  # fmt: skip
    assert {report.result for report in played.verify().values()} == {"equal"}
