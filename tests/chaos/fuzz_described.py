"""Requests that schemathesis makes from the OpenAPI document: what the description allows, and what it does not."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis.errors import Unsatisfiable

ANSWER_S = 20.0
ENDLESS = ("/events", "/socket")
"""Paths whose replies do not end by themselves; the raw fuzzer throws things at them."""


def described(url: str, requests: int, seed: int) -> list[str]:
    """About so many requests over all operations; what was wrong. Raises SystemExit where schemathesis is missing."""
    try:
        from schemathesis import openapi
    except ImportError:
        raise SystemExit("schemathesis is not installed; `pip install penstock[fuzz]` brings it") from None
    operations = [found.ok() for found in openapi.from_url(f"{url}/openapi.json").get_all_operations()]
    chosen = [operation for operation in operations if not operation.path.endswith(ENDLESS)]
    wrong: list[str] = []
    for number, operation in enumerate(chosen):
        try:
            _attack(operation, max(1, requests // len(chosen)), seed + number)
        except AssertionError as error:
            wrong.append(f"{operation.method.upper()} {operation.path}: {error}")
    return wrong


def _impatient(case: Any) -> None:
    """A wait that is allowed is allowed to take that long; nobody here has the time."""
    wait = (case.query or {}).get("wait", 5.0)
    if (
        isinstance(wait, int | float)
        and 0 <= wait <= 60
        and case.operation.path.startswith(("/views/", "/streams/", "/acks/"))
    ):
        case.query = {**(case.query or {}), "wait": min(wait, 0.01)}


def _attack(operation: Any, requests: int, seed: int) -> None:
    from schemathesis import GenerationMode

    share = settings(
        max_examples=max(1, requests // 2),
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
        strategy = operation.as_strategy(generation_mode=mode)

        @seeded(seed)
        @share
        @given(case=strategy)
        def attack(case: Any) -> None:
            _impatient(case)
            reply = case.call(timeout=ANSWER_S)
            assert reply.status_code not in (500, 501, 502), f"{reply.status_code} for {case.as_curl_command()[:400]}"

        with suppress(Unsatisfiable):  # an operation without parameters cannot be called wrongly
            attack()
