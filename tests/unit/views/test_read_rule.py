"""A rule is joined to what is asked by AND, sees rows first, and hides columns from all that could tell of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from penstock.change import Column
from penstock.errors import BadQueryError, ForbiddenError
from penstock.views.read_query import evaluate
from penstock.views.read_rule import EVERYTHING, ReadRule, RuleCondition, claims_in, parse_ruled, read_rule

COLUMNS = [Column("id", "bigint"), Column("owner", "string"), Column("secret", "string"), Column("Secret2", "bigint")]
ROWS: dict[Any, Any] = {(1,): (1, "ann", "x", 5), (2,): (2, "bob", "y", 0), (3,): (3, None, "z", 7)}


@dataclass
class Someone:
    name: str = "ann"
    claims: dict[str, Any] = field(default_factory=lambda: {"sub": "ann"})
    sees_all: bool = False
    listed: frozenset[str] | None = None

    def columns(self, name: str) -> frozenset[str] | None:
        return self.listed


def ids(rule: ReadRule, **asked: Any) -> list[int]:
    return [row[0] for row in evaluate(parse_ruled(rule, COLUMNS, ["id"], **asked), ROWS)]


MINE = read_rule(Someone(), "orders", "owner = :sub")


def test_a_condition_and_the_readers_own_are_both_demanded():
    assert ids(MINE) == [1]
    assert ids(MINE, where="owner = 'bob' OR true") == [1]
    assert ids(MINE, where="id > 1") == []
    assert ids(EVERYTHING, where="id > 1") == [2, 3]


def test_a_null_is_nobodys():
    assert ids(ReadRule((RuleCondition("owner <> :sub", (("sub", "ann"),)),))) == [2]


def test_hidden_rows_do_not_reach_the_readers_condition():
    errors = [0]
    assert ids(MINE, where="1 / Secret2 > 0", errors=errors) == [1]
    assert errors == [0], "the row of bob would divide by zero"


def test_an_administrator_is_not_filtered_but_a_channels_own_filter_holds():
    admin = Someone("admin", {}, sees_all=True)
    assert ids(read_rule(admin, "orders", "owner = :sub")) == [1, 2, 3]
    assert ids(read_rule(admin, "few", "owner = :sub", where="id < 3")) == [1, 2]
    assert ids(read_rule(Someone(), "few", "owner = :sub", where="id < 3")) == [1]


def test_who_lacks_the_claim_is_refused_by_its_name():
    with pytest.raises(ForbiddenError, match="no claim 'sub'"):
        read_rule(Someone(claims={"Sub": "ann", "sub ": "ann", "sub": None}), "orders", "owner = :sub")
    with pytest.raises(ForbiddenError, match="neither a text"):
        read_rule(Someone(claims={"sub": {"a": 1}}), "orders", "owner = :sub")


def test_a_claim_that_cannot_be_compared_shows_nothing():
    rule = read_rule(Someone(), "orders", "id = :sub")
    with pytest.raises(ForbiddenError, match="cannot be decided"):
        ids(rule)
    assert ids(read_rule(Someone(claims={"sub": "2"}), "orders", "id = :sub")) == [2]
    assert ids(read_rule(Someone(claims={"sub": 2}), "orders", "id = :sub")) == [2]


def test_a_condition_over_a_column_that_is_gone_shows_nothing():
    with pytest.raises(ForbiddenError, match="cannot be decided"):
        ids(ReadRule((RuleCondition("tenant = 'x'"),)))


def test_a_list_claim_is_used_with_any():
    rule = read_rule(Someone(claims={"owners": ["bob", "carol"]}), "orders", "owner = ANY(:owners)")
    assert ids(rule) == [2]
    assert ids(read_rule(Someone(claims={"owners": []}), "orders", "owner = ANY(:owners)")) == []


def test_a_clients_parameter_of_the_same_name_is_another():
    assert ids(MINE, where="owner = :sub", params={"sub": "bob"}) == []
    assert ids(MINE, where="owner <> :sub", params={"sub": "bob"}) == [1]


def test_equal_rules_make_equal_queries_and_others_do_not():
    def query(sub: str) -> Any:
        return parse_ruled(read_rule(Someone(claims={"sub": sub}), "o", "owner = :sub"), COLUMNS, ["id"])

    assert query("ann") == query("ann")
    assert query("ann") != query("bob")
    assert query("ann") != parse_ruled(EVERYTHING, COLUMNS, ["id"])


LISTED = ReadRule(columns=frozenset({"id", "owner"}))


def test_hidden_columns_are_not_given_whatever_is_selected():
    for select in (None, "*", ["*"], "owner", ["owner", "id"]):
        query = parse_ruled(LISTED, COLUMNS, ["id"], select=select)
        assert {column.name for column in query.output} == {"id", "owner"}


@pytest.mark.parametrize(
    "asked",
    [
        {"where": "secret = 'x'"},
        {"where": "SECRET = 'x'"},
        {"where": "secret2 > 1"},
        {"where": "id = 1 OR secret IS NULL"},
        {"select": "secret"},
        {"select": ["id", "SECRET"]},
        {"order_by": "-secret"},
        {"order_by": "Secret2"},
        {"where": "secret = :x", "params": {"x": "x"}},
    ],
)
def test_hidden_columns_may_not_be_named(asked):
    with pytest.raises(ForbiddenError, match="does not include"):
        parse_ruled(LISTED, COLUMNS, ["id"], **asked)


@pytest.mark.parametrize(
    "asked", [{"where": "nope = 1"}, {"select": "nope"}, {"order_by": "nope"}, {"where": "secret + 1"}]
)
def test_errors_name_no_hidden_column(asked):
    with pytest.raises(BadQueryError) as caught:
        parse_ruled(LISTED, COLUMNS, ["id"], **asked)
    assert "Secret2" not in f"{caught.value.message} {caught.value.hint}"


def test_a_name_in_another_case_does_not_reach_a_hidden_column():
    columns = [Column("id", "bigint"), Column("total", "bigint"), Column("TOTAL", "bigint")]
    rule = ReadRule(columns=frozenset({"id", "total"}))
    with pytest.raises(ForbiddenError):
        parse_ruled(rule, columns, ["id"], where="TOTAL = 1")
    assert parse_ruled(rule, columns, ["id"], where="total = 1").reads == {"id", "total"}


def test_a_default_order_by_a_hidden_column_is_left_out():
    query = parse_ruled(LISTED, COLUMNS, ["id"], defaults=(("-secret", "owner"), 2))
    assert ([str(item) for item in query.order_by], query.limit) == (["owner"], 2)


def test_a_list_without_the_key_is_refused():
    with pytest.raises(ForbiddenError, match="'id'"):
        parse_ruled(ReadRule(columns=frozenset({"owner"})), COLUMNS, ["id"])


def test_the_rule_itself_may_use_a_hidden_column():
    rule = ReadRule((RuleCondition("secret = 'x'"),), frozenset({"id"}))
    assert ids(rule) == [1]


def test_claims_are_those_that_a_condition_names():
    assert claims_in("a = :x AND (b = ANY(:y) OR ':z' = c) AND :x <> 'q'") == ("x", "y")
