"""Retention lets go what the declaration says, and waits for flows that have not absorbed it."""

from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from penstock import App, Event
from penstock.change import Column
from penstock.clock import SystemClock
from penstock.log.builds import BatchMeta, Build
from penstock.log.group_commit import GroupCommit
from penstock.log.log import Append, StreamSpec
from penstock.log.opening import open_log
from penstock.log.retention import replaced_versions
from penstock.run.retainer import Retainer
from tests.memory_folder import memory_folder

COMMITS = 10


class Order(Event):
    n: int


class Shop:
    """A door's stream of ten commits that may all go, and a view that has absorbed some of them."""

    def __init__(self, folder: Path) -> None:
        app = App("shop")
        app.stream("orders", Order, retain="1 us")
        app.view(name="totals", key="n")(lambda orders: orders)
        self.application = app.declared()
        self.edge = open_log(memory_folder(folder).edge_log, app="shop")
        self.flows = open_log(memory_folder(folder).flows_log, app="shop")
        self.group = GroupCommit(self.edge)
        declared = self.application.streams[0]
        self.orders = self.edge.create(StreamSpec("orders", declared.stored))
        for number in range(COMMITS):
            values = [{"n": number, "_id": str(number), "_key": None, "_time": 0, "_received": 0}]
            self.edge.append([Append(self.orders, pa.RecordBatch.from_pylist(values, schema=declared.stored))])

    def absorbed(self, offset: int, epoch: str = "b1", *, live: bool = True) -> None:
        schema = pa.schema([pa.field("n", pa.int64()), pa.field("_op", pa.int8())])
        spec = StreamSpec("totals", schema, counts="commits", epoch=epoch)
        meta = BatchMeta(batch=0, start={}, end={"orders": [self.orders.epoch, [offset]]})
        rows = pa.RecordBatch.from_pylist([{"n": 1, "_op": 0}], schema=schema)
        columns = (Column("n", "bigint"),)
        build = Build(epoch=epoch, fingerprint="f", kind="view", columns=columns, proof="exact", started_us=0)
        memory = {"build/totals": _plain(build)} | ({"live/totals": epoch} if live else {})
        self.flows.append([Append(self.flows.create(spec), rows, meta=_plain(meta))], memory)

    def kept_from(self) -> int:
        Retainer(self.application, self.edge, self.group, self.flows, SystemClock()).once()
        return self.edge.bounds(self.orders).first_commit

    def close(self) -> None:
        self.group.close()
        self.edge.close()
        self.flows.close()


def _plain(value):
    return msgspec.to_builtins(value)


@pytest.fixture
def shop(tmp_path):
    made = Shop(tmp_path)
    yield made
    made.close()


def test_nothing_goes_before_a_flow_has_begun(shop):
    assert shop.kept_from() == shop.edge.bounds(shop.orders).next_commit - COMMITS


def test_what_the_flow_has_absorbed_goes(shop):
    first = shop.edge.bounds(shop.orders).first_commit
    shop.absorbed(4)
    assert shop.kept_from() == first + 4


def test_the_newest_commit_always_stays(shop):
    shop.absorbed(COMMITS)
    assert shop.kept_from() == shop.edge.bounds(shop.orders).next_commit - 1


def test_a_build_that_catches_up_is_waited_for(shop):
    first = shop.edge.bounds(shop.orders).first_commit
    shop.absorbed(9)
    shop.absorbed(2, epoch="b2", live=False)
    assert shop.kept_from() == first + 2


def test_events_that_count_stay_however_old_they_are(shop):
    """A stream in which nothing happens has no newer events: those that it has still count."""
    app = App("shop")
    app.stream("orders", Order, retain="1 us")
    app.view(name="totals", key="n", within="3 seconds")(lambda orders: orders)
    declared = app.declared()
    for seconds in range(COMMITS):
        values = [{"n": 1, "_id": f"s{seconds}", "_key": None, "_time": seconds * 1_000_000, "_received": 0}]
        batch = pa.RecordBatch.from_pylist(values, schema=declared.streams[0].stored)
        shop.edge.append([Append(shop.orders, batch)])
    shop.absorbed(2 * COMMITS)
    shop.application = declared
    assert shop.kept_from() == shop.edge.bounds(shop.orders).next_commit - 4


class Later(SystemClock):
    """An hour ahead."""

    def now_us(self) -> int:
        return super().now_us() + 3_600_000_000


def test_rows_of_a_table_that_newer_ones_replaced_go_and_the_current_stay(tmp_path: Path) -> None:
    app = App("shop")
    app.table("orders", Order, key="n")
    declared = app.declared().tables[0]
    edge = open_log(memory_folder(tmp_path).edge_log, app="shop")
    flows = open_log(memory_folder(tmp_path).flows_log, app="shop")
    group = GroupCommit(edge)
    table = edge.create(StreamSpec("orders", declared.stored, counts="commits", compact_by=("n",)))
    for number in range(300):
        rows = [{"n": number % 3, "_op": int(number % 3 == 2)}]
        edge.append([Append(table, pa.RecordBatch.from_pylist(rows, schema=declared.stored))])
    for clock, gone in ((SystemClock(), 0), (Later(), 200)):
        retainer = Retainer(app.declared(), edge, group, flows, clock, whole_bytes=edge.bounds(table).bytes // 4)
        assert retainer.once() >= gone
        assert (edge.commits(table, 0, limit=1)[0].number > 0) == (gone > 0), "ten minutes stay whole"
    held: dict[int, int] = {}
    for block in edge.read(table, 0, edge.bounds(table).starts[0]):
        held |= {row["n"]: row["_op"] for row in block.batch.to_pylist()}
    assert {n for n, op in held.items() if op == 0} == {0, 1}
    group.close()
    edge.close()
    flows.close()


class Rate(Event):
    country: str
    since: int
    rate: int


@pytest.mark.parametrize(
    ("rates", "horizon_ms", "goes"),
    [
        ([("no", 1, 25), ("no", 5, 12)], 5, True),
        ([("no", 1, 25), ("no", 5, 12)], 4, False),  # what held before is still asked for
        ([("no", 5, 12), ("no", 1, 24)], 9, False),  # a correction of the past was written last
        ([("no", 1, 25), ("se", 7, 12)], 6, False),
    ],
)
def test_versions_go_only_when_no_time_within_reach_asks_for_them(
    tmp_path: Path, rates: list[tuple[str, int, int]], horizon_ms: int, goes: bool
) -> None:
    app = App("shop")
    declared = app.table("rates", Rate, key="country", time="since", versions="30 days")
    log = open_log(memory_folder(tmp_path).edge_log, app="shop")
    table = log.create(StreamSpec("rates", declared.stored, counts="commits", compact_by=("country",)))
    for country, since, rate in rates:
        row = {"country": country, "since": since, "rate": rate, "_op": 0}
        log.append([Append(table, pa.RecordBatch.from_pylist([row], schema=declared.stored))])
    far = SystemClock().now_us() * 10
    before = log.bounds(table).next_commit
    assert replaced_versions(log, table, before, "since", horizon_ms * 1000) is False, "written after the horizon"
    shifted = far // 1000 - 10
    for country, since, rate in rates:
        row = {"country": country, "since": shifted + since, "rate": rate, "_op": 0}
        log.append([Append(table, pa.RecordBatch.from_pylist([row], schema=declared.stored))])
    before = log.bounds(table).next_commit
    assert replaced_versions(log, table, before, "since", (shifted + horizon_ms) * 1000) is goes
    log.close()
