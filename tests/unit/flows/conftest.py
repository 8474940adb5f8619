from collections.abc import Iterator

import pytest

from penstock import plain


@pytest.fixture(autouse=True)
def _nothing_given_up() -> Iterator[None]:
    """A part that gives up in one test serves in the next."""
    plain.given_up.cache_clear()
    yield
    plain.given_up.cache_clear()
