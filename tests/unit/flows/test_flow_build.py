"""A build that is not continued says why, and blames nobody else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from penstock.flows.flow_build import why_rebuilt
from penstock.log.builds import Build


def stored(**fields: Any) -> dict[str, Any]:
    given = {"epoch": "e", "fingerprint": "code", "kind": "view", "inputs": {"paid": "old"}, "starts": {}} | fields
    more = {"columns": (), "proof": "exact", "proof_reasons": (), "mode": "update", "started_us": 0}
    return {"build/totals": msgspec.to_builtins(Build(**given | more))}


@pytest.mark.parametrize(
    ("fingerprint", "inputs", "why"),
    [
        ("code", {"paid": "old"}, None),
        ("other code", {"paid": "old"}, "its code or schema changed"),
        ("other code", {"paid": "old", "sent": "x"}, "its code or schema changed"),
        ("code", {"paid": "new"}, "'paid', which it reads, begins anew"),
        ("code of other columns", {"paid": "new"}, "'paid', which it reads, begins anew"),
    ],
)
def test_what_is_rebuilt_because_of_what_it_reads_says_so(fingerprint: str, inputs: Any, why: str | None) -> None:
    made: Any = SimpleNamespace(node=SimpleNamespace(name="totals"), fingerprint=fingerprint)
    assert why_rebuilt(stored(), made, inputs) == why


def test_what_was_never_built_is_not_rebuilt() -> None:
    made: Any = SimpleNamespace(node=SimpleNamespace(name="totals"), fingerprint="code")
    assert why_rebuilt({}, made, {"paid": "old"}) is None
