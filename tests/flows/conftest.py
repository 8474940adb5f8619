from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock import App
from penstock.flows.session import open_session
from tests import kafka_broker
from tests.flows.world import World


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = open_session("tests")
    yield session
    session.stop()


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[str]:
    """The address of a broker of the test's own."""
    why = kafka_broker.why_not()
    if why is not None:
        pytest.skip(f"FLOWS ON KAFKA ARE NOT TESTED: {why}")
    folder = tmp_path / "broker"
    folder.mkdir()
    with kafka_broker.running_broker(folder) as broker:
        yield f"kafka://{broker.address}"


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path) -> Iterator[Callable[[App], World]]:
    with ExitStack() as opened:
        yield lambda app: opened.enter_context(closing(World(spark, tmp_path / "data", app)))
