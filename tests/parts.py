"""Tests of a part that reaches into Spark or aiohttp say which: `PENSTOCK_PLAIN` leaves them out with the part."""

from __future__ import annotations

import pytest

from penstock import plain


def about(*parts: str) -> pytest.MarkDecorator:
    """For tests that fail without these parts, because they are what is tested."""
    off = sorted(plain.parts_off() & {*parts})
    return pytest.mark.skipif(bool(off), reason=f"about {', '.join(off)}, which {plain.VARIABLE} turns off")
