"""The one switch for what reaches into the internals of Spark and aiohttp: `PENSTOCK_PLAIN`.

Each such part saves CPU, memory or a wait, and has the host's own way beneath it, which gives the same results.
`PENSTOCK_PLAIN=1` turns all parts off, `PENSTOCK_PLAIN=nursery,sink` these. A part that does not fit what is installed
gives up by itself: its plain way serves for the rest of the process, and the log has one line that says why.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from functools import cache

from penstock import spark_master
from penstock.errors import BadSwitchError

VARIABLE = "PENSTOCK_PLAIN"
SPARK = (
    "launch",
    "archive",
    "compiler",
    "options",
    "closures",
    "files",
    "one_task",
    "eviction",
    "ml",
    "notes",
    "nursery",
    "unix_sockets",
    "interpreting",
    "sink",
    "prepared",
)
"""The parts of `flows/engine`; what each saves stands in `docs/decisions/engine.md`."""
AIOHTTP = ("short_way",)
"""The parts of `collect/ways`."""

_log = logging.getLogger(__name__)


def parts_off() -> frozenset[str]:
    """The parts that the environment turns off, all of Spark's on a cluster. Raises `BadSwitchError` for a name that is
    none."""
    cluster = frozenset(SPARK if spark_master.cluster() else ())
    return cluster | _said_off()


def _said_off() -> frozenset[str]:
    said = os.environ.get(VARIABLE, "").strip()
    if said in ("", "0"):
        return frozenset()
    if said == "1":
        return frozenset((*SPARK, *AIOHTTP))
    words = frozenset(word.strip() for word in said.split(","))
    if unknown := words - {*SPARK, *AIOHTTP}:
        raise BadSwitchError(
            f"{VARIABLE} names a part that is not there: '{sorted(unknown)[0]}'",
            hint=f"{VARIABLE}=1 turns all parts off; their names are {', '.join((*SPARK, *AIOHTTP))}",
        )
    return words


def uses(part: str) -> bool:
    """Whether a part may serve in this process."""
    return part not in parts_off() and part not in given_up()


def give_up(part: str, why: object) -> None:
    """Let a part's plain way serve for the rest of this process."""
    if uses(part):
        given_up()[part] = " ".join(str(why).split())
        _log.warning("'%s' is off and its plain way serves: %s", part, given_up()[part])


def off(parts: Sequence[str]) -> list[str]:
    """Those of some parts that do not serve in this process."""
    return [part for part in parts if not uses(part)]


def mode(parts: Sequence[str]) -> str:
    """How they serve, for people: \"fast\", \"plain\", or \"without sink, nursery\"."""
    missing = off(parts)
    return "fast" if not missing else "plain" if len(missing) == len(parts) else f"without {', '.join(missing)}"


@cache
def given_up() -> dict[str, str]:
    """The parts that gave up in this process, each with the reason."""
    return {}
