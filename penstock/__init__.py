"""Events from the moment they happen to the screen, program or person that must act on them.

The stages, in the order in which data flows:

1. `collect` takes events in and never acknowledges what is not durable.
2. `log` keeps streams in order, durable and replayable.
3. `flows` runs the user's functions as Spark Structured Streaming queries.
4. `views` holds the current answer by key, rebuilt from its changelog in the log.
5. `serve` gives snapshots and changes to whoever asks.
6. `client` sends events from other programs, each once, and keeps what they read current.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock import signed
    from penstock.app import App
    from penstock.event import Event, Struct
    from penstock.private import Private

__all__ = ["App", "Event", "Private", "Struct", "signed"]
__version__ = "0.1.0"

_HOMES = {"App": "app", "Event": "event", "Private": "private", "Struct": "event"}


def __getattr__(name: str) -> Any:
    """The public names, imported when somebody asks: what starts Spark's JVM must not wait for Arrow and NumPy."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.{_HOMES.get(name, name)}")
    return getattr(module, name) if name in _HOMES else module
