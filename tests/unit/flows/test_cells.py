"""Values by which held rows are found: equal bytes where Spark finds equal values, and nowhere else."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa

from penstock.flows.regroup.cells import array_of, cells_of, values_of


def decimals(*values: str, scale: int = 0) -> pa.Array:
    return pa.array([Decimal(value) for value in values], pa.decimal128(38, scale))


def test_decimals_of_38_digits_that_differ_in_the_last_are_two_values() -> None:
    one, other = "12345678901234567890123456789012345677", "12345678901234567890123456789012345678"
    assert len(set(values_of([decimals(one, other)]))) == 2
    assert array_of(cells_of(decimals(one, other)), pa.decimal128(38, 0)).to_pylist() == [Decimal(one), Decimal(other)]


def test_a_decimal_is_the_same_value_in_any_scale() -> None:
    assert values_of([decimals("1.50", "0", scale=4)]) == values_of([decimals("1.5", "0", scale=1)])
