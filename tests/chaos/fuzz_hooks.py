"""What schemathesis loads before it begins (`SCHEMATHESIS_HOOKS`): a wait that is allowed is made a short one."""

from __future__ import annotations

from typing import Any

import schemathesis

WAITING = ("/views/", "/streams/", "/channels/", "/acks/")


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    asked = (case.query or {}).get("wait", 5.0)
    if case.operation.path.startswith(WAITING) and isinstance(asked, int | float) and 0 <= asked <= 60:
        case.query = {**(case.query or {}), "wait": min(asked, 0.01)}
