from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock import App
from penstock.flows.session import open_session
from tests.flows.world import World


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = open_session("tests")
    yield session
    session.stop()


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path) -> Iterator[Callable[[App], World]]:
    with ExitStack() as opened:
        yield lambda app: opened.enter_context(closing(World(spark, tmp_path / "data", app)))
