from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import postgres_server


@pytest.fixture(scope="session")
def database() -> Iterator[str]:
    """The address of a PostgreSQL of this run's own."""
    why = postgres_server.missing()
    if why is not None:
        pytest.skip(f"THE STORE IN POSTGRESQL IS NOT TESTED: {why}")
    with postgres_server.server() as address:
        yield address
