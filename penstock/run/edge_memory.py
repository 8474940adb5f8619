"""Keeps an edge small and quick: it gives memory back, does without pandas, and seldom looks for garbage."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

import pyarrow as pa

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""Names of options in `malloc.h`."""
GIVEN_BACK_BYTES = 8 * 1024**2
"""Blocks of this size go back to the system at once; setting it also keeps glibc from raising it by itself."""
ARENAS = 2
"""Instead of eight per core: the interpreter lets one thread run at a time."""
_PANDAS = "pandas"


def give_memory_back() -> None:
    """For the whole process; called before it has threads.

    Large bodies come and go, and the C library would keep what each thread once needed.
    Measured with 100,000 mutated requests, some of them 16 MiB unpacked: from 116 to 147 MiB of private memory, instead
    of from 145 to 280, though nothing was held any longer. Elsewhere than on glibc nothing is changed.
    """
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    for option, value in (
        (_ARENA_MAX, ARENAS),
        (_MMAP_THRESHOLD, GIVEN_BACK_BYTES),
        (_TRIM_THRESHOLD, GIVEN_BACK_BYTES),
    ):
        mallopt(option, value)


class _Absent:
    """A finder that finds no pandas."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == _PANDAS:
            raise ModuleNotFoundError(f"no {_PANDAS} here", name=name)
        return None


def leave_pandas_out() -> None:
    """Let Arrow look for pandas now, and find none. Called before anything is converted, and after the app is loaded.

    Spark wants pandas installed, and Arrow imports it with the first value that it converts: 0.3 s of the edge's start
    and 40 MiB that it has no use for. Arrow looks once in a process. An app file that imports pandas itself has it,
    with all that Arrow does for it.
    """
    if _PANDAS in sys.modules:
        return
    absent = _Absent()
    sys.meta_path.insert(0, absent)
    try:
        pa.scalar(0)
    finally:
        sys.meta_path.remove(absent)


def collect_garbage_seldom() -> None:
    """Requests leave no cycles behind; looking for some after every 700 objects costs a tenth of the edge's time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
