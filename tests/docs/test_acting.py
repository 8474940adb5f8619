"""The examples of `docs/how-to/act-exactly-once.md` run, over a real edge and a payment service."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from random import Random
from typing import Any

from tests.chaos.royalties import Findings, edge_alone
from tests.docs.pages import ROOT, blocks

sys.path.append(str(ROOT / "tests/unit/client"))

from bank import Bank

PAGE = ROOT / "docs/how-to/act-exactly-once.md"
DEADLINE_S = 60.0


def told(code: str, **words: str) -> str:
    """The code with the addresses and files of a test, and an end."""
    for word, here in {'on="upserts")': 'on="upserts", once=True)', **words}.items():
        code = code.replace(word, here)
    return code


def run(code: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(code, str(PAGE), "exec"), names)
    return names


async def test_the_examples_pay_and_try_again_what_failed(tmp_path: Path) -> None:
    found = Findings()
    pay, confirm, failed, *_ = (block.code for block in blocks(PAGE, "python"))
    async with asyncio.timeout(DEADLINE_S), edge_alone(tmp_path, Random(1), found) as (url, royalties):
        royalties.add()
        with Bank() as bank:
            here = {"https://bank.example/charges": bank.url, "http://localhost:8080": url}
            here["pay.db"] = str(tmp_path / "pay.db")
            broken = told(pay, **here).replace("once=True", "once=True, give_up_after=1")
            bank.next.append(402)
            await asyncio.to_thread(run, broken)
            assert len(bank.charges) == len(found.royalties) - 1
            await asyncio.to_thread(run, told(failed, **here))
            await asyncio.to_thread(run, told(pay, **here))
    amounts = sorted((body["account"], body["amount"]) for _, body in bank.charges)
    assert amounts == sorted((account, amount) for (account, _), amount in found.royalties.items())
    assert callable(run(confirm)["confirm"])
