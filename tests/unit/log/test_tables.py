from __future__ import annotations

from typing import Any

from penstock.log.index.tables import checksum


def test_a_checksum_covers_every_part_of_a_block() -> None:
    facts: list[Any] = [1, 2, 3, 4, 5, 6, 7, 8, 0, 10, 11]
    sums = {checksum(facts, b"data", None), checksum(facts, b"date", None), checksum(facts, b"data", b"offsets")}
    for at in range(len(facts)):
        changed = [fact + (place == at) for place, fact in enumerate(facts)]
        sums.add(checksum(changed, b"data", None))
    sums.add(checksum([*facts[:9], None, 11], b"data", None))
    assert len(sums) == 3 + len(facts) + 1
