"""What was made of a query is given to who asks the same, and to nobody who asks or may see something else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fake_flows import small_app

from penstock.change import Column
from penstock.config import Limits
from penstock.errors import BadQueryError, ForbiddenError
from penstock.serve import question
from penstock.serve.question import Question
from penstock.views.read_rule import ReadRule, RuleCondition
from penstock.views.store import Content, View

COLUMNS = (Column("topic", "string"), Column("rsvps", "bigint"), Column("open", "boolean"))


@pytest.fixture
def served() -> tuple[View, Content]:
    definition = small_app().declared().view("topics")
    assert definition is not None
    return View(definition, Limits()), Content("topics", "e", COLUMNS, ("topic",), None, 0, Limits())


def test_who_asks_the_same_again_gets_what_was_made_of_it(served: tuple[View, Content]) -> None:
    first = Question("rsvps > :n", select=["rsvps"], params={"n": 1}).query(*served)
    assert Question("rsvps > :n", select=["rsvps"], params={"n": 1}).query(*served) is first
    others: list[dict[str, Any]] = [{"params": {"n": 2}}, {"select": "rsvps,open"}, {"order_by": "rsvps"}, {"limit": 1}]
    for other in others:
        assert replace(Question("rsvps > :n", ["rsvps"], params={"n": 1}), **other).query(*served) != first, other


def test_values_that_only_python_finds_equal_are_not_taken_for_each_other(served: tuple[View, Content]) -> None:
    assert Question("rsvps = :n", params={"n": 1}).query(*served).passes(("a", 1, True))
    with pytest.raises(BadQueryError):
        Question("rsvps = :n", params={"n": True}).query(*served)
    Question(limit=1).query(*served)
    with pytest.raises(BadQueryError):
        Question(limit=True).query(*served)


def test_a_query_is_never_given_to_who_may_see_less(served: tuple[View, Content]) -> None:
    Question("rsvps > 1", rule=ReadRule()).query(*served)
    narrow = ReadRule((RuleCondition("topic = :sub", (("sub", "a"),)),))
    other = ReadRule((RuleCondition("topic = :sub", (("sub", "b"),)),))
    assert not Question("rsvps > 1", rule=narrow).query(*served).passes(("b", 2, True))
    assert Question("rsvps > 1", rule=other).query(*served).passes(("b", 2, True))
    with pytest.raises(ForbiddenError):
        Question("rsvps > 1", rule=ReadRule(columns=frozenset({"topic"}))).query(*served)


def test_what_is_kept_is_bounded(served: tuple[View, Content]) -> None:
    for n in range(2 * question.KNOWN_QUERIES):
        Question(limit=n).query(*served)
    kept = dict(served[1].queries)
    assert len(kept) == question.KNOWN_QUERIES
    Question(f"topic = '{'x' * question.KNOWN_CHARACTERS}'").query(*served)
    assert served[1].queries == kept, "a long one is not kept, and takes nobody's place"
