"""Who goes alone, with whom, and what is seen of the rows meanwhile; without Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from penstock.flows.regroup.held import HeldFile, HeldRows, Shape, Table
from penstock.flows.regroup.stragglers import companies_of, company_of

INPUTS = {
    "slow": ["users"],
    "named": ["slow"],
    "beside": ["slow", "users"],
    "other": ["named", "prices"],
    "above": ["other", "users"],
    "apart": ["prices"],
    "second": ["users"],
    "both": ["slow", "second"],
}
ORDER = list(INPUTS)


def test_a_view_that_would_never_be_level_again_goes_with_the_slow_one() -> None:
    assert company_of("slow", INPUTS, ORDER, ()) == ["slow", "named", "beside", "other", "above", "both"]
    assert company_of("apart", INPUTS, ORDER, ()) == ["apart"]


def test_what_only_reads_the_slow_one_waits_for_it() -> None:
    chain = {"slow": ["users"], "named": ["slow"], "other": ["named", "prices"]}
    assert company_of("slow", chain, list(chain), ()) == ["slow"]
    assert company_of("slow", chain, list(chain), {"other"}) == ["slow", "named", "other"]


def test_two_slow_views_that_meet_go_together() -> None:
    assert companies_of(["slow", "second", "apart"], INPUTS, ORDER, ()) == [
        ["slow", "named", "beside", "other", "above", "second", "both"],
        ["apart"],
    ]


SHAPE = Shape("users", pa.schema([("id", pa.int64()), ("country", pa.string())]), ("id",), (("`country`",),))


def users(table: Table, *rows: tuple[int, str]) -> HeldRows:
    made = pa.Table.from_pylist([{"id": i, "country": c} for i, c in rows], schema=SHAPE.schema)
    return HeldRows(made, ([c.encode() for _, c in rows],))


def shown(table: Table) -> list[tuple[int, str]]:
    return [(row["id"], row["country"]) for row in table.everything().table.to_pylist()]


def test_a_snapshot_stays_and_shows_what_is_laid_over_it_to_nobody_else(tmp_path: Path) -> None:
    held = HeldFile(tmp_path / "held.db")
    table = held.table(SHAPE)
    with held.transaction():
        table.put(users(table, (1, "no"), (2, "se"), (3, "se")))
    snapshot = held.snapshot()
    snapshot.lay_over("users")
    over = snapshot.tables["users"]
    with held.transaction():
        table.put(users(table, (4, "dk")))
    over.apply(users(over, (2, "se"), (3, "se")), users(over, (3, "no"), (5, "fi")))
    assert shown(over) == [(1, "no"), (3, "no"), (5, "fi")]
    assert over.by_value(0, [b"no", b"se"]).table.column("id").to_pylist() == [1, 3]
    assert over.counts(0, [b"no", b"fi", b"se"]) == {b"no": 2, b"fi": 1}
    assert over.values(0) == {b"no", b"fi"}
    assert len(over) == 3
    over.apply(users(over, (3, "no")), users(over, (2, "se")))
    assert shown(over) == [(1, "no"), (2, "se"), (5, "fi")]
    assert shown(table) == [(1, "no"), (2, "se"), (3, "se"), (4, "dk")]
    snapshot.close()
    held.close()
